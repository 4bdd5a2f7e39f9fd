"""``RoundWorkers``, the tasks that train a round; ``Merger``, the interface of all kinds; and
synchronous merging.

The latter is a weighted average by a tree of tasks. Mergers work on references, and wait only where
they say so.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

from compss_train.data.partitioning import Round
from compss_train.engines import Engine, Ref
from compss_train.model.metrics import Measured
from compss_train.model.optimizers import optimizer_factory
from compss_train.model.parameters import Parameters
from compss_train.model.schedule import LrSchedule, TimedHyperparameters
from compss_train.model.weighted_mean import partial_sum
from compss_train.training.data_source import PublishedData
from compss_train.training.merge import Merge, MergeKind
from compss_train.training.session import Session
from compss_train.training.total_shuffle import GroupSamples, cut_blocks, samples_of
from compss_train.training.training_state import NOTHING_KEPT, MergeState
from compss_train.worker.merge import MergeRule, merge_results
from compss_train.worker.state import GroupState
from compss_train.worker.train import train_group, train_worker
from compss_train.worker.work import Work

ARITIES = (4, 8, 16, 32, 64)
"""Maximum number of versions of the parameters that a task of the tree adds up."""

BYTES_PER_SECOND = 1e9
"""Rough rate at which a task reads and adds up parameters, measured with 100 MB of files in
memory.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundWorkers:
    """The workers of one round; submits the tasks that train them, in a session.

    In a total shuffle, tasks may cut the blocks before: their pieces serve this round only.
    """

    session: Session
    data: PublishedData
    job: Ref
    round: Round
    is_total: bool = False
    """Whether the shuffle is total, so that passes list their samples."""
    check_outputs: bool = False
    """Whether to check the outputs of the first batches against the loss, as in the first round of
    a fit.
    """
    traced: frozenset[int] = frozenset()
    """The workers that ``torch.profiler`` traces."""

    def submit(
        self, group: int, task: Callable[..., Any], parameters: Ref, *args: Any, returns: int = 3
    ) -> list[Ref]:
        """Submit ``train_group`` or ``train_worker`` for a group, with the rest of the task's
        ``args``.

        The session keeps the states that it returns, and its other results are returned here.
        """
        session = self.session
        samples = self._samples(group)
        schedule = self.session.model.built.lr_schedule
        files = self.data.source.files_of(samples.blocks)
        first = session.groups[group].start
        works = [
            Work(
                block_passes=samples.assignments[worker - first],
                round=self.round.number,
                worker=worker,
                name=f"round {self.round.number} on worker {worker}",
                index_in_group=worker - first,
                device=session.device(worker),
                blocks=samples.blocks,
                starts=samples.starts,
                files=files,
                draws=self.round.draws[worker] if self.round.draws else None,
                hyperparameters=None
                if schedule is None
                else self._hyperparameters(worker, schedule),
                check_outputs=self.check_outputs,
                traced=worker in self.traced,
            )
            for worker in session.groups[group]
            if self.round.counts[worker]
        ]
        given = self.job, parameters, session.states[group], samples.values, works, *args
        refs = session.engine.submit(task, *given, returns=returns, resources=session.resources)
        result, session.states[group], *others = refs
        return [result, *others]

    def _hyperparameters(
        self, worker: int, schedule: LrSchedule
    ) -> dict[int, TimedHyperparameters]:
        """Return the hyperparameters of a worker by epoch."""
        epochs = {block_pass.epoch for block_pass in self.round.assignments[worker]} or {
            self.round.last_epoch
        }
        span = self.round.spans[worker] if self.round.spans else (Fraction(0), Fraction(1))
        key = frozenset(epochs), span
        if key not in self._timed:
            self._timed[key] = {epoch: schedule.during(epoch, *span) for epoch in sorted(epochs)}
        return self._timed[key]

    @cached_property
    def _timed(self) -> dict[Any, dict[int, TimedHyperparameters]]:
        """The hyperparameters by epoch, which many workers share."""
        return {}

    def _samples(self, group: int) -> GroupSamples:
        if self.is_total and self._pieces:
            return self._pieces.pop(group)  # used by this task only
        workers = self.session.groups[group]
        assignments = self.round.assignments[workers.start : workers.stop]
        if not self.is_total:
            # Each once, in order of first use.
            numbers = tuple(
                dict.fromkeys([block_pass.block for own in assignments for block_pass in own])
            )
            return GroupSamples(self.data.values(numbers), assignments, numbers)
        numbers = self.data.holding(samples_of(assignments))
        starts = tuple([self.data.starts[number] for number in numbers])
        return GroupSamples(self.data.values(numbers), assignments, numbers, starts)

    @cached_property
    def _pieces(self) -> dict[int, GroupSamples]:
        """The pieces of blocks for each group, in a total shuffle that cuts them."""
        if self.data.mapped:
            return {}
        groups = (slice(group.start, group.stop) for group in self.session.groups)
        return dict(
            enumerate(cut_blocks(self.data, [self.round.assignments[group] for group in groups]))
        )


@dataclass(eq=False, kw_only=True)
class SubmittedRound:
    """A round whose tasks have been submitted."""

    round: Round
    tasks: list[list[int]]
    """The workers that each task trains."""
    measured: dict[str, list[Ref]]
    """References to lists of measurements: of the ``workers``, and of the validation data, by the
    prefixes of their names."""
    parameters: Ref
    """The global parameters after the round."""
    states: list[GroupState | Ref]
    """The states of each group of workers after the round."""
    merge_state: MergeState[Ref] = NOTHING_KEPT
    """What merges keep besides the parameters, after the round."""
    unmerged: int = 0
    """Number of workers whose merges have not been submitted; until then ``parameters`` are older
    ones.
    """

    @property
    def refs(self) -> list[Ref]:
        """All references to measurements."""
        return [ref for refs in self.measured.values() for ref in refs]

    def fetch(self, engine: Engine) -> dict[str, list[Measured]]:
        """Return the measurements by the same keys."""
        values = iter(engine.fetch(self.refs, small=True))
        return {
            name: [part for _ in refs for part in next(values)]
            for name, refs in self.measured.items()
        }


class Merger(ABC):
    """Submits the training and merging of rounds, and keeps the reference to the global
    parameters.
    """

    name: ClassVar[MergeKind]
    rounds_ahead: ClassVar[int] = 1
    """Number of rounds submitted beyond the awaited one, so that no worker idles."""
    by_rounds: ClassVar[bool] = False
    """Whether the parameters of a round never contain contributions of later rounds."""

    def __init__(self, session: Session, merge: Merge, initial: Parameters) -> None:
        """Continue from what the merges of the last fit kept; ``merge`` has every option set."""
        self.session = session
        self.engine = session.engine
        self.merge = merge
        self.parameters = self.engine.publish(initial)
        """The global parameters after the last round that was submitted."""
        kept = vars(session.merge_state).items()
        new = {
            name: self.engine.publish(value)
            for name, value in kept
            if not isinstance(value, Ref | None)
        }
        self.state: MergeState[Ref] = replace(session.merge_state, **new)
        """What is kept besides the parameters."""
        self.bases: dict[int, Ref] = {}
        """What each worker starts from, where that is not the global parameters."""

    @abstractmethod
    def submit(self, workers: RoundWorkers) -> SubmittedRound:
        """Submit the training and merging of a round."""

    def wait(
        self, submitted: SubmittedRound, timeout: float, evaluate: Callable[[SubmittedRound], None]
    ) -> bool:
        """Wait for a round at most ``timeout`` seconds; return whether it is complete, with its
        measurements.

        Calls ``evaluate`` with each round whose last workers are merged meanwhile.
        """
        return self.engine.wait(submitted.refs, timeout)

    def after(self, submitted: SubmittedRound) -> Parameters:
        """Return the global parameters after a round; no later round was submitted, or later rounds
        are ignored.
        """
        value: Parameters = self.engine.fetch([submitted.parameters])[0]
        return value

    def newest(self, submitted: SubmittedRound) -> Parameters:
        """Return the global parameters after the last complete round; waits for its merge if
        necessary.
        """
        return self.after(submitted)

    def stop(self) -> None:
        """End processes other than tasks; called at the end of every fit."""
        return


class SynchronousMerger(Merger):
    """Every worker starts a round from the global parameters; their average, or a step towards it,
    ends it.
    """

    name: ClassVar[MergeKind] = "synchronous"
    by_rounds = True

    @cached_property
    def _rule(self) -> MergeRule:
        merge = self.merge
        return MergeRule(
            names=self.session.names,
            optimizer=None
            if merge.outer_optimizer is None
            else optimizer_factory(merge.outer_optimizer),
            moments=merge.optimizer_state == "average",
            compressed=merge.dtype is not None,
            decay=merge.decay("merges"),
            by_steps=merge.averaging_unit == "steps",
        )

    @cached_property
    def _arity(self) -> int:
        size = sum(array.nbytes for array in self.session.model.parameters.values())
        return best_arity(self.engine.traits.task_seconds, size)

    @cached_property
    def _published_rule(self) -> Ref:
        return self.engine.publish(self._rule)

    def submit(self, workers: RoundWorkers) -> SubmittedRound:
        """Train from the global parameters and average; a worker without samples does not count."""
        groups = self.session.groups
        counts = workers.round.counts
        start = self._start()
        active = ([worker for worker in group if counts[worker]] for group in groups)
        tasks = {group: members for group, members in enumerate(active) if members}
        merged: Mapping[str, Ref]
        if sum(map(len, tasks.values())) == 1 and self._rule.is_mean:
            results = workers.submit(next(iter(tasks)), train_worker, *start[:2])
            merged = dict(zip(("parameters", "measured"), results, strict=True))
        else:
            trained = {
                groups[g].start: workers.submit(g, train_group, *start, returns=2)[0] for g in tasks
            }
            merged = self._merge(trained)
        self._continue_from(merged)
        return SubmittedRound(
            round=workers.round,
            tasks=[*tasks.values()],
            measured={"workers": [merged["measured"]]},
            parameters=self.parameters,
            states=[*self.session.states],
            merge_state=self.state,
        )

    def _start(self) -> tuple[Ref, Ref | None, Ref | None]:
        """Return what workers start a round from: parameters, moments, and the average that they
        continue.
        """
        averaged = self.state.averaged if self.merge.averaging_unit == "steps" else None
        return self.parameters, self.state.moments, averaged

    def _merge(self, trained: Mapping[int, Ref]) -> Mapping[str, Ref]:
        """Submit the tasks that merge results, given by their first workers."""
        items = sum_by_tree(self.engine, trained, self._arity)
        moments = self.state.moments if self._rule.compressed else None
        last = self._published_rule, self.parameters, self.state.outer, self.state.averaged, moments
        names = self._rule.result_names
        results = self.engine.submit(merge_results, items, *last, returns=len(names), priority=True)
        return dict(zip(names, results, strict=True))

    def _continue_from(self, merged: Mapping[str, Ref]) -> None:
        """Keep the results of a merge."""
        self.parameters = merged["parameters"]
        self.state = MergeState(**{name: merged.get(name) for name in vars(self.state)})


def best_arity(task_seconds: float, size: int) -> int:
    """Return how many versions of ``size`` bytes a task should add up to minimize the time through
    the tree.

    A tree of arity a has log n / log a levels; on each, a task reads a versions.
    """
    version = size / BYTES_PER_SECOND
    return min(ARITIES, key=lambda arity: (task_seconds + arity * version) / math.log(arity))


def sum_by_tree(engine: Engine, trained: Mapping[int, Ref], arity: int) -> list[Ref]:
    """Submit the tasks that add up the results of many workers.

    ``trained`` has results, or sums of aligned ranges of workers, by the number of their first
    worker, in ascending order. Each task adds up an aligned range too, so that the bits do not
    depend on the ranges (``weighted_mean``). Returns at most ``arity`` results and sums.
    """
    size = arity
    while len(trained) > arity:
        nodes: dict[int, list[Ref]] = {}
        for first, ref in trained.items():
            nodes.setdefault(first // size * size, []).append(ref)
        trained = {
            first: refs[0] if len(refs) == 1 else engine.submit(partial_sum, refs, priority=True)
            for first, refs in nodes.items()
        }
        size *= arity
    return list(trained.values())
