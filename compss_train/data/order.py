"""Random orders of blocks, samples and files: pure functions of seed and epoch.

An epoch's files are put in a new order, concatenated and cut into partitions of equal size. A
partition consists of whole files and of row ranges of at most two files at its ends, so that it can
be read file by file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Stream(IntEnum):
    """The independent random streams of a seed."""

    BLOCKS = 0
    ROWS = 1
    SAMPLES = 2
    WORKERS = 3
    BUFFERS = 4
    PARTIAL = 5
    PARTITIONS = 6
    TRANSFORMS = 7
    BUCKETS = 8


def _generator(seed: int, *stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, *stream))))


def _derived_seed(seed: int, *stream: int) -> int:
    return int(np.random.SeedSequence((seed, *stream)).generate_state(1, np.uint64)[0] >> 1)


def block_order(seed: int, epoch: int, blocks: int) -> list[int]:
    """Return a uniform permutation of the block numbers."""
    order: list[int] = _generator(seed, _Stream.BLOCKS, epoch).permutation(blocks).tolist()
    return order


def row_order(seed: int, epoch: int, block: int, rows: int) -> NDArray[np.int64]:
    """Return a uniform permutation of one block's rows."""
    return _generator(seed, _Stream.ROWS, epoch, block).permutation(rows)


BUCKETED = 50
"""Number of batches whose samples are sorted by length together."""


def bucketed_order(
    lengths: NDArray[Any], bounds: Sequence[tuple[int, int]], seed: int, epoch: int, block: int
) -> NDArray[Any]:
    """Return a random order of a block's rows with samples of similar lengths in each batch.

    The samples in their ``row_order`` are taken ``BUCKETED`` batches at a time, sorted by length
    and cut into batches again, which are then shuffled. ``bounds`` are the batches' (start, stop).
    """
    order = row_order(seed, epoch, block, len(lengths))
    random = _generator(seed, _Stream.BUCKETS, epoch, block)
    result = np.empty_like(order)
    for first in range(0, len(bounds), BUCKETED):
        group = bounds[first : first + BUCKETED]
        rows = order[group[0][0] : group[-1][1]]
        ascending = rows[np.argsort(lengths[rows], kind="stable")]
        first_row = 0
        for number in random.permutation(len(group)):
            start, stop = group[number]
            end_row = first_row + stop - start
            result[start:stop] = ascending[first_row:end_row]
            first_row = end_row
    return result


def sample_order(seed: int, epoch: int, samples: int) -> NDArray[Any]:
    """Return a uniform permutation of all samples, as int32, or int64 where numbers need that."""
    numbers = np.arange(samples, dtype=np.int32 if samples < 2**31 else np.int64)
    _generator(seed, _Stream.SAMPLES, epoch).shuffle(numbers)
    return numbers


def worker_seed(seed: int, worker: int) -> int:
    """Return the seed of a worker's own random state (dropout).

    Worker 0 uses the seed itself, so that a single worker starts as a plain loop does after
    ``torch.manual_seed(seed)``.
    """
    return seed if worker == 0 else _derived_seed(seed, _Stream.WORKERS, worker)


def buffer_seed(seed: int, epoch: int, block: int) -> int:
    """Return the seed of a buffer's draws in an epoch; ``block`` enters the buffer first."""
    return _derived_seed(seed, _Stream.BUFFERS, epoch, block)


def transform_seed(seed: int, epoch: int, block: int, position: int) -> int:
    """Return the seed of a transform's draws for the batch that begins at a place of the epoch."""
    return _derived_seed(seed, _Stream.TRANSFORMS, epoch, block, position)


def partition_order(seed: int, epoch: int, partitions: int) -> list[int]:
    """Return a uniform permutation of the numbers of an epoch's partitions."""
    order: list[int] = _generator(seed, _Stream.PARTITIONS, epoch).permutation(partitions).tolist()
    return order


def partial_shuffle_generator(seed: int, epoch: int, *origin: int) -> np.random.Generator:
    """Return the generator of a partial shuffle that begins at a place of the epoch, ``origin``."""
    return _generator(seed, _Stream.PARTIAL, epoch, *origin)


def even_parts(length: int, parts: int) -> list[tuple[int, int]]:
    """Return (start, stop) of consecutive parts whose sizes differ by one at most, longer first."""
    size, longer = divmod(length, parts)
    return list(pairwise([part * size + min(part, longer) for part in range(parts + 1)]))


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


def partition_files(
    sizes: Sequence[int], partitions: int, seed: int, epoch: int
) -> list[list[RowRange]]:
    """Return the partitions of an epoch, with every row once; sizes differ by one at most.

    The files are in the epoch's block order. The partitions are in a random order of their own.
    """
    rows = _EpochRows(sizes, block_order(seed, epoch, len(sizes)))
    bounds = even_parts(rows.length, partitions)
    return [
        list(rows.slice(*bounds[number])) for number in partition_order(seed, epoch, partitions)
    ]


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

    The last ranks wrap around to the first rows, so that at most ``num_ranks - 1`` rows are used
    twice. With ``drop_last``, at most that many rows at the end of the epoch are left out instead.
    Without ``shuffle``, files and ranks stay in order.
    """
    rows = _EpochRows(sizes, block_order(seed, epoch, len(sizes)) if shuffle else range(len(sizes)))
    number = partition_order(seed, epoch, num_ranks)[rank] if shuffle else rank
    size = rows_of_rank(rows.length, num_ranks, drop_last=drop_last)
    start = number * size % rows.length
    return [
        *rows.slice(start, min(rows.length, start + size)),
        *rows.slice(0, start + size - rows.length),
    ]


def rows_of_rank(rows: int, num_ranks: int, *, drop_last: bool) -> int:
    """Return the rows of each rank, an equal share: rounded down with ``drop_last``, else up."""
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
            first = int(self._bounds[index])
            end = min(stop, int(self._bounds[index + 1]))
            yield RowRange(self._order[index], start - first, end - first)
            start = end
            index = index + 1
