"""Synchronous merging, and what all kinds of merging share: ``RoundWorkers`` and ``Merger``.

Mergers work on references to results of tasks, and wait only where they say so.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

from compss_train.data.partitioning import Round
from compss_train.engines import Engine, Ref
from compss_train.model.metrics import Measured
from compss_train.model.optimizers import optimizer_factory
from compss_train.model.parameters import Parameters
from compss_train.model.schedule import TimedHyperparameters
from compss_train.training.merge import Merge, MergeKind
from compss_train.training.merging.tree import best_arity, sum_by_tree
from compss_train.training.published_data import PublishedData
from compss_train.training.session import Session
from compss_train.training.total_shuffle import GroupSamples, cut_blocks, samples_of
from compss_train.training.training_state import NOTHING_KEPT, MergeState
from compss_train.worker.merge import MergeRule, merge_results
from compss_train.worker.state import GroupState
from compss_train.worker.train import train_group, train_worker
from compss_train.worker.work import Work


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundWorkers:
    """The workers of one round; submits the tasks that train them, in a session.

    In a total shuffle, tasks may cut the blocks before, into pieces that serve this round only.
    """

    session: Session
    data: PublishedData
    job: Ref
    round: Round
    is_total: bool = False
    """Whether the shuffle is total, so that passes list their samples."""
    check_outputs: bool = False
    """Whether to check the outputs of the first batches against the loss."""
    traced: frozenset[int] = frozenset()
    """The workers that ``torch.profiler`` traces."""

    def submit(
        self, group: int, task: Callable[..., Any], parameters: Ref, *args: Any, returns: int = 3
    ) -> list[Ref]:
        """Submit ``train_group`` or ``train_worker`` for a group, with its other ``args``.

        The session keeps the states that the task returns; its other results are returned here.
        """
        session = self.session
        samples = self._samples(group)
        result, session.states[group], *further_results = session.engine.submit(
            task,
            self.job,
            parameters,
            session.states[group],
            samples.values,
            self._works(group, samples),
            *args,
            returns=returns,
            resources=session.resources,
        )
        return [result, *further_results]

    def _works(self, group: int, samples: GroupSamples) -> list[Work]:
        """Return the work of each worker of a group that has samples."""
        session = self.session
        workers = session.groups[group]
        files = self.data.source.files_of(samples.blocks)
        return [
            Work(
                block_passes=samples.assignments[worker - workers.start],
                round=self.round.number,
                worker=worker,
                name=f"round {self.round.number} on worker {worker}",
                index_in_group=worker - workers.start,
                device=session.device(worker),
                blocks=samples.blocks,
                starts=samples.starts,
                files=files,
                draws=self.round.draws[worker] if self.round.draws else None,
                hyperparameters=self._hyperparameters(worker),
                check_outputs=self.check_outputs,
                traced=worker in self.traced,
            )
            for worker in workers
            if self.round.counts[worker]
        ]

    def _hyperparameters(self, worker: int) -> dict[int, TimedHyperparameters] | None:
        """Return the hyperparameters of a worker by epoch, or ``None`` without a schedule."""
        schedule = self.session.model.built.lr_schedule
        if schedule is None:
            return None
        epochs = {block_pass.epoch for block_pass in self.round.assignments[worker]}
        epochs = epochs or {self.round.last_epoch}
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
            passes = chain.from_iterable(assignments)
            # Each once, in order of first use.
            numbers = tuple(dict.fromkeys(block_pass.block for block_pass in passes))
            return GroupSamples(self.data.values(numbers), assignments, numbers)
        numbers = self.data.holding(samples_of(assignments))
        starts = tuple([self.data.starts[number] for number in numbers])
        return GroupSamples(self.data.values(numbers), assignments, numbers, starts)

    @cached_property
    def _pieces(self) -> dict[int, GroupSamples]:
        """The pieces of blocks for each group, in a total shuffle that cuts them."""
        if self.data.mapped:
            return {}
        shares = [self.round.assignments[group.start : group.stop] for group in self.session.groups]
        return dict(enumerate(cut_blocks(self.data, shares)))


@dataclass(eq=False, kw_only=True)
class SubmittedRound:
    """A round whose tasks have been submitted."""

    round: Round
    tasks: list[list[int]]
    """The workers that each task trains."""
    measured: dict[str, list[Ref]]
    """References to lists of measurements: of the ``workers``, and of the validation data, by the
    prefixes of their names.
    """
    parameters: Ref
    """The global parameters after the round."""
    states: list[GroupState | Ref]
    """The states of each group of workers after the round."""
    merge_state: MergeState[Ref] = NOTHING_KEPT
    """What merges keep besides the parameters, after the round."""
    unmerged: int = 0
    """Number of workers whose merges have not been submitted; until then ``parameters`` are old."""

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
    """Submits the training and merging of rounds; has the reference to the global parameters."""

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
        published = {
            name: self.engine.publish(value)
            for name, value in vars(session.merge_state).items()
            if not isinstance(value, Ref | None)
        }
        self.state: MergeState[Ref] = replace(session.merge_state, **published)
        """What is kept besides the parameters."""
        self.bases: dict[int, Ref] = {}
        """What each worker starts from, where that is not the global parameters."""

    @abstractmethod
    def submit(self, workers: RoundWorkers) -> SubmittedRound:
        """Submit the training and merging of a round."""

    def wait(
        self, submitted: SubmittedRound, timeout: float, evaluate: Callable[[SubmittedRound], None]
    ) -> bool:
        """Wait for a round at most ``timeout`` seconds; return whether it is complete.

        Calls ``evaluate`` with each round whose last workers are merged meanwhile.
        """
        return self.engine.wait(submitted.refs, timeout)

    def after(self, submitted: SubmittedRound) -> Parameters:
        """Return the global parameters after the last round that counts."""
        value: Parameters = self.engine.fetch([submitted.parameters])[0]
        return value

    def newest(self, submitted: SubmittedRound) -> Parameters:
        """Return the global parameters after the last complete round; waits for its merge."""
        return self.after(submitted)

    def stop(self) -> None:
        """End processes other than tasks; called at the end of every fit."""
        return


class SynchronousMerger(Merger):
    """Every worker starts a round from the global parameters, which a weighted average ends.

    An outer optimizer takes a step towards the average instead.
    """

    name: ClassVar[MergeKind] = "synchronous"
    by_rounds = True

    @cached_property
    def _rule(self) -> MergeRule:
        merge = self.merge
        optimizer = None
        if merge.outer_optimizer is not None:
            optimizer = optimizer_factory(merge.outer_optimizer)
        return MergeRule(
            names=self.session.names,
            optimizer=optimizer,
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
        tasks = self._workers_with_samples(workers)
        start = self._start()
        merged: Mapping[str, Ref]
        if sum(map(len, tasks.values())) == 1 and self._rule.is_mean:
            (group,) = tasks
            results = workers.submit(group, train_worker, *start[:2])
            merged = dict(zip(("parameters", "measured"), results, strict=True))
        else:
            trained: dict[int, Ref] = {}
            for group in tasks:
                first_worker = self.session.groups[group].start
                (trained[first_worker],) = workers.submit(group, train_group, *start, returns=2)
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

    def _workers_with_samples(self, workers: RoundWorkers) -> dict[int, list[int]]:
        """Return the workers of each group that have samples, without groups that have none."""
        counts = workers.round.counts
        tasks = {}
        for group, members in enumerate(self.session.groups):
            active = [worker for worker in members if counts[worker]]
            if active:
                tasks[group] = active
        return tasks

    def _start(self) -> tuple[Ref, Ref | None, Ref | None]:
        """Return what workers start from: parameters, moments, the average that they continue."""
        averaged = self.state.averaged if self.merge.averaging_unit == "steps" else None
        return self.parameters, self.state.moments, averaged

    def _merge(self, trained: Mapping[int, Ref]) -> Mapping[str, Ref]:
        """Submit the tasks that merge results, given by their first workers."""
        items = sum_by_tree(self.engine, trained, self._arity)
        moments = self.state.moments if self._rule.compressed else None
        names = self._rule.result_names
        results = self.engine.submit(
            merge_results,
            items,
            self._published_rule,
            self.parameters,
            self.state.outer,
            self.state.averaged,
            moments,
            returns=len(names),
            priority=True,
        )
        return dict(zip(names, results, strict=True))

    def _continue_from(self, merged: Mapping[str, Ref]) -> None:
        """Keep the results of a merge."""
        self.parameters = merged["parameters"]
        self.state = MergeState(**{name: merged.get(name) for name in vars(self.state)})
