"""Submission of tasks: ``WorkerGroup`` for training, ``Inference`` for evaluation and prediction."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, rebuilt
from compss_train._utils.validation import warn_user
from compss_train.data.block_passes import WorkerAssignment, blocks_of
from compss_train.data.order import split_points
from compss_train.data.partitioning import Round
from compss_train.data.reading import FilePart
from compss_train.engines import Engine, Ref, Resources
from compss_train.model.lr_schedules import LrSchedule, TimedHyperparameters
from compss_train.model.measured import Measured
from compss_train.model.weighted_mean import ranges_for_costs
from compss_train.training.data_handles import DataHandles
from compss_train.training.group_states import States, state_refs
from compss_train.training.task_inputs import RoundInputs
from compss_train.worker import (
    GroupState,
    Reading,
    Step,
    Work,
    evaluate,
    predict,
    train_alone,
    train_group,
)

EVALUATION_BATCH = 1024
"""Samples in a batch of an evaluation or prediction."""


@dataclass(kw_only=True)
class WorkerGroup:
    """The workers of one fit."""

    engine: Engine
    training_spec: Ref
    data: DataHandles
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
    _tasks: "_RoundTasks | None" = field(default=None, repr=False)
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
            self._tasks = _RoundTasks(self, round_, check_outputs=self._tasks is None)
        values, works = self._tasks.of(group)
        args = self.training_spec, parameters, self.states[group], values, works, *more
        result, self.states[group], *others = self.engine.submit(
            task, *args, returns=returns, resources=self.resources
        )
        if self._tasks.inputs.once:
            self.engine.delete(values)
        return [result, *others]

    def active(self, group: int, round_: Round) -> list[int]:
        """Return the workers of a group that have samples in a round."""
        return [worker for worker in self.groups[group] if round_.counts[worker]]

    def free_states(self, before: States, after: States) -> None:
        """Free the states that are no longer used."""
        kept = {id(state) for state in state_refs(after)}
        self.engine.delete([state for state in state_refs(before) if id(state) not in kept])


class _RoundTasks:
    """What the tasks of a round receive, group by group."""

    def __init__(self, workers: WorkerGroup, round_: Round, *, check_outputs: bool) -> None:
        self.round = round_
        self._workers = workers
        self.inputs = RoundInputs(workers.engine, workers.data, workers.reading, workers.groups, round_)
        self._hyperparameters: dict[Any, dict[int, TimedHyperparameters]] = {}
        traced = frozenset(workers.traced(round_.number))
        self._step = replace(workers.step, round=round_.number, check_outputs=check_outputs, traced=traced)

    def of(self, group: int) -> tuple[Sequence[Ref], list[Work]]:
        """Return the values that the task of a group receives, and the work of its workers."""
        active = self._workers.active(group, self.round)
        ahead = {worker: self._upcoming(worker) for worker in active} if self._workers.data.read_ahead else {}
        assignments, reading, values = self.inputs.of(group, ahead.values())
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
        return blocks[: self._workers.data.read_ahead]

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


@dataclass(kw_only=True)
class Inference:
    """Submits the evaluation and prediction tasks of one data set."""

    engine: Engine
    training_spec: Ref
    data: DataHandles
    batch_size: int
    resources: Resources
    devices: list[str]
    seconds: float
    """Roughly as long as an evaluation of all samples takes a core."""
    _tasks: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict, repr=False)
    """Of an evaluation, the arguments of each task but the parameters; for a number of places."""

    @cached_property
    def _ranges(self) -> list[tuple[str, list[int]]]:
        """The blocks of each worker, with its device."""
        blocks = len(self.data.sizes)
        points = split_points(blocks, min(len(self.devices), blocks))
        pairs = zip(self.devices, pairwise(points), strict=False)
        return [(device, list(range(start, stop))) for device, (start, stop) in pairs]

    def evaluate(self, parameters: Ref) -> list[Ref]:
        """Submit the evaluation of these parameters; return references to lists of the workers' measurements."""
        places = 0 if self.resources.gpus else self.engine.places(self.resources)
        if places not in self._tasks:
            number = len(self._ranges)
            groups = ranges_for_costs(number, places, self.seconds / number, self.engine.traits.task_seconds)
            self._tasks = {places: [self._task_on(self._ranges[group.start : group.stop]) for group in groups]}
        first, tasks = (self.training_spec, parameters), self._tasks[places]
        return [self.engine.submit(evaluate, *first, *task, resources=self.resources) for task in tasks]

    def _task_on(self, parts: list[tuple[str, list[int]]]) -> tuple[Any, ...]:
        """Return the arguments of an evaluation task on the blocks or files of several workers."""
        xs, others = zip(*(self.data.select(numbers) for _, numbers in parts), strict=True)
        in_files = isinstance(xs[0], FilePart)
        return (
            list(xs if in_files else chain.from_iterable(xs)),
            list(chain.from_iterable(others)),
            [] if in_files else [len(numbers) for _, numbers in parts],
            self.batch_size,
            parts[0][0],
            self.data.structure,
        )

    def submit(
        self, function: Callable[..., Any], parameters: Ref, numbers: Sequence[int], work: Work, *more: Any
    ) -> Ref:
        """Submit a task on some blocks or files, on the first worker's device."""
        x, others = self.data.select(numbers)
        first = self.training_spec, parameters
        ref: Ref = self.engine.submit(
            function, *first, x, others, work._replace(device=self.devices[0]), *more, resources=self.resources
        )
        return ref

    def predict(self, parameters: Ref) -> Any:
        """Predict and return the outputs of all samples in order, in the network's tuples, lists and dicts."""
        refs = [
            self.engine.submit(
                predict,
                self.training_spec,
                parameters,
                *self.data.select(numbers),
                self.batch_size,
                device,
                self.data.structure,
                resources=self.resources,
            )
            for device, numbers in self._ranges
        ]
        results = self.engine.fetch(refs)
        self.engine.delete(refs)
        warn_of_random_transform(any(is_random for _, is_random in results))
        batches = [output for outputs, _ in results for output in outputs]
        columns = zip(*map(leaves, batches), strict=True)
        return rebuilt(batches[0], [_joined(column) for column in columns])


def _joined(outputs: Sequence[NDArray[Any]]) -> NDArray[Any] | list[NDArray[Any]]:
    """Return the outputs of all batches; a list of samples where batches were padded to different lengths."""
    if len({output.shape[1:] for output in outputs}) > 1:
        return [sample for output in outputs for sample in output]
    return np.concatenate(outputs)


def skipped_batches(number: int) -> dict[str, int]:
    """Return the history field with the number of skipped batches; empty if there were none."""
    return {"skipped_batches": number} if number else {}


def warn_of_first_batch(measured: Sequence[Measured]) -> bool:
    """Warn of networks that could not be compiled and of two softmaxes, if tasks found any; return whether so."""
    reasons = [part.not_compiled for part in measured if part.not_compiled is not None]
    if reasons:
        warn_user(f"compile= has no effect, and the network runs as it is, since {reasons[0]} where workers run")
    found = any(part.probabilities for part in measured)
    if found:
        warn_user(
            "the outputs of the network are probabilities (at least 0, and those of each sample sum to 1), but the "
            "loss takes logits, and applies a softmax to them once more; remove the softmax at the end of the "
            "network, or build with loss='categorical_cross_entropy', which takes probabilities"
        )
    return found or bool(reasons)


def warn_of_random_transform(found: bool) -> bool:
    """Warn if the transform has drawn random numbers outside of training; return whether it has."""
    if found:
        warn_user(
            "transform= draws random numbers, also in evaluation and prediction, whose results depend on them; "
            "give augmentation as train_transform=, which applies to training batches only"
        )
    return found


def warn_of_skipped_files(measured: Sequence[Measured], known: dict[str, str]) -> None:
    """Warn of each file that tasks have skipped, unless it is in ``known``; add it there with the reason."""
    for file, reason in chain.from_iterable(part.skipped.items() for part in measured):
        if file not in known:
            known[file] = reason
            warn_user(f"skipped {file} {reason}")
