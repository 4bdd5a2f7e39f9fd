"""``WorkerGroup``: the workers of a fit, and the tasks of its rounds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train.data.block_passes import WorkerAssignment, blocks_of
from compss_train.data.order import split_points
from compss_train.data.partitioning import Pieces, Round, cut_into_pieces
from compss_train.engines.base import Ref, Resources
from compss_train.model.schedule import TimedHyperparameters
from compss_train.model.weighted_mean import ranges_for_costs
from compss_train.training.trained_model import FitOfEpochs, TrainedModel
from compss_train.training.training_state import States, state_refs
from compss_train.training.workplace import Session
from compss_train.worker.batches import split_rows
from compss_train.worker.train import train_group
from compss_train.worker.work import Reading, Step, Work

LEAST_CHUNKS = 16
"""Minimum number of tasks that cut blocks, so that each holds at most a sixteenth of the data in memory."""

MOST_PIECES = 64
"""Maximum average number of pieces that a worker receives; ``LEAST_CHUNKS`` takes precedence."""

Inputs: TypeAlias = tuple[Sequence[WorkerAssignment], Reading, Sequence[Ref]]
"""What a task on some workers receives: each worker's assignment, with sample numbers relative to pieces if there
are any; how they read; and blocks of x, then of y and of weights, or pieces, which serve one round only."""


class WorkerGroup:
    """The workers of one fit, and the tasks of its rounds.

    Parameters
    ----------
    session:
        Holds the workers' devices and states. Whenever a group of workers trains, its state is replaced by a
        reference to a new one; old states are kept until ``free_states``, because a stopped fit returns to them.
    fit, model:
        What is trained on which samples, which are published.
    """

    def __init__(self, session: Session, fit: FitOfEpochs, model: TrainedModel) -> None:
        self._session, self._engine = session, session.engine
        self._regroup(fit)
        self.groups, self.states = session.groups, session.states
        """The workers that train in one task, one after another, and the states of each group."""
        self._schedule, self._callbacks = model.built.lr_schedule, fit.callbacks
        self.data = session.publish(fit.data)
        self._reading = fit.options.reading(fit.data, model.seed)
        merge, callbacks = fit.options.merge, fit.callbacks.in_workers
        self._step = Step(optimizer_state=merge.optimizer_state or "keep", dtype=merge.dtype, callbacks=callbacks)
        self._is_first = True

    def _regroup(self, fit: FitOfEpochs) -> None:
        """Let several workers share a task if a task costs more time than a worker trains."""
        source, options = fit.data, fit.options
        workers, resources, engine = len(self._session.devices), self._session.resources, self._engine
        sharing = min(source.shares(options.order), workers)
        # Each worker has its own task if it merges by itself, if sums would have more bytes than compressed
        # changes, and on GPUs, which workers share in another order.
        may_share = options.merge.kind == "synchronous" and options.merge.dtype is None and not resources.gpus
        places = engine.places(resources) if may_share else 0
        seconds = self._session.sample_seconds * options.worker_samples(source.sizes, sharing)
        active = ranges_for_costs(sharing, places, seconds, engine.traits.task_seconds)
        self._session.regroup([*active, *(range(n, n + 1) for n in range(sharing, workers))])

    def start(self, round_: Round) -> None:
        """Begin to submit the tasks of a round; in a total shuffle submit those that cut blocks into pieces."""
        traced = frozenset(self._callbacks.traced(round_.number))
        self._step = replace(self._step, round=round_.number, check_outputs=self._is_first, traced=traced)
        self.round, self._is_first = round_, False
        self._hyperparameters: dict[Any, dict[int, TimedHyperparameters]] = {}
        first = next(filter(None, round_.assignments), ())
        self._shuffled = bool(first) and first[0].samples is not None
        self._pieces: list[Inputs] = self._cut() if self._shuffled and not self.data.mapped else []

    def train(
        self,
        group: int,
        parameters: Ref,
        moments: Ref | None,
        *more: Any,
        task: Callable[..., Any] = train_group,
        returns: int = 2,
    ) -> list[Ref]:
        """Submit the training of a group, and keep the states that it returns; return its other results.

        ``moments`` are the optimizer moments that a worker without a state starts from. ``task`` is the function
        that trains, and takes ``more`` arguments; for a group's only active worker it also returns measurements.
        """
        values, works = self._task_of(group)
        args = self.data.training_spec, parameters, self.states[group], values, works, moments, *more
        result, self.states[group], *others = self._engine.submit(
            task, *args, returns=returns, resources=self._session.resources
        )
        if self._pieces:  # used by this task only
            self._engine.delete(values)
        return [result, *others]

    def active(self, group: int) -> list[int]:
        """Return the workers of a group that have samples in the round."""
        return [worker for worker in self.groups[group] if self.round.counts[worker]]

    def free_states(self, before: States, after: States) -> None:
        """Free the states that are no longer used."""
        kept = {id(state) for state in state_refs(after)}
        self._engine.delete([state for state in state_refs(before) if id(state) not in kept])

    def _task_of(self, group: int) -> tuple[Sequence[Ref], list[Work]]:
        """Return the values that the task of a group receives, and the work of its workers."""
        active = self.active(group)
        assignments, reading, values = self._inputs(group)
        first = self.groups[group].start
        works = [
            Work(
                block_passes=assignments[worker - first],
                reading=reading,
                step=self._step,
                worker=worker,
                position=worker - first,
                device=self._session.devices[worker],
                draws=self.round.draws[worker] if self.round.draws else None,
                hyperparameters=self._timed(worker),
            )
            for worker in active
        ]
        return values, works

    def _timed(self, worker: int) -> dict[int, TimedHyperparameters] | None:
        """Return the hyperparameters of a worker by epoch, shared by many workers; ``None`` without a schedule."""
        if self._schedule is None:
            return None
        epochs = {block_pass.epoch for block_pass in self.round.assignments[worker]} or {self.round.epoch - 1}
        span = self.round.span(worker)
        key = frozenset(epochs), span
        if key not in self._hyperparameters:
            self._hyperparameters[key] = {epoch: self._schedule.during(epoch, *span) for epoch in sorted(epochs)}
        return self._hyperparameters[key]

    def _inputs(self, group: int) -> Inputs:
        """Return the inputs of a group."""
        if self._pieces:
            return self._pieces[group]
        assignments = self._share(group)
        numbers = (
            self.data.holding(_samples_of(assignments))
            if self._shuffled
            else blocks_of(chain.from_iterable(assignments))
        )
        values, reading = self.data.inputs(self._reading, numbers)
        if self._shuffled:
            reading = replace(reading, starts=tuple([self.data.starts[number] for number in numbers]))
        return assignments, reading, values

    def _share(self, group: int) -> Sequence[WorkerAssignment]:
        workers = self.groups[group]
        return self.round.assignments[workers.start : workers.stop]

    def _cut(self) -> list[Inputs]:
        """Submit tasks that cut blocks into pieces; return the inputs of each group.

        Nothing is cut if the groups need more than half of all samples, as in a round of several epochs: the pieces
        would be many copies of the data.
        """
        shares = [self._share(group) for group in range(len(self.groups))]
        samples = [_samples_of(share) for share in shares]
        chunks = self._chunks(len(shares), len(self.round.assignments))
        pieces_of_chunks, numbers_of_groups = cut_into_pieces(
            samples, [self.data.starts[chunk.start] for chunk in chunks]
        )
        rows = sum(len(pieces.rows) for pieces in pieces_of_chunks)
        if 2 * rows > sum(map(bool, map(len, samples))) * self.data.source.number_samples:
            return []
        refs: list[list[Ref]] = [[] for _ in shares]
        sizes: list[list[int]] = [[] for _ in shares]
        for chunk, pieces in zip(chunks, pieces_of_chunks, strict=True):
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
            for share, numbers, values, lengths in zip(shares, numbers_of_groups, refs, sizes, strict=True)
        ]

    def _chunks(self, groups: int, workers: int) -> list[range]:
        """Return the blocks that each task cuts: enough tasks for all places, without too many pieces."""
        blocks, places = len(self.data.starts), self._engine.places(Resources())
        most = max(LEAST_CHUNKS, MOST_PIECES * workers // groups)
        number = min(blocks, max(LEAST_CHUNKS, 2 * places), most)
        return [range(*bounds) for bounds in pairwise(split_points(blocks, number))]

    def _split(self, chunk: range, pieces: Pieces) -> list[Ref]:
        if not pieces.groups:
            return []
        values, _ = self.data.inputs(self._reading, chunk)
        first, number = self.data.starts[chunk.start], len(pieces.groups)
        starts = [self.data.starts[block] - first for block in chunk]
        made = self._engine.submit(split_rows, values, starts, pieces.rows, pieces.bounds, returns=number)
        return list(made) if number > 1 else [made]


def _samples_of(assignments: Iterable[WorkerAssignment]) -> NDArray[Any]:
    """Return the numbers of the samples that a total shuffle gives to workers, in their order."""
    passes = chain.from_iterable(assignments)
    samples = [block_pass.samples for block_pass in passes if block_pass.samples is not None]
    if len(samples) == 1:
        return samples[0]
    return np.concatenate(samples) if samples else np.empty(0, np.int64)


def _renumbered(assignments: Sequence[WorkerAssignment], numbers: NDArray[Any]) -> list[WorkerAssignment]:
    """Return the assignments of the workers with samples, with ``numbers`` in place of the sample numbers."""
    renumbered, start = [], 0
    for assignment in assignments:
        passes = []
        for block_pass in assignment:
            passes.append(block_pass.with_samples(numbers[start : start + block_pass.size]))
            start += block_pass.size
        renumbered.append(tuple(passes))
    return renumbered
