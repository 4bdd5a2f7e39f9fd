"""``Merger``, the interface of all kinds, and synchronous merging: a weighted average by a tree of tasks.

Mergers work on references, and wait only where they say so.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from compss_train.data.partitioning import Round
from compss_train.engines import Engine, Ref
from compss_train.model.metrics import Measured
from compss_train.model.optimizers import optimizer_factory
from compss_train.model.parameters import Parameters
from compss_train.model.weighted_mean import partial_sum
from compss_train.training.merge import Merge, MergeKind
from compss_train.training.session import NOTHING_KEPT, MergeState, Session
from compss_train.training.workers import RoundWorkers
from compss_train.worker.merge import MergeRule, merge_results
from compss_train.worker.state import GroupState

EMA_DECAY = 0.8
"""The decay of ``Merge(averaging="ema")``: the average reaches back about five merges."""

ARITIES = (4, 8, 16, 32, 64)
"""Maximum number of versions of the parameters that a task of the tree adds up."""

BYTES_PER_SECOND = 1e9
"""Rough rate at which a task reads and adds up parameters, measured with 100 MB of files in memory."""


@dataclass(eq=False, kw_only=True)
class SubmittedRound:
    """A round whose tasks have been submitted."""

    round: Round
    tasks: list[list[int]]
    """The workers that each task trains."""
    measured: dict[str, list[Ref]]
    """References to lists of measurements: of the ``workers``, and of the validation data, by the prefixes of their
    names."""
    parameters: Ref
    """The global parameters after the round."""
    states: list[GroupState | Ref]
    """The states of each group of workers after the round."""
    merge_state: MergeState[Ref] = NOTHING_KEPT
    """What merges keep besides the parameters, after the round."""
    unmerged: int = 0
    """Number of workers whose merges have not been submitted; until then ``parameters`` are older ones."""

    @property
    def refs(self) -> list[Ref]:
        """All references to measurements."""
        return [ref for refs in self.measured.values() for ref in refs]

    def fetch(self, engine: Engine) -> dict[str, list[Measured]]:
        """Return the measurements by the same keys."""
        values = iter(engine.fetch(self.refs, small=True))
        return {name: [part for _ in refs for part in next(values)] for name, refs in self.measured.items()}


class Merger(ABC):
    """Submits the training and merging of rounds, and keeps the reference to the global parameters."""

    name: ClassVar[MergeKind]
    rounds_ahead: ClassVar[int] = 1
    """Number of rounds submitted beyond the awaited one, so that no worker idles."""
    by_rounds: ClassVar[bool] = False
    """Whether the parameters of a round never contain contributions of later rounds."""

    def __init__(self, session: Session, merge: Merge, initial: Parameters) -> None:
        """Continue from what the merges of the last fit kept; ``merge`` has every option set."""
        self.session, self.engine, self.merge = session, session.engine, merge
        self.parameters = self.engine.publish(initial)
        """The global parameters after the last round that was submitted."""
        self.state = session.merge_state.published(self.engine)
        """What is kept besides the parameters."""
        self.bases: dict[int, Ref] = {}
        """What each worker starts from, where that is not the global parameters."""

    @abstractmethod
    def train_and_merge(self, workers: RoundWorkers) -> SubmittedRound:
        """Submit the training and merging of a round."""

    def wait(self, submitted: SubmittedRound, timeout: float, evaluate: Callable[[SubmittedRound], None]) -> bool:
        """Wait for a round at most ``timeout`` seconds; return whether it is complete, with its measurements.

        Calls ``evaluate`` with each round whose last workers are merged meanwhile.
        """
        return self.engine.wait(submitted.refs, timeout)

    def settled(self, submitted: SubmittedRound) -> Parameters:
        """Return the global parameters after a round; no later round was submitted, or later rounds are ignored."""
        value: Parameters = self.engine.fetch([submitted.parameters])[0]
        return value

    def current(self, submitted: SubmittedRound) -> Parameters:
        """Return the global parameters after a complete round; waits for its merge if necessary."""
        return self.settled(submitted)

    def stop(self) -> None:
        """End processes other than tasks; called at the end of every fit."""
        return


class SynchronousMerger(Merger):
    """Every worker starts a round from the global parameters; their average, or a step towards it, ends it."""

    name: ClassVar[MergeKind] = "synchronous"
    by_rounds = True

    @cached_property
    def _rule(self) -> MergeRule:
        merge = self.merge
        return MergeRule(
            names=self.session.names,
            optimizer=None if merge.outer_optimizer is None else optimizer_factory(merge.outer_optimizer),
            moments=merge.optimizer_state == "average",
            compressed=merge.dtype is not None,
            decay=EMA_DECAY if merge.averaging == "ema" else merge.averaging,
        )

    @cached_property
    def _arity(self) -> int:
        size = sum(array.nbytes for array in self.session.model.parameters.values())
        return best_arity(self.engine.traits.task_seconds, size)

    @cached_property
    def _published_rule(self) -> Ref:
        return self.engine.publish(self._rule)

    def train_and_merge(self, workers: RoundWorkers) -> SubmittedRound:
        """Train from the global parameters and average; a worker without samples does not count."""
        active = {group: workers.active(group) for group in range(len(self.session.groups))}
        tasks = {group: members for group, members in active.items() if members}
        start = self.parameters, self.state.moments
        merged: Mapping[str, Ref]
        if sum(map(len, tasks.values())) == 1 and self._rule.is_mean:
            trained, measured = workers.submit_worker(next(iter(tasks)), *start)
            merged = {"parameters": trained, "measured": measured}
        else:
            merged = self._merge({self.session.groups[g].start: workers.submit_group(g, *start)[0] for g in tasks})
        self._continue_from(merged)
        return SubmittedRound(
            round=workers.round,
            tasks=[*tasks.values()],
            measured={"workers": [merged["measured"]]},
            parameters=self.parameters,
            states=[*self.session.states],
            merge_state=self.state,
        )

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
    """Return how many versions of ``size`` bytes a task should add up to minimize the time through the tree.

    A tree of arity a has log n / log a levels; on each, a task reads a versions.
    """
    version = size / BYTES_PER_SECOND
    return min(ARITIES, key=lambda arity: (task_seconds + arity * version) / math.log(arity))


def sum_by_tree(engine: Engine, trained: Mapping[int, Ref], arity: int) -> list[Ref]:
    """Submit the tasks that add up the results of many workers.

    ``trained`` has results, or sums of aligned ranges of workers, by the number of their first worker, in ascending
    order. Each task adds up an aligned range too, so that the bits do not depend on the ranges (``weighted_mean``).
    Returns at most ``arity`` results and sums.
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
