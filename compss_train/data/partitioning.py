"""Partitioning: which worker trains on which samples in which round.

It is a pure function of sizes, seed and epoch. Block passes are assigned to workers round-robin
within an epoch. In a partial shuffle each worker gets an equal run of consecutive rows instead,
with parts of blocks at its ends. A *round* is the training between two merges: n epochs, n blocks a
worker within an epoch (in a partial shuffle: as many samples as n blocks have on average), n
batches a worker, or the whole fit. Rounds of batches do not change the batches: a worker trains the
same ones as in a round of whole epochs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain, count, pairwise, zip_longest
from typing import Literal, TypeAlias

import numpy as np

from compss_train._utils.validation import check_count
from compss_train.data.block_passes import (
    WHOLE_BLOCKS,
    Batching,
    BlockPass,
    WorkerAssignment,
    batch_sizes,
    cut_assignment,
    join_parts,
)
from compss_train.data.draws import Draws, PutCounts
from compss_train.data.order import block_order, partition_files, sample_order

Shuffle = Literal["blocks", "total", "partial"] | None
MergeUnit = Literal["epochs", "blocks", "batches"]

MergeEvery: TypeAlias = int | Callable[[int], int] | None
"""The number of units between two merges, or a function of the epoch, from 0, that returns it.

``None`` is 1.
"""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A point between two rounds of a fit, from which any number of workers can resume it."""

    epoch: int
    """Completed epochs, including those of earlier fits."""
    units: int = 0
    """Trained units of the next epoch: blocks, batches, or its parts in a partial shuffle."""
    cut_for: int = 0
    """Number of workers that the current epoch was partitioned for; 0 at the start of an epoch."""


Span: TypeAlias = tuple[Fraction, Fraction]
"""Start and end of a part of an epoch, as fractions from 0 to 1."""


@dataclass(frozen=True, eq=False)
class Round:
    """What every worker trains between two merges."""

    number: int
    last_epoch: int
    """Number of the last epoch in this round, from 0 over all fits."""
    assignments: tuple[WorkerAssignment, ...]
    """One for each worker; empty for a worker without samples."""
    resume_point: ResumePoint
    """Where the next round begins."""
    spans: tuple[Span, ...] = ()
    """The part of the epoch that each worker trains, by its batches; none where rounds are epochs.
    """
    draws: tuple[Draws | None, ...] = ()
    """Each worker's draws from a buffer that merges do not empty.

    The assignments are then what workers put into it.
    """

    @property
    def first_epoch(self) -> int:
        """Number of the epoch in which this round starts, from 0 over all fits."""
        drawn = [draws.epoch for draws in self.draws if draws is not None]
        passes = [assignment[0].epoch for assignment in self.assignments if assignment]
        return min(drawn or passes, default=self.last_epoch)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Samples of each worker."""
        if self.draws:
            return tuple(draws.samples if draws else 0 for draws in self.draws)
        return tuple(
            [sum([block_pass.size for block_pass in assignment]) for assignment in self.assignments]
        )


@dataclass(frozen=True)
class RoundPlan:
    """All rounds of a fit that are left, until the epoch ``stop``, counted over all fits."""

    sizes: tuple[int, ...]
    num_workers: int
    stop: int
    seed: int
    _: KW_ONLY
    start: ResumePoint = ResumePoint(0)
    """Where the next round begins."""
    first_round: int = 0
    """Number of this round."""
    shuffle: Shuffle = "blocks"
    batching: Batching = WHOLE_BLOCKS
    merge_every: MergeEvery = None
    merge_unit: MergeUnit = "epochs"
    put_counts: PutCounts | None = None
    """For a buffer that merges by batches do not empty.

    An epoch must then end with the workers that began it.
    """

    def rounds(self, is_over: Callable[[], bool] = lambda: False) -> Iterator[Round]:
        """Iterate over the rounds; the order of an epoch is computed when the epoch is reached.

        A round of many epochs takes long to plan: ``is_over`` is called for each epoch, and ends
        the iteration by returning ``True``.
        """
        epochs = range(self.start.epoch, self.stop)
        numbers = count(self.first_round)
        if self.merge_unit == "epochs" or self.merge_every == 0:
            return self._rounds_of_epochs(epochs, numbers, is_over)
        return self._rounds_within_epochs(epochs, numbers)

    @property
    def samples_left(self) -> int:
        """Number of samples to train on, each counted as often as it is drawn in an epoch."""
        start = self.start
        epochs = range(start.epoch, self.stop)
        trained_samples = 0
        if start.units and epochs:
            trained_units = self._units(start.epoch, start.cut_for)[: start.units]
            trained_samples = sum(block_pass.size for unit in trained_units for block_pass in unit)
        return self._draws_of_sample * sum(self.sizes) * len(epochs) - trained_samples

    @property
    def _draws_of_sample(self) -> int:
        """How often a sample is drawn in an epoch."""
        return 1 if self.put_counts is None else len(self.put_counts([1]))

    def _rounds_of_epochs(
        self, epochs: range, numbers: Iterator[int], is_over: Callable[[], bool]
    ) -> Iterator[Round]:
        """Iterate over rounds that each consist of whole epochs."""
        for epochs_of_round in epochs_of_rounds(epochs, self.merge_every):
            planned: list[list[WorkerAssignment]] = []
            for epoch in epochs_of_round:
                if is_over():
                    return
                planned.append(self._epoch_assignments(epoch, self.num_workers))
            end = epochs_of_round.stop
            yield Round(
                number=next(numbers),
                last_epoch=end - 1,
                assignments=tuple(
                    tuple(chain.from_iterable(passes)) for passes in zip(*planned, strict=True)
                ),
                resume_point=ResumePoint(end),
            )

    def _rounds_within_epochs(self, epochs: range, numbers: Iterator[int]) -> Iterator[Round]:
        """Iterate over rounds that are each a part of one epoch."""
        for epoch in epochs:
            start = self.start if epoch == self.start.epoch else ResumePoint(epoch)
            cut_for = start.cut_for or self.num_workers
            units = self._units(epoch, cut_for)
            batches_before = self._batches_before_units(units)
            units_of_round = self.num_workers
            if self.shuffle != "partial":
                units_of_round *= units_between_merges(epoch, self.merge_every)
            epoch_draws: list[Draws | None] = []
            epoch_assignments: list[WorkerAssignment] = []
            if self.put_counts is not None:
                epoch_assignments = self._epoch_assignments(epoch, self.num_workers)
                epoch_draws = [
                    _draws_of_epoch(assignment, self.batching, self.put_counts)
                    for assignment in epoch_assignments
                ]
            for first in range(start.units, len(units), units_of_round):
                stop = first + units_of_round
                resume_point = ResumePoint(epoch + 1)
                if stop < len(units):
                    resume_point = ResumePoint(epoch, stop, cut_for)
                draws = tuple(
                    worker_draws and worker_draws.part(first // cut_for, stop // cut_for)
                    for worker_draws in epoch_draws
                )
                if draws:
                    assignments = _put_by_workers(draws, epoch_assignments)
                else:
                    assignments = self._dealt(units[first:stop])
                yield Round(
                    number=next(numbers),
                    last_epoch=epoch,
                    assignments=assignments,
                    resume_point=resume_point,
                    spans=tuple(self._spans(batches_before, first, min(stop, len(units)))),
                    draws=draws,
                )

    def _dealt(self, units: list[WorkerAssignment]) -> tuple[WorkerAssignment, ...]:
        """Return the assignment of each worker, to which units are dealt round-robin."""
        return tuple(
            join_parts(chain.from_iterable(units[worker :: self.num_workers]))
            for worker in range(self.num_workers)
        )

    def _batches_before_units(self, units: list[WorkerAssignment]) -> list[int]:
        """Return, for each unit of an epoch, how many batches its worker trains before it.

        An entry for each worker follows, as if further units were dealt at the end of the epoch.
        """
        is_batch = self.merge_unit == "batches" and self.shuffle != "partial"
        batches_before = [0] * self.num_workers
        for number, unit in enumerate(units):
            batches = bool(unit) if is_batch else len(batch_sizes(unit, self.batching))
            batches_before.append(batches_before[number] + batches)
        return batches_before

    def _spans(self, batches_before: list[int], first: int, stop: int) -> Iterator[Span]:
        """Iterate over the workers' spans of a round from unit ``first`` to ``stop``.

        Units before the round count for the worker that would have had them with this number of
        workers.
        """
        end = len(batches_before) - self.num_workers
        for unit in range(first, first + self.num_workers):
            total = batches_before[self._next_unit(unit, end)] or 1
            after = batches_before[self._next_unit(unit, stop)]
            yield Fraction(batches_before[unit], total), Fraction(after, total)

    def _next_unit(self, unit: int, start: int) -> int:
        """Return the first unit from ``start`` on that the worker of ``unit`` gets."""
        return start + (unit - start) % self.num_workers

    def _units(self, epoch: int, workers: int) -> list[WorkerAssignment]:
        """Return the units of an epoch's rounds, in the order in which they are dealt to workers.

        A unit is a block pass; or a batch, empty for workers that have run out of them; or, in a
        partial shuffle, an equal part of the epoch, one for each worker and round.
        """
        if self.shuffle == "partial":
            rounds = self._rounds_of_partial_shuffle(epoch, workers)
            parts = self._equal_parts(epoch, rounds * workers)
            return [part for number in range(rounds) for part in parts[number::rounds]]
        if self.merge_unit == "batches":
            batches = map(self._batches, self._epoch_assignments(epoch, workers))
            return list(chain.from_iterable(zip_longest(*batches, fillvalue=())))
        return [(block_pass,) for block_pass in self._block_passes(epoch)]

    def _rounds_of_partial_shuffle(self, epoch: int, workers: int) -> int:
        every = units_between_merges(epoch, self.merge_every)
        if self.merge_unit == "blocks":
            return math.ceil(len(self.sizes) / (workers * every))
        parts = self._equal_parts(epoch, workers)
        return math.ceil(max(len(batch_sizes(part, self.batching)) for part in parts) / every)

    def _batches(self, assignment: WorkerAssignment) -> list[WorkerAssignment]:
        """Return the batches of a worker's epoch.

        With a buffer they are those that would be drawn if it preserved the order.
        """
        if self.put_counts is not None:
            bounds = pairwise(accumulate(batch_sizes(assignment, self.batching), initial=0))
            batches = [cut_assignment(assignment, start, stop) for start, stop in bounds]
            return batches * self._draws_of_sample
        return [
            (block_pass.part(start, stop),)
            for block_pass in assignment
            for start, stop in self.batching.bounds(block_pass.size)
        ]

    def _epoch_assignments(self, epoch: int, workers: int) -> list[WorkerAssignment]:
        if self.shuffle == "partial":
            return self._equal_parts(epoch, workers)
        passes = self._block_passes(epoch)
        return [tuple(passes[worker::workers]) for worker in range(workers)]

    def _equal_parts(self, epoch: int, number: int) -> list[WorkerAssignment]:
        """Return equal parts of the epoch's samples, each in the order of its files."""
        parts = partition_files(self.sizes, number, self.seed, epoch)
        return [
            tuple(BlockPass(rows.file, epoch, len(rows), first=rows.start) for rows in part)
            for part in parts
        ]

    def _block_passes(self, epoch: int) -> list[BlockPass]:
        if self.shuffle == "total":
            order = sample_order(self.seed, epoch, sum(self.sizes))
            bounds = pairwise(np.cumsum([0, *self.sizes]).tolist())
            return [
                BlockPass(block, epoch, stop - start, sample_numbers=order[start:stop])
                for block, (start, stop) in enumerate(bounds)
            ]
        blocks: list[int] | range = range(len(self.sizes))
        if self.shuffle == "blocks":
            blocks = block_order(self.seed, epoch, len(self.sizes))
        return [BlockPass(block, epoch, self.sizes[block]) for block in blocks]


def _draws_of_epoch(
    assignment: WorkerAssignment, batching: Batching, put_counts: PutCounts
) -> Draws | None:
    """Return a worker's draws, or ``None`` for a worker without samples."""
    return Draws.of_epoch(assignment, batching, put_counts) if assignment else None


def _put_by_workers(
    draws: Sequence[Draws | None], assignments: Sequence[WorkerAssignment]
) -> tuple[WorkerAssignment, ...]:
    """Return what each worker puts into its buffer for these draws of its epoch's assignment."""
    return tuple(
        worker_draws.put_of(assignment) if worker_draws else ()
        for worker_draws, assignment in zip(draws, assignments, strict=True)
    )


def epochs_of_rounds(epochs: range, merge_every: MergeEvery) -> Iterator[range]:
    """Iterate over the epochs of each round of whole epochs; ``merge_every=0`` is one round."""
    start = epochs.start
    while start < epochs.stop:
        stop = min(start + (units_between_merges(start, merge_every) or len(epochs)), epochs.stop)
        yield range(start, stop)
        start = stop


def units_between_merges(epoch: int, merge_every: MergeEvery) -> int:
    """Return the number of units between merges.

    Raises ``ValueError`` if a function returns less than 1.
    """
    if callable(merge_every):
        return check_count(f"every({epoch})", merge_every(epoch))
    return 1 if merge_every is None else merge_every
