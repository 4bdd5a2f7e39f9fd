"""Partitioning: which worker trains on which samples in which round, a pure function of sizes, seed and epoch.

A *block pass* is one pass over the samples of one block. Block passes are assigned to workers round-robin within an
epoch. In a partial shuffle each worker gets an equal run of consecutive rows instead, with parts of blocks at its
ends. A *round* is the training between two merges: n epochs, n blocks a worker within an epoch (in a partial
shuffle: as many samples as n blocks have on average), or the whole fit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain, pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train.data.order import block_order, sample_order
from compss_train.data.row_ranges import partition_files

Shuffle = Literal["blocks", "total", "partial"] | None
MergeUnit = Literal["epochs", "blocks"]


@dataclass(frozen=True, slots=True, eq=False)
class BlockPass:
    """One pass over the samples of one block, or of a part of it."""

    block: int
    """Number of the block, or of the position in the grid to which a total shuffle moves these samples."""
    epoch: int
    size: int
    """Number of samples in this pass."""
    samples: NDArray[Any] | None = None
    """Numbers of the samples among the samples of all blocks; ``None`` for the block's own rows."""
    first: int = 0
    """First row of the block in this pass."""


WorkerAssignment: TypeAlias = tuple[BlockPass, ...]
"""The block passes of one worker in one round."""


@dataclass(frozen=True, slots=True)
class Position:
    """A point between two rounds of a fit, from which any number of workers can resume it."""

    epoch: int
    """Completed epochs, including those of earlier fits."""
    units: int = 0
    """Trained units of the next epoch: blocks, or equal parts of the epoch in a partial shuffle."""
    cut_for: int = 0
    """Number of workers for which the current epoch was partitioned; 0 at the start of an epoch."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What every worker trains between two merges."""

    number: int
    epoch: int
    """Number of the last epoch in this round, counted from 1."""
    assignments: tuple[WorkerAssignment, ...]
    """One for each worker; empty for a worker without samples."""
    end_position: Position
    """Where the next round begins."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Samples of each worker."""
        return tuple(sum(block_pass.size for block_pass in assignment) for assignment in self.assignments)


_RoundContent: TypeAlias = tuple[int, tuple[WorkerAssignment, ...], Position]
"""The last epoch of a round, counted from 0, the workers' assignments, and the position after the round."""


@dataclass(frozen=True)
class RoundPlan:
    """All rounds of a fit. ``first_epoch`` and ``first_round`` continue the numbering of an earlier fit.

    With a ``start``, ``first_round`` is the number of the round that begins there.
    """

    sizes: tuple[int, ...]
    num_workers: int
    num_epochs: int
    seed: int
    _: KW_ONLY
    shuffle: Shuffle = "blocks"
    merge_every: int = 1
    merge_unit: MergeUnit = "epochs"
    first_epoch: int = 0
    first_round: int = 0
    start: Position | None = None

    def rounds(self) -> Iterator[Round]:
        """Iterate over the rounds; the order of an epoch is computed when the epoch is reached."""
        splits_epochs = self.merge_unit == "blocks" and self.merge_every
        contents = self._rounds_within_epochs() if splits_epochs else self._rounds_of_epochs()
        for number, (epoch, assignments, end_position) in enumerate(contents, self.first_round):
            yield Round(number, epoch + 1, assignments, end_position)

    @property
    def samples(self) -> int:
        """Number of samples to train on; each counts once an epoch."""
        start = self._start
        trained = self._units(start.epoch, start.cut_for)[: start.units] if start.units and self._epochs else []
        trained_samples = sum(block_pass.size for unit in trained for block_pass in unit)
        return sum(self.sizes) * len(self._epochs) - trained_samples

    @property
    def _start(self) -> Position:
        return self.start or Position(self.first_epoch)

    @property
    def _epochs(self) -> range:
        return range(self._start.epoch, self.first_epoch + self.num_epochs)

    def _rounds_of_epochs(self) -> Iterator[_RoundContent]:
        """Iterate over rounds that each consist of whole epochs."""
        for epochs in _consecutive_ranges(self._epochs, self.merge_every or self.num_epochs):
            assignments = _join_assignments([self._epoch_assignments(epoch) for epoch in epochs])
            yield epochs[-1], assignments, Position(epochs.stop)

    def _rounds_within_epochs(self) -> Iterator[_RoundContent]:
        """Iterate over rounds that each are a part of one epoch."""
        for epoch in self._epochs:
            start = self._start if epoch == self._start.epoch else Position(epoch)
            cut_for = start.cut_for or self.num_workers
            units = self._units(epoch, cut_for)
            size = self.num_workers * (1 if self.shuffle == "partial" else self.merge_every)
            for first in range(start.units, len(units), size):
                is_last = first + size >= len(units)
                end_position = Position(epoch + 1) if is_last else Position(epoch, first + size, cut_for)
                yield epoch, self._assign(units[first : first + size]), end_position

    def _units(self, epoch: int, workers: int) -> list[WorkerAssignment]:
        """Return the units of an epoch's rounds, in the order in which they are assigned to workers round-robin.

        A unit is a block pass, or in a partial shuffle an equal part of the epoch, one for each worker and round.
        """
        if self.shuffle != "partial":
            return [(block_pass,) for block_pass in self._block_passes(epoch)]
        rounds = -(-len(self.sizes) // (workers * self.merge_every))
        parts = self._equal_parts(epoch, rounds * workers)
        return [part for number in range(rounds) for part in parts[number::rounds]]

    def _assign(self, units: list[WorkerAssignment]) -> tuple[WorkerAssignment, ...]:
        """Assign units to workers round-robin."""
        assigned = (units[worker :: self.num_workers] for worker in range(self.num_workers))
        return tuple(tuple(chain.from_iterable(of_worker)) for of_worker in assigned)

    def _epoch_assignments(self, epoch: int) -> list[WorkerAssignment]:
        if self.shuffle == "partial":
            return self._equal_parts(epoch, self.num_workers)
        return list(self._assign([(block_pass,) for block_pass in self._block_passes(epoch)]))

    def _equal_parts(self, epoch: int, number: int) -> list[WorkerAssignment]:
        """Return equal parts of the epoch's samples, each in the order of its files."""
        parts = partition_files(self.sizes, number, self.seed, epoch)
        return [tuple(BlockPass(rows.file, epoch, len(rows), first=rows.start) for rows in part) for part in parts]

    def _block_passes(self, epoch: int) -> list[BlockPass]:
        if self.shuffle == "total":
            return self._shuffled_block_passes(epoch)
        blocks: list[int] | range = range(len(self.sizes))
        if self.shuffle == "blocks":
            blocks = block_order(self.seed, epoch, len(self.sizes))
        return [BlockPass(block, epoch, self.sizes[block]) for block in blocks]

    def _shuffled_block_passes(self, epoch: int) -> list[BlockPass]:
        order = sample_order(self.seed, epoch, sum(self.sizes))
        bounds = pairwise(np.cumsum([0, *self.sizes]).tolist())
        return [
            BlockPass(block, epoch, stop - start, order[start:stop]) for block, (start, stop) in enumerate(bounds)
        ]


def _consecutive_ranges(numbers: range, size: int) -> Iterator[range]:
    for start in range(numbers.start, numbers.stop, size):
        yield range(start, min(start + size, numbers.stop))


def _join_assignments(epochs: list[list[WorkerAssignment]]) -> tuple[WorkerAssignment, ...]:
    """Return each worker's assignments of several epochs as one."""
    return tuple(tuple(chain.from_iterable(of_worker)) for of_worker in zip(*epochs, strict=True))


def unique_samples(assignment: WorkerAssignment) -> NDArray[Any]:
    """Return the numbers of the samples in an assignment, each once and in ascending order."""
    numbers = [block_pass.samples for block_pass in assignment if block_pass.samples is not None]
    return np.unique(np.concatenate(numbers))


def split_by_block(samples: NDArray[Any], starts: Sequence[int]) -> list[NDArray[Any]]:
    """Split ascending sample numbers into row numbers of each block; ``starts`` are the blocks' first samples."""
    bounds = [*np.searchsorted(samples, starts).tolist(), len(samples)]
    return [samples[low:high] - start for start, (low, high) in zip(starts, pairwise(bounds), strict=True)]


def renumber_samples(assignment: WorkerAssignment, samples: NDArray[Any]) -> WorkerAssignment:
    """Return the assignment with each sample number replaced by its index in the ascending ``samples``."""
    return tuple(
        replace(block_pass, samples=np.searchsorted(samples, block_pass.samples))
        if block_pass.samples is not None
        else block_pass
        for block_pass in assignment
    )
