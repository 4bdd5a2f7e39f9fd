"""``FileLoader``: reads row ranges of files in a thread, a few ahead of the consumer."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from compss_train.buffers.reading_ahead import ReadAhead
from compss_train.data.readers import Arrays
from compss_train.data.reading import FilePart, layout_of
from compss_train.data.row_ranges import RowRange
from compss_train.exceptions import BadFileError

_LOG = logging.getLogger(__name__)


@dataclass
class FileReads:
    """Statistics of reading files ahead."""

    files: int = 0
    """Number of times a file was opened."""
    ahead: int = 0
    """Number of files that were loaded before they were needed."""
    seconds_waited: float = 0.0
    """Seconds that the consumer waited for the other files."""
    most_held: int = 0
    """Maximum number of files in memory at a time."""

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics by name."""
        return asdict(self)


class FileLoader:
    """Reads row ranges of files with one thread, and holds at most ``file_buffer`` files in memory.

    If the layout of the files is not known, the first file that is read determines it. An invalid file raises a
    ``BadFileError`` in place of its rows. If ``part.skip`` is set, ``None`` is yielded instead, and ``skipped`` has
    the reason.
    """

    def __init__(self, part: FilePart, file_buffer: int, *, debug: bool = False) -> None:
        self._part = part
        self._file_buffer = file_buffer
        self._level = logging.INFO if debug else logging.DEBUG
        self._layout, self._reference = part.layout, part.reference
        self._opened = 0  # files opened since the iteration began; counted by the reading thread
        self._released = 0  # files that the consumer has released; counted before the next one is read
        self.reads = FileReads()
        self.skipped: dict[str, str] = {}

    @contextmanager
    def open(self, row_ranges: Sequence[RowRange]) -> Iterator[Iterator[Arrays | None]]:
        """Open an iterator over the rows of each range; release the rows before taking the next ones."""
        try:
            if self._file_buffer == 1:
                yield self._measured(map(self._load, row_ranges))
                return
            with ReadAhead(row_ranges, self._load, depth=self._file_buffer - 1) as ahead:
                yield self._measured(ahead)
        finally:
            self._opened = self._released = 0

    def _measured(self, loaded: Iterator[Arrays | None]) -> Iterator[Arrays | None]:
        """Iterate over loaded files, and count those that were ready and the time spent waiting."""
        while True:
            was_ready = isinstance(loaded, ReadAhead) and loaded.ready
            began = time.perf_counter()
            try:
                arrays = next(loaded)
            except StopIteration:
                return
            self.reads.seconds_waited += time.perf_counter() - began
            self.reads.ahead += was_ready
            yield arrays
            del arrays
            self._released += 1

    def _load(self, row_range: RowRange) -> Arrays | None:
        self.reads.files += 1
        self._opened += 1
        self.reads.most_held = max(self.reads.most_held, self._opened - self._released)
        _LOG.log(
            self._level, "rows %d to %d of %s", row_range.start, row_range.stop, self._part.files[row_range.file]
        )
        try:
            arrays = self._part.read(row_range, self._layout, self._reference)
        except BadFileError as error:
            if not self._part.skip:
                raise
            self.skipped[error.file] = error.reason
            return None
        if self._layout is None:
            self._layout, self._reference = layout_of(arrays), self._part.files[row_range.file]
        return arrays
