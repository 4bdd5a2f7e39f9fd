"""Row ranges: consecutive rows of one file, and the partitioning of an epoch's files into them.

Every epoch puts the files in a new order, concatenates them and cuts the result into partitions of equal size. A
partition is a few whole files, and perhaps parts of two at its ends, so that it can be read file by file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from compss_train.data.order import block_order, partition_order, split_points


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows ``start`` to ``stop`` of a file."""

    file: int
    start: int
    stop: int

    @property
    def origin(self) -> tuple[int, int]:
        """The file and the row at which the range begins."""
        return self.file, self.start

    def __len__(self) -> int:
        return self.stop - self.start


def partition_files(sizes: Sequence[int], partitions: int, seed: int, epoch: int) -> list[list[RowRange]]:
    """Return the partitions of an epoch: every row of every file once, in sizes that differ by one at most.

    The files are in the epoch's block order. The partitions are in a random order of their own.
    """
    rows = _EpochRows(sizes, block_order(seed, epoch, len(sizes)))
    bounds = list(pairwise(split_points(rows.length, partitions)))
    return [list(rows.slice(*bounds[number])) for number in partition_order(seed, epoch, partitions)]


def rank_row_ranges(
    sizes: Sequence[int],
    num_ranks: int,
    rank: int,
    seed: int,
    epoch: int,
    *,
    shuffle: bool = True,
    drop_last: bool = False,
) -> list[RowRange]:
    """Return the row ranges of one rank; all ranks get the same number of rows.

    The last ranks wrap around to the first rows, so that at most ``num_ranks - 1`` rows are used twice. With
    ``drop_last`` at most as many rows at the end of the epoch are left out instead. Without ``shuffle`` files and
    ranks stay in order.
    """
    rows = _EpochRows(sizes, block_order(seed, epoch, len(sizes)) if shuffle else range(len(sizes)))
    number = partition_order(seed, epoch, num_ranks)[rank] if shuffle else rank
    size = rows_of_rank(rows.length, num_ranks, drop_last=drop_last)
    start = number * size % rows.length
    return [*rows.slice(start, min(rows.length, start + size)), *rows.slice(0, start + size - rows.length)]


def rows_of_rank(rows: int, num_ranks: int, *, drop_last: bool) -> int:
    """Return the number of rows of each rank: their share, rounded down with ``drop_last`` and up without."""
    return rows // num_ranks if drop_last else -(-rows // num_ranks)


class _EpochRows:
    """The concatenated rows of all files, in a given order of the files."""

    def __init__(self, sizes: Sequence[int], order: Sequence[int]) -> None:
        self._order = order
        self._bounds = np.cumsum([0, *(sizes[file] for file in order)])
        self.length = int(self._bounds[-1])

    def slice(self, start: int, stop: int) -> Iterator[RowRange]:
        """Iterate over the row ranges of rows ``start`` to ``stop``."""
        index = int(np.searchsorted(self._bounds, start, side="right")) - 1
        while start < stop:
            first, end = int(self._bounds[index]), min(stop, int(self._bounds[index + 1]))
            yield RowRange(self._order[index], start - first, end - first)
            start, index = end, index + 1
