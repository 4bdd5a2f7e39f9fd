"""Random orders of blocks and samples: pure functions of seed and epoch, the same on every engine and machine."""

from collections.abc import Sequence
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
"""Batches whose samples are sorted by length together."""


def bucketed_order(
    order: NDArray[Any], lengths: NDArray[Any], bounds: Sequence[tuple[int, int]], seed: int, epoch: int, block: int
) -> NDArray[Any]:
    """Return a random order of a block's rows with samples of similar lengths in each batch.

    Of the samples in ``order``, those of so many batches as ``BUCKETED`` are sorted by length and cut into batches
    again, which are put in a random order. ``bounds`` are starts and stops of batches, ``lengths`` those of rows.
    """
    random = _generator(seed, _Stream.BUCKETS, epoch, block)
    result = np.empty_like(order)
    for first in range(0, len(bounds), BUCKETED):
        group = bounds[first : first + BUCKETED]
        rows = order[group[0][0] : group[-1][1]]
        ascending = rows[np.argsort(lengths[rows], kind="stable")]
        taken = 0
        for number in random.permutation(len(group)):
            start, stop = group[number]
            result[start:stop] = ascending[taken : taken + stop - start]
            taken += stop - start
    return result


def sample_order(seed: int, epoch: int, samples: int) -> NDArray[Any]:
    """Return a uniform permutation of all samples, as int32 if that can hold their numbers, else as int64."""
    dtype = np.int32 if samples < 2**31 else np.int64
    numbers = np.arange(samples, dtype=dtype)
    _generator(seed, _Stream.SAMPLES, epoch).shuffle(numbers)
    return numbers


def worker_seed(seed: int, worker: int) -> int:
    """Return the seed of a worker's own random state (dropout).

    Worker 0 uses the seed itself, so that a single worker starts as a plain loop does after
    ``torch.manual_seed(seed)``.
    """
    if worker == 0:
        return seed
    return _derived_seed(seed, _Stream.WORKERS, worker)


def buffer_seed(seed: int, epoch: int, block: int) -> int:
    """Return the seed of a buffer's draws; ``block`` is the first one that enters the buffer in that epoch."""
    return _derived_seed(seed, _Stream.BUFFERS, epoch, block)


def transform_seed(seed: int, epoch: int, block: int, position: int) -> int:
    """Return the seed of the draws of a transform of the batch whose first sample is there in the epoch."""
    return _derived_seed(seed, _Stream.TRANSFORMS, epoch, block, position)


def partition_order(seed: int, epoch: int, partitions: int) -> list[int]:
    """Return a uniform permutation of the numbers of an epoch's partitions."""
    order: list[int] = _generator(seed, _Stream.PARTITIONS, epoch).permutation(partitions).tolist()
    return order


def partial_shuffle_generator(seed: int, epoch: int, *origin: int) -> np.random.Generator:
    """Return the generator of a partial shuffle; ``origin`` is where in the epoch it begins."""
    return _generator(seed, _Stream.PARTIAL, epoch, *origin)


def split_points(length: int, parts: int) -> list[int]:
    """Return the ``parts + 1`` bounds of consecutive parts whose sizes differ by one at most, longer first."""
    size, longer = divmod(length, parts)
    return [part * size + min(part, longer) for part in range(parts + 1)]


@dataclass(frozen=True)
class Batching:
    """The batches of a block pass. Their sizes differ by one at most, and every sample is used.

    Exactly one of ``number`` (batches a block) and ``size`` (the maximum batch size) is set.
    """

    number: int | None = None
    size: int | None = None

    def bounds(self, rows: int) -> list[tuple[int, int]]:
        """Return (start, stop) of each batch of a block pass with ``rows`` samples."""
        number = self.number or -(-rows // (self.size or rows))
        return list(pairwise(split_points(rows, min(number, rows))))
