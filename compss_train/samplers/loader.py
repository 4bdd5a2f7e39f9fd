"""``FileLoader``: reads row ranges of files in threads, a few ahead of the consumer."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train.buffers.reading_ahead import ReadAhead
from compss_train.data.order import RowRange
from compss_train.data.readers import Arrays
from compss_train.data.reading import FilePart
from compss_train.data.values import signed
from compss_train.exceptions import BadFileError

_LOG = logging.getLogger(__name__)

NO_ROWS: NDArray[np.intp] = np.empty(0, np.intp)


class FileRows(NamedTuple):
    """Some rows of a file."""

    arrays: Arrays
    missing: NDArray[np.intp] = NO_ROWS
    """The places of rows that could not be read, and are skipped; their values mean nothing."""

    def cut(self, start: int, stop: int) -> Self:
        """Return the rows from ``start`` to ``stop``."""
        arrays = {key: array[start:stop] for key, array in self.arrays.items()}
        inside = (start <= self.missing) & (self.missing < stop)
        return self._replace(arrays=arrays, missing=self.missing[inside] - start)


_Loaded: TypeAlias = tuple[FileRows | None, bool]
"""The rows of a file (``None`` if it is skipped), and whether they came from the cache."""


@dataclass
class FileReads:
    """Statistics of reading files ahead."""

    files: int = 0
    """Number of times that the rows of a file were needed."""
    cached: int = 0
    """How many of these were in the cache."""
    ahead: int = 0
    """How many were loaded before they were needed."""
    seconds_waited: float = 0.0
    """Seconds that the consumer spent waiting for files."""
    most_held: int = 0
    """Maximum number of files in memory at the same time."""


class FileLoader:
    """Reads row ranges of files in threads, with at most ``file_buffer`` files in memory.

    There are ``part.threads`` threads. An invalid file raises a ``BadFileError`` in place of its
    rows. If ``part.skip`` is set, ``None`` is yielded instead, or what can be read of it, such as
    other images of a folder, and ``skipped`` has the reasons. With ``part.cache``, files are read
    whole and kept in the cache, unless some rows are skipped.

    Raises ``ValueError`` if there are too many threads for ``file_buffer``.
    """

    def __init__(self, part: FilePart, file_buffer: int, *, debug: bool = False) -> None:
        check_threads(part.threads, file_buffer)
        self._part = part
        self._file_buffer = file_buffer
        self._level = logging.INFO if debug else logging.DEBUG
        self._held: list[int] = []
        """As many numbers as files that are in memory or being read."""
        self.reads = FileReads()
        self.skipped: dict[str, str] = {}
        """The reasons why files were skipped."""

    @contextmanager
    def open(self, row_ranges: Sequence[RowRange]) -> Iterator[Iterator[FileRows | None]]:
        """Open an iterator over the rows of each range.

        The consumer must release rows before it takes the next.
        """
        self._held.clear()
        if self._file_buffer == 1:
            yield self._measured(map(self._load, row_ranges))
            return
        with ReadAhead(
            row_ranges, self._load, threads=self._part.threads, depth=self._file_buffer - 1
        ) as ahead:
            yield self._measured(ahead, ahead)

    def _measured(
        self, loaded: Iterator[_Loaded], ahead: ReadAhead[_Loaded] | None = None
    ) -> Iterator[FileRows | None]:
        """Iterate over loaded files, and count those that were ready and the time spent waiting."""
        while True:
            was_ready = ahead is not None and ahead.ready
            began = time.perf_counter()
            try:
                rows, cached = next(loaded)
            except StopIteration:
                return
            self.reads.seconds_waited += time.perf_counter() - began
            self.reads.files += 1
            self.reads.ahead += was_ready
            self.reads.cached += cached
            if rows is not None:
                rows = rows._replace(
                    arrays={key: signed(array) for key, array in rows.arrays.items()}
                )
            yield rows
            del rows
            del self._held[-1:]  # which another iteration may have emptied

    def _load(self, row_range: RowRange) -> _Loaded:
        """Read the rows of a range, or take them from the cache."""
        self._held.append(row_range.file)
        self.reads.most_held = max(self.reads.most_held, len(self._held))
        start = row_range.start
        stop = row_range.stop
        block = self._part.blocks[row_range.file]
        _LOG.log(self._level, "rows %d to %d of %s", start, stop, block.path)
        try:
            entry = self._part.cache_entry(row_range.file)
            if entry is None:
                return self._read(row_range), False
            cached = entry.load()
            if cached is not None:
                return FileRows(cached).cut(start, stop), True
            whole = self._read(RowRange(row_range.file, 0, block.rows))
            if whole is None:
                return None, False
            if not len(whole.missing):
                entry.store(whole.arrays)
            return whole.cut(start, stop), False
        except BadFileError as error:
            if not self._part.skip:
                raise
            self.skipped[error.file] = error.reason
            return None, False

    def _read(self, row_range: RowRange) -> FileRows | None:
        """Return the rows of a range that can be read, or ``None`` if there are none."""
        arrays, errors = self._part.read_good(row_range)
        self.skipped |= {error.file: error.reason for error in errors.values()}
        if errors and len(errors) == len(row_range):
            return None
        return FileRows(arrays, np.fromiter(errors, np.intp))


def check_threads(threads: int, file_buffer: int) -> None:
    """Raise ``ValueError`` unless each thread may hold a file in addition to the one in use."""
    if threads > max(1, file_buffer - 1):
        raise ValueError(
            f"threads={threads}, file_buffer={file_buffer}: each thread holds the file that it "
            f"reads, besides the one in use; give a file_buffer of at least {threads + 1}, or at "
            f"most {max(1, file_buffer - 1)} threads"
        )
