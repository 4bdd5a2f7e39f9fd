"""Block passes: what a worker trains on, and the batches into which it is cut.

A *block pass* is one pass over the samples of one block, or of a part of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import numpy as np

from compss_train._utils import PickledByFields
from compss_train.data.order import even_parts


@dataclass(frozen=True, slots=True, eq=False)
class BlockPass(PickledByFields):
    """One pass over the samples of one block, or of a part of it."""

    block: int
    """Number of the block, or of the grid position to which a total shuffle moves these samples."""
    epoch: int
    """Number of the epoch, from 0 over all fits."""
    size: int
    """Number of samples in this pass."""
    sample_numbers: np.ndarray[Any, Any] | None = None
    """Numbers of the samples among the samples of all blocks; ``None`` for the block's own rows."""
    first: int = 0
    """First row of the block in this pass."""
    skip: int = 0
    """Number of samples that the whole pass trains before this part of it."""
    remaining: int = 0
    """Number of samples that the whole pass trains after this part of it."""

    @property
    def start(self) -> int:
        """Number of the first sample in the order in which the block is trained."""
        return self.first + self.skip

    @property
    def whole(self) -> int:
        """Number of samples in the whole pass, which this is a part of."""
        return self.skip + self.size + self.remaining

    def part(self, start: int, stop: int) -> Self:
        """Return samples ``start`` to ``stop`` of this pass, in the order of training."""
        numbers = self.sample_numbers
        return replace(
            self,
            size=stop - start,
            sample_numbers=None if numbers is None else numbers[start:stop],
            skip=self.skip + start,
            remaining=self.remaining + self.size - stop,
        )


WorkerAssignment: TypeAlias = tuple[BlockPass, ...]
"""The block passes of one worker in one round."""


def cut_assignment(assignment: WorkerAssignment, start: int, stop: int) -> WorkerAssignment:
    """Return samples ``start`` to ``stop`` of all these passes, in the order of training."""
    parts = []
    for block_pass in assignment:
        low = max(start, 0)
        high = min(stop, block_pass.size)
        if low < high:
            parts.append(block_pass.part(low, high))
        start = start - block_pass.size
        stop = stop - block_pass.size
    return tuple(parts)


def join_parts(parts: Iterable[BlockPass]) -> WorkerAssignment:
    """Return the passes with consecutive parts of the same pass as one part."""
    parts = tuple(parts)
    if len(parts) < 2:
        return parts
    runs: list[list[BlockPass]] = []
    for part in parts:
        if runs and _continues(part, runs[-1][-1]):
            runs[-1].append(part)
        else:
            runs.append([part])
    return tuple(run[0] if len(run) == 1 else _join_run(run) for run in runs)


def _continues(part: BlockPass, last: BlockPass) -> bool:
    """Return whether a part follows another one in the same pass."""
    end = last.skip + last.size
    return (part.block, part.epoch, part.skip) == (last.block, last.epoch, end)


def _join_run(parts: Sequence[BlockPass]) -> BlockPass:
    numbers = [part.sample_numbers for part in parts if part.sample_numbers is not None]
    return replace(
        parts[0],
        size=sum(part.size for part in parts),
        sample_numbers=np.concatenate(numbers) if numbers else None,
        remaining=parts[-1].remaining,
    )


@dataclass(frozen=True)
class Batching:
    """How block passes are cut into batches of all samples, whose sizes differ by one at most.

    Exactly one of ``number`` (batches a block) and ``size`` (the maximum batch size) is set.
    """

    number: int | None = None
    size: int | None = None

    def bounds(self, rows: int) -> list[tuple[int, int]]:
        """Return (start, stop) of each batch of a block pass with ``rows`` samples."""
        return even_parts(rows, min(self.number or -(-rows // (self.size or rows)), rows))


WHOLE_BLOCKS = Batching(number=1)
"""Every block is one batch."""


def batch_sizes(block_passes: WorkerAssignment, batching: Batching) -> list[int]:
    """Return the sizes of the batches that hold every sample of these passes once.

    Sizes differ by one at most. With a fixed number of batches a block, their total is the same as
    block by block.
    """
    samples = sum(block_pass.size for block_pass in block_passes)
    if not samples:
        return []
    if batching.number is not None:
        batching = replace(batching, number=batching.number * len(block_passes))
    return [stop - start for start, stop in batching.bounds(samples)]


def batch_bounds(block_pass: BlockPass, batching: Batching) -> list[tuple[int, int]]:
    """Return (start, stop) of each batch of a pass, or of a part that consists of whole batches."""
    first = block_pass.skip
    end = first + block_pass.size
    bounds = batching.bounds(block_pass.whole)
    return [(start - first, stop - first) for start, stop in bounds if first <= start < end]
