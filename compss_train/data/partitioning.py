"""Partitioning: which worker trains on which samples in which round.

It is a pure function of sizes, seed and epoch. Block passes are assigned to workers round-robin
within an epoch. In a partial shuffle each worker gets an equal run of consecutive rows instead,
with parts of blocks at its ends. A *round* is the training between two merges: n epochs, n blocks a
worker within an epoch (in a partial shuffle: as many samples as n blocks have on average), n
batches a worker, or the whole fit. Rounds of batches do not change the batches: a worker trains the
same ones as in a round of whole epochs.
"""

from collections.abc import Callable, Iterator
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
"""The number of units between two merges, or a function of the epoch, counted from 0, that returns
it; else 1.
"""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A point between two rounds of a fit, from which any number of workers can resume it."""

    epoch: int
    """Completed epochs, including those of earlier fits."""
    units: int = 0
    """Trained units of the next epoch: blocks, or batches, or equal parts of the epoch in a partial
    shuffle.
    """
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
    """The part of the epoch that each worker trains, by its own batches; empty for a round of whole
    epochs.
    """
    draws: tuple[Draws | None, ...] = ()
    """Each worker's draws from a buffer that merges do not empty; the assignments are what workers
    put into it.
    """

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
    """For a buffer that merges by batches do not empty. An epoch must then end with the workers
    that began it.
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
        epochs = range(self.start.epoch, self.stop)
        trained = (
            self._units(start.epoch, start.cut_for)[: start.units] if start.units and epochs else []
        )
        trained_samples = sum(block_pass.size for unit in trained for block_pass in unit)
        passes = 1 if self.put_counts is None else len(self.put_counts([1]))
        return passes * sum(self.sizes) * len(epochs) - trained_samples

    def _rounds_of_epochs(
        self, epochs: range, numbers: Iterator[int], is_over: Callable[[], bool]
    ) -> Iterator[Round]:
        """Iterate over rounds that each consist of whole epochs."""
        for own in epochs_of_rounds(epochs, self.merge_every):
            planned: list[list[WorkerAssignment]] = []
            for epoch in own:
                if is_over():
                    return
                planned.append(self._epoch_assignments(epoch, self.num_workers))
            assignments = tuple(
                tuple(chain.from_iterable(passes)) for passes in zip(*planned, strict=True)
            )
            yield Round(next(numbers), own.stop - 1, assignments, ResumePoint(own.stop))

    def _rounds_within_epochs(self, epochs: range, numbers: Iterator[int]) -> Iterator[Round]:
        """Iterate over rounds that are each a part of one epoch."""
        for epoch in epochs:
            start = self.start if epoch == self.start.epoch else ResumePoint(epoch)
            cut_for = start.cut_for or self.num_workers
            units = self._units(epoch, cut_for)
            counted = self._counted_batches(units)
            size = self.num_workers * (
                1 if self.shuffle == "partial" else units_between_merges(epoch, self.merge_every)
            )
            of_workers: list[WorkerAssignment] = []
            whole: list[Draws | None] = []
            if self.put_counts is not None:
                of_workers = self._epoch_assignments(epoch, self.num_workers)
                whole = [
                    Draws.of_epoch(own, self.batching, self.put_counts) if own else None
                    for own in of_workers
                ]
            for first in range(start.units, len(units), size):
                stop = first + size
                resume_point = (
                    ResumePoint(epoch, stop, cut_for)
                    if stop < len(units)
                    else ResumePoint(epoch + 1)
                )
                spans = tuple(self._spans(counted, first, min(stop, len(units))))
                draws = tuple(
                    each and each.part(first // cut_for, stop // cut_for) for each in whole
                )
                if draws:
                    both = zip(draws, of_workers, strict=True)
                    assignments = [each.put_of(own) if each else () for each, own in both]
                else:
                    of_round = (
                        units[first:stop][worker :: self.num_workers]
                        for worker in range(self.num_workers)
                    )
                    assignments = [join_parts(chain.from_iterable(own)) for own in of_round]
                yield Round(next(numbers), epoch, tuple(assignments), resume_point, spans, draws)

    def _counted_batches(self, units: list[WorkerAssignment]) -> list[int]:
        """Return a zero for each worker, then for each unit the number of its worker's batches up
        to its end.
        """
        is_batch = self.merge_unit == "batches" and self.shuffle != "partial"
        counted = [0] * self.num_workers
        for number, unit in enumerate(units):
            batches = bool(unit) if is_batch else len(batch_sizes(unit, self.batching))
            counted.append(counted[number] + batches)
        return counted

    def _spans(self, counted: list[int], first: int, stop: int) -> Iterator[Span]:
        """Iterate over the workers' spans of a round from unit ``first`` to ``stop``.

        Units before the round count for the worker that would have had them with this number of
        workers.
        """
        for worker in range(first, first + self.num_workers):
            ends = (first, stop, len(counted) - self.num_workers)
            before, after, total = (
                counted[end + (worker - end) % self.num_workers] for end in ends
            )
            yield Fraction(before, total or 1), Fraction(after, total or 1)

    def _units(self, epoch: int, workers: int) -> list[WorkerAssignment]:
        """Return the units of an epoch's rounds, in the order in which they are assigned to workers
        round-robin.

        A unit is a block pass; or a batch, empty for workers that have run out of them; or, in a
        partial shuffle, an equal part of the epoch, one for each worker and round.
        """
        if self.shuffle == "partial":
            every = units_between_merges(epoch, self.merge_every)
            if self.merge_unit == "blocks":
                rounds = -(-len(self.sizes) // (workers * every))
            else:
                of_workers = self._equal_parts(epoch, workers)
                rounds = -(
                    -max(len(batch_sizes(part, self.batching)) for part in of_workers) // every
                )
            parts = self._equal_parts(epoch, rounds * workers)
            return [part for number in range(rounds) for part in parts[number::rounds]]
        if self.merge_unit == "batches":
            batches = map(self._batches, self._epoch_assignments(epoch, workers))
            return list(chain.from_iterable(zip_longest(*batches, fillvalue=())))
        return [(block_pass,) for block_pass in self._block_passes(epoch)]

    def _batches(self, assignment: WorkerAssignment) -> list[WorkerAssignment]:
        """Return the batches of a worker's epoch; with a buffer, the batches drawn if it preserved
        the order.
        """
        if self.put_counts is not None:
            bounds = pairwise(accumulate(batch_sizes(assignment, self.batching), initial=0))
            return [cut_assignment(assignment, start, stop) for start, stop in bounds] * len(
                self.put_counts([1])
            )
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
                BlockPass(block, epoch, b - a, order[a:b]) for block, (a, b) in enumerate(bounds)
            ]
        blocks: list[int] | range = range(len(self.sizes))
        if self.shuffle == "blocks":
            blocks = block_order(self.seed, epoch, len(self.sizes))
        return [BlockPass(block, epoch, self.sizes[block]) for block in blocks]


def epochs_of_rounds(epochs: range, merge_every: MergeEvery) -> Iterator[range]:
    """Iterate over the epochs of each round that consists of whole epochs; 0 stands for one
    round.
    """
    start = epochs.start
    while start < epochs.stop:
        stop = min(start + (units_between_merges(start, merge_every) or len(epochs)), epochs.stop)
        yield range(start, stop)
        start = stop


def units_between_merges(epoch: int, merge_every: MergeEvery) -> int:
    """Return the number of units between merges; raise ``ValueError`` if a function returns less
    than 1.
    """
    if callable(merge_every):
        return check_count(f"every({epoch})", merge_every(epoch))
    return 1 if merge_every is None else merge_every
