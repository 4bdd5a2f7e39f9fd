"""Stretches: consecutive rows of one file, and how the files of an epoch are dealt in them.

The files are put in a new order every epoch and cut, one after the other, into shares of equal size. A share is a
few whole files and at its ends perhaps parts of two, so that its samples can be read file by file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from compss_train.data.order import block_order, share_order, split_points


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows ``start`` to ``stop`` of a file, and after them perhaps some of its first ones."""

    file: int
    start: int
    stop: int
    again: int = 0
    """How many of the file's first rows follow, where the end of an epoch goes on at its beginning."""

    @property
    def place(self) -> tuple[int, int]:
        """Where it begins."""
        return self.file, self.start

    def __len__(self) -> int:
        return self.stop - self.start + self.again


def deal_files(sizes: Sequence[int], shares: int, seed: int, epoch: int) -> list[list[RowRange]]:
    """Return each share of an epoch: every row of every file once, in sizes that differ by one at most.

    Files are in the epoch's order of blocks, and shares go to their owners in an order of their own.
    """
    stream = _Stream(sizes, block_order(seed, epoch, len(sizes)))
    bounds = list(pairwise(split_points(stream.length, shares)))
    return [list(stream.cut(*bounds[share])) for share in share_order(seed, epoch, shares)]


def even_share(
    sizes: Sequence[int], shares: int, owner: int, seed: int, epoch: int, *, shuffle: bool = True
) -> list[RowRange]:
    """Return the share of one of several owners who must all have as many rows.

    The last ones go on at the beginning, so that ``shares - 1`` rows at most come twice. Without ``shuffle`` files
    and shares stay in order. Rows of the same file come together, so that no owner opens a file twice.
    """
    stream = _Stream(sizes, block_order(seed, epoch, len(sizes)) if shuffle else range(len(sizes)))
    share = share_order(seed, epoch, shares)[owner] if shuffle else owner
    size = -(-stream.length // shares)
    return _by_file(stream.around(share * size, size))


class _Stream:
    """All rows of all files in an order of the files, counted through."""

    def __init__(self, sizes: Sequence[int], order: Sequence[int]) -> None:
        self._order = order
        self._bounds = np.cumsum([0, *(sizes[file] for file in order)])
        self.length = int(self._bounds[-1])

    def cut(self, start: int, stop: int) -> Iterator[RowRange]:
        """Iterate over the stretches of rows ``start`` to ``stop``."""
        place = int(np.searchsorted(self._bounds, start, side="right")) - 1
        while start < stop:
            first, end = int(self._bounds[place]), min(stop, int(self._bounds[place + 1]))
            yield RowRange(self._order[place], start - first, end - first)
            start, place = end, place + 1

    def around(self, start: int, size: int) -> Iterator[RowRange]:
        """Iterate over the stretches of ``size`` rows from ``start``, going on at the beginning after the end."""
        start %= self.length
        yield from self.cut(start, min(self.length, start + size))
        yield from self.cut(0, start + size - self.length)


def _by_file(row_ranges: Iterator[RowRange]) -> list[RowRange]:
    """Return one stretch a file; only what the share goes on with at the beginning can name a file again."""
    files: dict[int, RowRange] = {}
    for row_range in row_ranges:
        if row_range.file in files:
            row_range = replace(files[row_range.file], again=row_range.stop)
        files[row_range.file] = row_range
    return list(files.values())
