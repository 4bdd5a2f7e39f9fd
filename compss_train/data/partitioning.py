"""Partitioning: which worker trains on which samples in which round, a pure function of sizes, seed
and epoch.

A *block pass* is one pass over the samples of one block. Block passes are assigned to workers
round-robin within an epoch. In a partial shuffle each worker gets an equal run of consecutive rows
instead, with parts of blocks at its ends. A *round* is the training between two merges: n epochs, n
blocks a worker within an epoch (in a partial shuffle: as many samples as n blocks have on average),
n batches a worker, or the whole fit. Rounds of batches do not change the batches: a worker trains
the same ones as in a round of whole epochs. Several workers may share a task: those of an aligned
range, whose results are one node of the tree of ``weighted_mean``.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain, count, pairwise, zip_longest
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from compss_train._utils import PickledByFields
from compss_train._utils.validation import check_count
from compss_train.data.order import block_order, even_parts, partition_files, sample_order

Shuffle = Literal["blocks", "total", "partial"] | None
MergeUnit = Literal["epochs", "blocks", "batches"]

MergeEvery: TypeAlias = int | Callable[[int], int] | None
"""The number of units between two merges, or a function of the epoch, counted from 0, that returns
it; else 1.
"""


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
    rest: int = 0
    """Number of samples that the whole pass trains after this part of it."""

    @property
    def start(self) -> int:
        """Number of the first sample in the order in which the block is trained."""
        return self.first + self.skip

    @property
    def whole(self) -> int:
        """Number of samples in the whole pass, which this is a part of."""
        return self.skip + self.size + self.rest

    def part(self, start: int, stop: int) -> Self:
        """Return the part with samples ``start`` to ``stop`` of this pass, in the order of
        training.
        """
        return replace(
            self,
            size=stop - start,
            sample_numbers=None if self.sample_numbers is None else self.sample_numbers[start:stop],
            skip=self.skip + start,
            rest=self.rest + self.size - stop,
        )


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
        return even_parts(rows, min(self.number or -(-rows // (self.size or rows)), rows))


def batch_sizes(block_passes: WorkerAssignment, batching: Batching) -> list[int]:
    """Return the sizes of the batches that hold every sample of these passes once.

    Sizes differ by one at most. With a fixed number of batches a block, their total is the same as
    block by block.
    """
    samples = sum(block_pass.size for block_pass in block_passes)
    if not samples:
        return []
    joint = (
        batching
        if batching.number is None
        else replace(batching, number=batching.number * len(block_passes))
    )
    return [stop - start for start, stop in joint.bounds(samples)]


def batch_bounds(block_pass: BlockPass, batching: Batching) -> list[tuple[int, int]]:
    """Return (start, stop) of each batch of a pass, or of a part that consists of whole batches."""
    skip = block_pass.skip
    bounds = batching.bounds(block_pass.whole)
    return [
        (start - skip, stop - skip) for start, stop in bounds if 0 <= start - skip < block_pass.size
    ]


def cut_assignment(assignment: WorkerAssignment, start: int, stop: int) -> WorkerAssignment:
    """Return the parts of the passes with samples ``start`` to ``stop`` of all passes, in the order
    of training.
    """
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
        last = runs[-1][-1] if runs else None
        if last and (last.block, last.epoch, last.skip + last.size) == (
            part.block,
            part.epoch,
            part.skip,
        ):
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
"""Given the sizes of the batches that hold a worker's samples, how many samples are put before each
draw.

A buffer that gives every sample several times draws that many times more batches, with a count for
each.
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
    """For each batch, how many samples of the epoch are in the buffer's input before it is
    drawn.
    """
    drawn: int = 0
    """Samples of the epoch in the batches before these."""
    put_before: int = 0
    """How many samples of the epoch were put for the batches before these."""
    is_first: bool = True
    """Whether the first of these batches is the first one of the epoch."""
    is_last: bool = True
    """Whether the last of these batches is the last one of the epoch."""

    @classmethod
    def of_epoch(
        cls, assignment: WorkerAssignment, batching: Batching, put_counts: PutCounts
    ) -> Self:
        """Return the draws of all batches of a worker's passes over the blocks of one epoch."""
        sizes = tuple(batch_sizes(assignment, batching))
        first = assignment[0]
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
        """Return the draws of the epoch's batches ``first`` to ``stop``; the range may exceed the
        epoch.
        """
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
        """Return the parts of a worker's passes over the epoch whose samples are put for these
        batches.
        """
        return cut_assignment(assignment, self.put_before, self.puts[-1]) if self.puts else ()


WHOLE_BLOCKS = Batching(number=1)
"""Every block is one batch."""


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


def singles(workers: range) -> list[range]:
    """Return a range for each worker."""
    return [range(worker, worker + 1) for worker in workers]


def aligned_ranges(workers: int, slots: int, smallest: int = 1) -> list[range]:
    """Return ranges of workers, each a node of the tree of ``weighted_mean``, for tasks that slots
    share evenly.

    ``smallest`` is a power of two: the minimum number of workers in every range but the last. The
    first tasks are the largest: each has about a third of a slot's share of the remaining workers
    (guided self-scheduling, Polychronopoulos and Kuck 1987), rounded down to a power of two. A slow
    slot then runs fewer tasks. With a third, one of two slots may be four times slower than the
    other and start with the largest task, and the round still takes no longer than their combined
    speed allows, apart from the last task. With a half it would take a quarter longer.
    """
    ranges = []
    start = 0
    while start < workers:
        share = (workers - start) // (3 * slots)
        size = max(smallest, 1 << (max(1, share).bit_length() - 1))
        ranges.append(range(start, min(start + size, workers)))
        start += size
    return ranges


SLACK = 1.05
"""How much longer a round may take than with the best ranges, so that slower slots run fewer
tasks.
"""


def ranges_for_costs(
    workers: int, slots: int, worker_seconds: float, task_seconds: float
) -> list[range]:
    """Return aligned ranges for workers of ``worker_seconds`` each, in tasks with an overhead of
    ``task_seconds``.

    They are the smallest ranges with which a round takes at most ``SLACK`` times as long as with
    the best ones, if all slots are equally fast: one range a slot where workers take less time than
    the overhead. Without any slots, each range is one worker.
    """
    if not slots:
        return singles(range(workers))
    largest = -(-workers // slots) - 1
    choices = [
        aligned_ranges(workers, slots, 1 << power) for power in range(largest.bit_length() + 1)
    ]
    times = []
    for ranges in choices:
        idle_at = [0.0] * slots  # each takes the next range as soon as it is idle
        for each in ranges:
            heapq.heapreplace(idle_at, idle_at[0] + task_seconds + len(each) * worker_seconds)
        times.append(max(idle_at))
    return next(
        ranges
        for ranges, seconds in zip(choices, times, strict=True)
        if seconds <= SLACK * min(times)
    )
