"""``FileLoader``: reads stretches of files in a thread, a few ahead of whoever takes them."""

from __future__ import annotations

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
    """What was read, and how far ahead."""

    files: int = 0
    """How often a file was opened."""
    ahead: int = 0
    """How many were there when they were needed."""
    seconds_waited: float = 0.0
    """How long their consumer waited for the others."""
    most_held: int = 0
    """The most files that were in memory at a time."""

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers by name."""
        return asdict(self)


class FileLoader:
    """Reads stretches of files, at most ``file_buffer`` of them in memory, with one thread.

    The first file that is read says what the others must hold, where that was not known before. A file that is
    not as it should be is a ``BadFileError`` where its rows would have come, or where the part says so it is left
    out: ``None`` comes instead, and ``skipped`` says why.
    """

    def __init__(self, part: FilePart, file_buffer: int, *, debug: bool = False) -> None:
        self._part = part
        self._file_buffer = file_buffer
        self._level = logging.INFO if debug else logging.DEBUG
        self._layout, self._reference = part.layout, part.reference
        self._begun = 0  # files whose reading has begun: counted by the thread that reads
        self._let_go = 0  # counted by whoever takes them, before the next one may be read
        self.reads = FileReads()
        self.skipped: dict[str, str] = {}
        self.left_out = 0
        """Samples of files that were skipped."""

    @contextmanager
    def reading(self, row_ranges: Sequence[RowRange]) -> Iterator[Iterator[Arrays | None]]:
        """Give the rows of the stretches in turn. Whoever takes the next ones has let go of those before."""
        try:
            if self._file_buffer == 1:
                yield self._taken(map(self._load, row_ranges))
                return
            with ReadAhead(row_ranges, self._load, depth=self._file_buffer - 1) as ahead:
                yield self._taken(ahead)
        finally:
            self._begun = self._let_go = 0

    def _taken(self, loaded: Iterator[Arrays | None]) -> Iterator[Arrays | None]:
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
            self._let_go += 1

    def _load(self, row_range: RowRange) -> Arrays | None:
        self.reads.files += 1
        self._begun += 1
        self.reads.most_held = max(self.reads.most_held, self._begun - self._let_go)
        _LOG.log(
            self._level, "rows %d to %d of %s", row_range.start, row_range.stop, self._part.files[row_range.file]
        )
        try:
            arrays = self._part.read(row_range, self._layout, self._reference)
        except BadFileError as error:
            if not self._part.skip:
                raise
            self.skipped[error.file] = error.reason
            self.left_out += len(row_range)
            return None
        if self._layout is None:
            self._layout, self._reference = layout_of(arrays), self._part.files[row_range.file]
        return arrays
