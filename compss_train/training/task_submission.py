"""Submission of tasks: ``WorkerGroup`` for training, ``Inference`` for evaluation and prediction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.validation import warn_user
from compss_train.data.block_passes import WorkerAssignment, renumber_samples, split_by_block, unique_samples
from compss_train.data.order import split_points
from compss_train.data.partitioning import Round
from compss_train.data.reading import FilePart
from compss_train.engines import Engine, Ref, Resources
from compss_train.model.lr_schedules import LrSchedule, TimedHyperparameters
from compss_train.model.weighted_mean import aligned_ranges
from compss_train.training.data_source import DataHandles
from compss_train.training.fit_options import FitOptions
from compss_train.training.worker import (
    GroupState,
    Member,
    Shard,
    WorkerState,
    evaluate,
    predict,
    split_rows,
    train_group,
)

EVALUATION_BATCH = 1024
"""Samples in a batch of an evaluation or prediction."""

Rows: TypeAlias = NDArray[Any]
"""Numbers of samples, or of rows within a block."""

States: TypeAlias = Sequence[GroupState | Ref]
"""The states of the workers of each group."""


@dataclass(frozen=True, kw_only=True)
class TaskInputs:
    """The samples of a worker's task in one round: its passes, and references to the blocks or pieces of them."""

    assignment: WorkerAssignment
    blocks: tuple[int, ...]
    """Numbers of the blocks."""
    starts: tuple[int, ...]
    """Number of the first sample of each block."""
    x: list[Ref] | FilePart
    others: list[Ref]
    """Blocks of y and of weights."""
    pieces: bool = False
    """Whether ``x`` holds pieces, which include their rows of the other columns and are used in one round only."""


@dataclass(kw_only=True)
class WorkerGroup:
    """The workers of one fit."""

    engine: Engine
    training_spec: Ref
    data: DataHandles
    options: FitOptions
    """As ``FitOptions.for_tasks`` returns them."""
    seed: int
    resources: Resources
    devices: list[str]
    groups: Sequence[range]
    """The workers that train in one task, one after another."""
    states: list[GroupState | Ref]
    """The states of each group, replaced by a reference to new ones whenever it trains. Old ones are kept until
    ``free_states``, as a fit that is stopped returns to them."""
    schedule: LrSchedule | None = None
    next_round: Round | None = None
    """The round after the one whose tasks are submitted."""
    _first: Round | None = field(default=None, repr=False)
    """The first round of the fit, in which tasks check the outputs of the network."""
    _cut: tuple[Round | None, dict[int, TaskInputs]] = field(default=(None, {}), repr=False)
    """The round whose blocks have been cut into pieces, and the inputs of each worker."""

    def train(
        self,
        group: int,
        round_: Round,
        parameters: Ref,
        moments: Ref | None = None,
        task: Callable[..., Any] = train_group,
        *more: Any,
    ) -> tuple[Ref, Ref]:
        """Submit the training of a group in a round; return references to its result and its measurements.

        ``moments`` are those that a worker without a state of its own starts from. ``task`` is ``train_group``, or
        a function that calls it; ``more`` are further arguments.
        """
        values = _Values()
        members = [self._member(worker, group, round_, values) for worker in self.active(group, round_)]
        result, state, measured = self.engine.submit(
            task,
            self.training_spec,
            parameters,
            self.states[group],
            values.refs,
            members,
            moments,
            *more,
            returns=3,
            resources=self.resources,
        )
        self.engine.delete(values.pieces)
        self.states[group] = state
        return result, measured

    def active(self, group: int, round_: Round) -> list[int]:
        """Return the workers of a group that have samples in a round."""
        return [worker for worker in self.groups[group] if round_.counts[worker]]

    def _member(self, worker: int, group: int, round_: Round, values: "_Values") -> Member:
        inputs = self._inputs(worker, round_)
        return Member(
            worker=worker,
            position=worker - self.groups[group].start,
            shard=self._shard(inputs, worker, round_),
            device=self.devices[worker],
            x=inputs.x if isinstance(inputs.x, FilePart) else values.add(inputs.x, pieces=inputs.pieces),
            others=values.add(inputs.others),
            count=None if self.data.may_skip else round_.counts[worker],
        )

    def free_states(self, before: States, after: States) -> None:
        """Free the states that are no longer used."""
        kept = {id(state) for state in after}
        self.engine.delete([state for state in before if isinstance(state, Ref) and id(state) not in kept])

    def _shard(self, inputs: TaskInputs, worker: int, round_: Round) -> Shard:
        if self._first is None:
            self._first = round_
        return Shard(
            options=self.options,
            assignment=inputs.assignment,
            blocks=inputs.blocks,
            starts=inputs.starts,
            seed=self.seed,
            name=f"round {round_.number} on worker {worker}",
            pieces=inputs.pieces,
            weighted=self.data.weighted,
            hyperparameters=self._hyperparameters(inputs, worker, round_),
            draws=round_.draws[worker] if round_.draws else None,
            check_outputs=round_ is self._first,
        )

    def _hyperparameters(self, inputs: TaskInputs, worker: int, round_: Round) -> dict[int, TimedHyperparameters]:
        if self.schedule is None:
            return {}
        epochs = {block_pass.epoch for block_pass in inputs.assignment} or {round_.epoch - 1}
        return {epoch: self.schedule.during(epoch, *round_.span(worker)) for epoch in sorted(epochs)}

    def _inputs(self, worker: int, round_: Round) -> TaskInputs:
        assignment = round_.assignments[worker]
        if all(block_pass.samples is None for block_pass in assignment):
            return self._whole_blocks(assignment, _blocks_of(assignment), self._upcoming(worker))
        if self.data.mapped:
            return self._all_blocks(assignment)
        if self._cut[0] is not round_:
            self._cut = round_, self._cut_into_pieces(round_)
        return self._cut[1].pop(worker, None) or self._all_blocks(assignment)

    def _upcoming(self, worker: int) -> Sequence[int]:
        """Return the first blocks that a worker needs in the next round, as many as it may read ahead."""
        blocks = _blocks_of(self.next_round.assignments[worker]) if self.next_round else ()
        return blocks[: self.options.read_ahead]

    def _whole_blocks(
        self, assignment: WorkerAssignment, numbers: tuple[int, ...], upcoming: Sequence[int]
    ) -> TaskInputs:
        starts = tuple(self.data.starts[number] for number in numbers)
        x, others = self.data.select(numbers, upcoming)
        return TaskInputs(assignment=assignment, blocks=numbers, starts=starts, x=x, others=others)

    def _all_blocks(self, assignment: WorkerAssignment) -> TaskInputs:
        numbers, x, others = self._every_block
        return TaskInputs(assignment=assignment, blocks=numbers, starts=self.data.starts, x=x, others=others)

    @cached_property
    def _every_block(self) -> tuple[tuple[int, ...], Any, Any]:
        numbers = tuple(range(len(self.data.sizes)))
        return numbers, *self.data.select(numbers)

    def _cut_into_pieces(self, round_: Round) -> dict[int, TaskInputs]:
        """Submit one task a block, which cuts it into a piece for each worker that trains on some of its rows.

        Nothing is cut if the workers need more than half of all samples, as in a round of several epochs: the
        pieces would be many copies of the data.
        """
        samples = {worker: unique_samples(share) for worker, share in enumerate(round_.assignments) if share}
        if 2 * sum(map(len, samples.values())) > len(samples) * sum(self.data.sizes):
            return {}
        rows = {worker: split_by_block(needed, self.data.starts) for worker, needed in samples.items()}
        pieces: dict[int, list[Ref]] = {worker: [] for worker in samples}
        for block in range(len(self.data.sizes)):
            parts = {worker: cut[block] for worker, cut in rows.items() if len(cut[block])}
            for worker, piece in zip(parts, self._split(block, list(parts.values())), strict=True):
                pieces[worker].append(piece)
        return {
            worker: _piece_inputs(round_.assignments[worker], samples[worker], rows[worker], pieces[worker])
            for worker in samples
        }

    def _split(self, block: int, parts: list[Rows]) -> list[Ref]:
        if not parts:
            return []
        x, others = self.data.select([block])
        made = self.engine.submit(split_rows, [*x, *others], parts, returns=len(parts))
        return list(made) if len(parts) > 1 else [made]


def _blocks_of(assignment: WorkerAssignment) -> tuple[int, ...]:
    """Return the numbers of the blocks that a worker passes over, in that order."""
    return tuple(dict.fromkeys(block_pass.block for block_pass in assignment))


class _Values:
    """The values that a task receives, each once, however many workers use it."""

    def __init__(self) -> None:
        self.refs: list[Ref] = []
        self.pieces: list[Ref] = []
        """Those that are used in one task only."""
        self._index: dict[int, int] = {}

    def add(self, refs: Sequence[Ref], *, pieces: bool = False) -> tuple[int, ...]:
        """Add the values that are new; return where each is."""
        if pieces:
            self.pieces += refs
        return tuple(self._add(ref) for ref in refs)

    def _add(self, ref: Ref) -> int:
        if id(ref) not in self._index:
            self._index[id(ref)] = len(self.refs)
            self.refs.append(ref)
        return self._index[id(ref)]


def fetch_states(engine: Engine, states: States) -> list[WorkerState]:
    """Return the state of each worker, waiting for the tasks that compute them."""
    fetched = iter(engine.fetch([state for state in states if isinstance(state, Ref)]))
    return [*chain.from_iterable(next(fetched) if isinstance(state, Ref) else state for state in states)]


def _piece_inputs(assignment: WorkerAssignment, samples: Rows, rows: list[Rows], pieces: list[Ref]) -> TaskInputs:
    """Return the inputs of a worker that receives pieces, with its samples renumbered across them."""
    sizes = [len(part) for part in rows if len(part)]
    return TaskInputs(
        assignment=renumber_samples(assignment, samples),
        blocks=tuple(range(len(pieces))),
        starts=tuple(accumulate(sizes[:-1], initial=0)),
        x=pieces,
        others=[],
        pieces=True,
    )


@dataclass(kw_only=True)
class Inference:
    """Submits the evaluation and prediction tasks of one data set."""

    engine: Engine
    training_spec: Ref
    data: DataHandles
    batch_size: int
    resources: Resources
    devices: list[str]

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
        groups = aligned_ranges(len(self._ranges), places)
        return [self._evaluate(self._ranges[group.start : group.stop], parameters) for group in groups]

    def _evaluate(self, parts: list[tuple[str, list[int]]], parameters: Ref) -> Ref:
        """Submit one task for the blocks or files of several workers."""
        xs, others = zip(*(self.data.select(numbers) for _, numbers in parts), strict=True)
        in_files = isinstance(xs[0], FilePart)
        ref: Ref = self.engine.submit(
            evaluate,
            self.training_spec,
            parameters,
            list(xs if in_files else chain.from_iterable(xs)),
            list(chain.from_iterable(others)),
            [] if in_files else [len(numbers) for _, numbers in parts],
            self.batch_size,
            parts[0][0],
            resources=self.resources,
        )
        return ref

    def predict(self, parameters: Ref) -> NDArray[Any]:
        """Predict and return the outputs of all samples in order."""
        refs = [
            self.engine.submit(
                predict,
                self.training_spec,
                parameters,
                self.data.select(numbers)[0],
                self.batch_size,
                device,
                resources=self.resources,
            )
            for device, numbers in self._ranges
        ]
        results = self.engine.fetch(refs)
        self.engine.delete(refs)
        warn_of_random_transform([warnings for _, warnings in results])
        return np.concatenate([output for outputs, _ in results for output in outputs])


def skipped_batches(number: int) -> dict[str, int]:
    """Return the history field with the number of skipped batches; empty if there were none."""
    return {"skipped_batches": number} if number else {}


def warn_of_probabilities(measured: Sequence[Mapping[str, Any]]) -> bool:
    """Warn if tasks have found probabilities as inputs of a loss of logits; return whether they have."""
    found = any(part.get("probabilities") for part in measured)
    if found:
        warn_user(
            "the outputs of the network are probabilities (at least 0, and those of each sample sum to 1), but the "
            "loss takes logits, and applies a softmax to them once more; remove the softmax at the end of the "
            "network, or build with loss='categorical_cross_entropy', which takes probabilities"
        )
    return found


def warn_of_random_transform(measured: Sequence[Mapping[str, Any]]) -> bool:
    """Warn if the transform has drawn random numbers outside of training; return whether it has."""
    found = any(part.get("random_transform") for part in measured)
    if found:
        warn_user(
            "transform= draws random numbers, also in evaluation and prediction, whose results depend on them; "
            "give augmentation as train_transform=, which applies to training batches only"
        )
    return found


def warn_of_skipped_files(measured: Sequence[dict[str, Any]], known: dict[str, str]) -> None:
    """Warn of each file that tasks have skipped, unless it is in ``known``; add it there with the reason."""
    for file, reason in chain.from_iterable(part.get("skipped", {}).items() for part in measured):
        if file not in known:
            known[file] = reason
            warn_user(f"skipped {file} {reason}")
