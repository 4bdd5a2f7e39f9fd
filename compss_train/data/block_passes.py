"""Block passes: what a worker trains on, and the parts, batches and row numbers of such passes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Self, TypeAlias

import numpy as np

from compss_train.data.order import even_parts


@dataclass(frozen=True, slots=True, eq=False)
class BlockPass:
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
    rest: int = 0
    """Number of samples that the whole pass trains after this part of it."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields: the default for dataclasses with slots takes several times as long."""
        return type(self), _fields_of(self)

    @property
    def whole(self) -> int:
        """Number of samples in the whole pass, which this is a part of."""
        return self.skip + self.size + self.rest

    def part(self, start: int, stop: int) -> Self:
        """Return the part with samples ``start`` to ``stop`` of this pass, in the order of training."""
        return replace(
            self,
            size=stop - start,
            sample_numbers=None if self.sample_numbers is None else self.sample_numbers[start:stop],
            skip=self.skip + start,
            rest=self.rest + self.size - stop,
        )


_fields_of = attrgetter("block", "epoch", "size", "sample_numbers", "first", "skip", "rest")
WorkerAssignment: TypeAlias = tuple[BlockPass, ...]
"""The block passes of one worker in one round."""


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
        return even_parts(rows, min(number, rows))


def blocks_of(block_passes: Iterable[BlockPass]) -> tuple[int, ...]:
    """Return the numbers of the blocks in these passes, each once, in order of first use."""
    return tuple(dict.fromkeys([block_pass.block for block_pass in block_passes]))


def batch_sizes(block_passes: WorkerAssignment, batching: Batching) -> list[int]:
    """Return the sizes of the batches that hold every sample of these passes once.

    Sizes differ by one at most. With a fixed number of batches a block, their total is the same as block by block.
    """
    samples = sum(block_pass.size for block_pass in block_passes)
    if not samples:
        return []
    joint = batching if batching.number is None else replace(batching, number=batching.number * len(block_passes))
    return [stop - start for start, stop in joint.bounds(samples)]


def batch_bounds(block_pass: BlockPass, batching: Batching) -> list[tuple[int, int]]:
    """Return (start, stop) of each batch of a pass, or of a part that consists of whole batches."""
    skip, bounds = block_pass.skip, batching.bounds(block_pass.whole)
    return [(start - skip, stop - skip) for start, stop in bounds if 0 <= start - skip < block_pass.size]


def cut_assignment(assignment: WorkerAssignment, start: int, stop: int) -> WorkerAssignment:
    """Return the parts of the passes with samples ``start`` to ``stop`` of all passes, in the order of training."""
    parts = []
    for block_pass in assignment:
        low, high = max(start, 0), min(stop, block_pass.size)
        if low < high:
            parts.append(block_pass.part(low, high))
        start, stop = start - block_pass.size, stop - block_pass.size
    return tuple(parts)


def join_parts(parts: Iterable[BlockPass]) -> WorkerAssignment:
    """Return the passes with consecutive parts of the same pass as one part."""
    parts = tuple(parts)
    if len(parts) < 2:
        return parts
    runs: list[list[BlockPass]] = []
    for part in parts:
        last = runs[-1][-1] if runs else None
        if last and (last.block, last.epoch, last.skip + last.size) == (part.block, part.epoch, part.skip):
            runs[-1].append(part)
        else:
            runs.append([part])
    return tuple(run[0] if len(run) == 1 else _join_run(run) for run in runs)


def _join_run(parts: Sequence[BlockPass]) -> BlockPass:
    numbers = [part.sample_numbers for part in parts if part.sample_numbers is not None]
    return replace(
        parts[0],
        size=sum(part.size for part in parts),
        sample_numbers=np.concatenate(numbers) if numbers else None,
        rest=parts[-1].rest,
    )


PutCounts: TypeAlias = Callable[[Sequence[int]], Sequence[int]]
"""Given the sizes of the batches that hold a worker's samples, how many samples are put before each draw.

A buffer that gives every sample several times draws that many times more batches, with a count for each.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Batches that a worker draws from a buffer in an epoch, or in a round inside it.

    Merges inside an epoch do not empty the buffer, so that they do not change the batches.
    """

    epoch: int
    origin: int
    """The block of the first pass of the epoch, which determines the draws."""
    total: int
    """Samples of the worker in the epoch."""
    largest: int
    """Size of the largest batch of the epoch."""
    sizes: tuple[int, ...]
    """Sizes of the batches."""
    puts: tuple[int, ...]
    """For each batch, how many samples of the epoch are in the buffer's input before it is drawn."""
    drawn: int = 0
    """Samples of the epoch in the batches before these."""
    put_before: int = 0
    """How many samples of the epoch were put for the batches before these."""
    is_first: bool = True
    """Whether the first of these batches is the first one of the epoch."""
    is_last: bool = True
    """Whether the last of these batches is the last one of the epoch."""

    @classmethod
    def of_epoch(cls, assignment: WorkerAssignment, batching: Batching, put_counts: PutCounts) -> Self:
        """Return the draws of all batches of a worker's passes over the blocks of one epoch."""
        sizes, first = tuple(batch_sizes(assignment, batching)), assignment[0]
        puts = tuple(put_counts(sizes))
        return cls(
            epoch=first.epoch,
            origin=first.block,
            total=sum(sizes),
            largest=max(sizes),
            sizes=sizes * (len(puts) // len(sizes)),
            puts=puts,
        )

    def part(self, first: int, stop: int) -> Self:
        """Return the draws of the epoch's batches ``first`` to ``stop``; the range may exceed the epoch."""
        return replace(
            self,
            sizes=self.sizes[first:stop],
            puts=self.puts[first:stop],
            drawn=self.drawn + sum(self.sizes[:first]),
            put_before=self.puts[:first][-1] if first else 0,
            is_first=first == 0,
            is_last=stop >= len(self.sizes),
        )

    @property
    def samples(self) -> int:
        """Number of samples in these batches."""
        return sum(self.sizes)

    def put_of(self, assignment: WorkerAssignment) -> WorkerAssignment:
        """Return the parts of a worker's passes over the epoch whose samples are put for these batches."""
        return cut_assignment(assignment, self.put_before, self.puts[-1]) if self.puts else ()
