"""Synchronous merging: a weighted average of all workers by a tree of tasks, and the outer optimizer."""

import math
from collections.abc import Mapping
from typing import ClassVar

from compss_train.engines import Engine, Ref
from compss_train.model.optimizers import optimizer_factory
from compss_train.model.parameters import Parameters
from compss_train.model.weighted_mean import partial_sum
from compss_train.training.merge import Merge, MergeKind
from compss_train.training.merging import Merger, SubmittedRound
from compss_train.training.session import Session
from compss_train.training.training_state import MergeState
from compss_train.training.workers import RoundWorkers
from compss_train.worker.merge import MergeRule, merge_results

EMA_DECAY = 0.8
"""The decay of ``Merge(averaging="ema")``: the average reaches back about five merges."""

ARITIES = (4, 8, 16, 32, 64)
"""Maximum number of versions of the parameters that a task of the tree adds up."""

BYTES_PER_SECOND = 1e9
"""Rough rate at which a task reads and adds up parameters, measured with 100 MB of files in memory."""


class SynchronousMerger(Merger):
    """Every worker starts a round from the global parameters; their average, or a step towards it, ends it."""

    name: ClassVar[MergeKind] = "synchronous"
    by_rounds = True

    def __init__(self, session: Session, merge: Merge, initial: Parameters) -> None:
        super().__init__(session, merge, initial)
        self._rule = MergeRule(
            names=session.names,
            optimizer=None if merge.outer_optimizer is None else optimizer_factory(merge.outer_optimizer),
            moments=merge.optimizer_state == "average",
            compressed=merge.dtype is not None,
            decay=EMA_DECAY if merge.averaging == "ema" else merge.averaging,
        )
        self._published_rule = self.engine.publish(self._rule)
        self._arity = best_arity(self.engine.traits.task_seconds, sum(array.nbytes for array in initial.values()))

    def train_and_merge(self, workers: RoundWorkers) -> SubmittedRound:
        """Train from the global parameters and average; a worker without samples does not count."""
        active = {group: workers.active(group) for group in range(len(self.session.groups))}
        tasks = {group: members for group, members in active.items() if members}
        alone = self._rule.is_mean and sum(map(len, tasks.values())) == 1
        start = self.parameters, self.state.moments
        merged: Mapping[str, Ref]
        if alone:
            trained, measured = workers.train_worker(next(iter(tasks)), *start)
            merged = {"parameters": trained, "measured": measured}
        else:
            merged = self._merge({self.session.groups[g].start: workers.train(g, *start)[0] for g in tasks})
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
