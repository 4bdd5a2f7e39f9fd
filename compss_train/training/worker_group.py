"""``WorkerGroup``: the workers of a fit, and the tasks of its rounds (``RoundTasks``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train.data.block_passes import WorkerAssignment, blocks_of
from compss_train.data.order import split_points
from compss_train.data.partitioning import Round
from compss_train.data.pieces import Pieces, cut_into_pieces
from compss_train.data.reading import FilePart
from compss_train.engines import Engine, Ref, Resources
from compss_train.model.lr_schedules import LrSchedule, TimedHyperparameters
from compss_train.training.published_data import PublishedData
from compss_train.training.training_state import States, state_refs
from compss_train.worker import (
    GroupState,
    Reading,
    Step,
    Work,
    split_rows,
    train_alone,
    train_group,
)

LEAST_CHUNKS = 16
"""In at least so many tasks blocks are cut, so that a task has a sixteenth of the data in memory at most."""

MOST_PIECES = 64
"""On average a worker receives at most so many pieces, as long as there are not fewer chunks than these."""

Inputs: TypeAlias = tuple[Sequence[WorkerAssignment], Reading, Sequence[Ref]]
"""What a task on some workers receives: the assignment of each, in pieces with other numbers of samples; how they
read; blocks of x, then of y and of weights, or pieces, which are used in one round only."""


@dataclass(kw_only=True)
class WorkerGroup:
    """The workers of one fit."""

    engine: Engine
    training_spec: Ref
    data: PublishedData
    reading: Reading
    step: Step
    resources: Resources
    devices: list[str]
    groups: list[range]
    """The workers that train in one task, one after another."""
    states: list[GroupState | Ref]
    """The states of each group, replaced by a reference to new ones whenever it trains. Old ones are kept until
    ``free_states``, as a fit that is stopped returns to them."""
    schedule: LrSchedule | None = None
    traced: Callable[[int], Collection[int]] = lambda number: ()
    """Returns the workers that are traced in a round."""
    next_round: Round | None = None
    """The round after the one whose tasks are submitted."""
    _tasks: RoundTasks | None = field(default=None, repr=False)
    """The tasks of the round that is submitted."""

    def train(self, group: int, round_: Round, parameters: Ref, moments: Ref | None) -> Ref:
        """Submit the training of a group in a round; return a reference to its sum.

        ``moments`` are those that a worker without a state of its own starts from.
        """
        (result,) = self._submit(train_group, 2, group, round_, parameters, moments)
        return result

    def train_alone(
        self,
        group: int,
        round_: Round,
        parameters: Ref,
        moments: Ref | None,
        task: Callable[..., Any] = train_alone,
        *more: Any,
    ) -> tuple[Ref, Ref]:
        """Submit the training of the only active worker of a group; return its result and its measurements.

        ``task`` is the function that trains, and ``more`` are further arguments.
        """
        result, measured = self._submit(task, 3, group, round_, parameters, moments, *more)
        return result, measured

    def _submit(
        self, task: Callable[..., Any], returns: int, group: int, round_: Round, parameters: Ref, *more: Any
    ) -> list[Ref]:
        """Submit the task of a group, and keep the states that it returns; return its other results."""
        if self._tasks is None or self._tasks.round is not round_:
            # Tasks check the outputs of the network in the first round of the fit.
            self._tasks = RoundTasks(self, round_, check_outputs=self._tasks is None)
        values, works = self._tasks.of(group)
        args = self.training_spec, parameters, self.states[group], values, works, *more
        result, self.states[group], *others = self.engine.submit(
            task, *args, returns=returns, resources=self.resources
        )
        if self._tasks.once:
            self.engine.delete(values)
        return [result, *others]

    def active(self, group: int, round_: Round) -> list[int]:
        """Return the workers of a group that have samples in a round."""
        return [worker for worker in self.groups[group] if round_.counts[worker]]

    def free_states(self, before: States, after: States) -> None:
        """Free the states that are no longer used."""
        kept = {id(state) for state in state_refs(after)}
        self.engine.delete([state for state in state_refs(before) if id(state) not in kept])


class RoundTasks:
    """What the tasks of a round receive, by groups of workers.

    In a total shuffle the tasks that cut blocks into pieces are submitted.
    """

    def __init__(self, workers: WorkerGroup, round_: Round, *, check_outputs: bool) -> None:
        self.round = round_
        self._workers, self._data, self._reading = workers, workers.data, workers.reading
        self._hyperparameters: dict[Any, dict[int, TimedHyperparameters]] = {}
        traced = frozenset(workers.traced(round_.number))
        self._step = replace(workers.step, round=round_.number, check_outputs=check_outputs, traced=traced)
        first = next(filter(None, round_.assignments), ())
        self._shuffled = bool(first) and first[0].samples is not None
        self._pieces: list[Inputs] = []
        if self._shuffled and not self._data.mapped:
            self._pieces = self._cut()

    @property
    def once(self) -> bool:
        """Whether the values are used in one task only."""
        return bool(self._pieces)

    def of(self, group: int) -> tuple[Sequence[Ref], list[Work]]:
        """Return the values that the task of a group receives, and the work of its workers."""
        active = self._workers.active(group, self.round)
        ahead = {worker: self._upcoming(worker) for worker in active} if self._data.read_ahead else {}
        assignments, reading, values = self._inputs(group, [*chain.from_iterable(ahead.values())])
        first, schedule, works = self._workers.groups[group].start, self._workers.schedule, []
        for worker in active:
            block_passes = assignments[worker - first]
            device = self._workers.devices[worker]
            draws = self.round.draws[worker] if self.round.draws else None
            timed = None if schedule is None else self._timed(schedule, worker, block_passes)
            upcoming = ahead.get(worker, ())
            works.append(
                Work(block_passes, reading, self._step, worker, worker - first, device, draws, timed, upcoming)
            )
        return values, works

    def _upcoming(self, worker: int) -> tuple[int, ...]:
        """Return the first files that a worker needs in the next round, as many as it may read ahead."""
        next_round = self._workers.next_round
        blocks = blocks_of(next_round.assignments[worker]) if next_round else ()
        return blocks[: self._data.read_ahead]

    def _timed(
        self, schedule: LrSchedule, worker: int, assignment: WorkerAssignment
    ) -> dict[int, TimedHyperparameters]:
        """Return the hyperparameters of a worker by epoch; many workers have the same."""
        epochs = {block_pass.epoch for block_pass in assignment} or {self.round.epoch - 1}
        span = self.round.span(worker)
        key = frozenset(epochs), span
        if key not in self._hyperparameters:
            self._hyperparameters[key] = {epoch: schedule.during(epoch, *span) for epoch in sorted(epochs)}
        return self._hyperparameters[key]

    def _inputs(self, group: int, upcoming: Sequence[int]) -> Inputs:
        """Return the inputs of a group; ``upcoming`` are the first files of its workers' next tasks."""
        if self._pieces:
            return self._pieces[group]
        assignments = self._share(group)
        numbers = (
            self._data.holding(_samples_of(assignments))
            if self._shuffled
            else blocks_of(chain.from_iterable(assignments))
        )
        x, others = self._data.select(numbers, upcoming)
        if isinstance(x, FilePart):
            return assignments, replace(self._reading, blocks=numbers, files=x), ()
        starts = tuple([self._data.starts[number] for number in numbers]) if self._shuffled else ()
        return assignments, replace(self._reading, blocks=numbers, starts=starts), [*x, *others]

    def _share(self, group: int) -> Sequence[WorkerAssignment]:
        workers = self._workers.groups[group]
        return self.round.assignments[workers.start : workers.stop]

    def _cut(self) -> list[Inputs]:
        """Submit tasks that cut blocks into pieces; return the inputs of each group.

        Nothing is cut if the groups need more than half of all samples, as in a round of several epochs: the pieces
        would be many copies of the data.
        """
        shares = [self._share(group) for group in range(len(self._workers.groups))]
        samples = [_samples_of(share) for share in shares]
        chunks = self._chunks(len(shares))
        cut = cut_into_pieces(samples, [self._data.starts[chunk.start] for chunk in chunks])
        if 2 * cut.rows > sum(map(bool, map(len, samples))) * sum(self._data.sizes):
            return []
        refs: list[list[Ref]] = [[] for _ in shares]
        sizes: list[list[int]] = [[] for _ in shares]
        for chunk, pieces in zip(chunks, cut.chunks, strict=True):
            made = self._split(chunk, pieces)
            for group, ref, size in zip(pieces.groups, made, np.diff(pieces.bounds).tolist(), strict=True):
                refs[group].append(ref)
                sizes[group].append(size)
        return [
            (
                _renumbered(share, numbers),
                replace(self._reading, starts=tuple(accumulate(lengths[:-1], initial=0)) if lengths else ()),
                values,
            )
            for share, numbers, values, lengths in zip(shares, cut.numbers, refs, sizes, strict=True)
        ]

    def _chunks(self, groups: int) -> list[range]:
        """Return the blocks that each task cuts: enough tasks for all places, but no pieces without number."""
        blocks, places = len(self._data.sizes), self._workers.engine.places(Resources())
        most = max(LEAST_CHUNKS, MOST_PIECES * len(self.round.assignments) // groups)
        number = min(blocks, max(LEAST_CHUNKS, 2 * places), most)
        return [range(*bounds) for bounds in pairwise(split_points(blocks, number))]

    def _split(self, chunk: range, pieces: Pieces) -> list[Ref]:
        if not pieces.groups:
            return []
        x, others = self._data.select(chunk)
        first, number = self._data.starts[chunk.start], len(pieces.groups)
        starts = [self._data.starts[block] - first for block in chunk]
        made = self._workers.engine.submit(
            split_rows, [*x, *others], starts, pieces.rows, pieces.bounds, returns=number
        )
        return list(made) if number > 1 else [made]


def _samples_of(assignments: Iterable[WorkerAssignment]) -> NDArray[Any]:
    """Return the numbers of the samples that a total shuffle gives to workers, in their order."""
    passes = chain.from_iterable(assignments)
    samples = [block_pass.samples for block_pass in passes if block_pass.samples is not None]
    if len(samples) == 1:
        return samples[0]
    return np.concatenate(samples) if samples else np.empty(0, np.int64)


def _renumbered(assignments: Sequence[WorkerAssignment], numbers: NDArray[Any]) -> list[WorkerAssignment]:
    """Return the assignments of workers that have samples, with these numbers in place of those of the samples."""
    renumbered, start = [], 0
    for assignment in assignments:
        passes = []
        for block_pass in assignment:
            passes.append(block_pass.with_samples(numbers[start : start + block_pass.size]))
            start += block_pass.size
        renumbered.append(tuple(passes))
    return renumbered
