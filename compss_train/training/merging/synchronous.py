"""Synchronous merging: a weighted average of all workers by a tree of tasks, and the outer optimizer."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from compss_train.data.partitioning import Round
from compss_train.engines import Engine, Ref
from compss_train.model import parameters as params
from compss_train.model.parameters import Parameters
from compss_train.training.merging.base import Merge, SubmittedRound
from compss_train.training.task_submission import WorkerGroup
from compss_train.training.training_state import MergeState
from compss_train.training.worker import MergeRule, finish

Item = TypeVar("Item")

ARITY = 8
"""The most versions of the parameters that one task of the tree adds up."""


class SynchronousMerge(Merge):
    """Every worker starts a round from the global parameters; their average, or a step towards it, ends it."""

    name = "synchronous"
    by_rounds = True

    def __init__(self, engine: Engine, initial: Parameters, rule: MergeRule, state: MergeState) -> None:
        self._engine = engine
        self._rule = rule
        self._published_rule = engine.publish(rule)
        self._initial = engine.publish(initial)
        self.parameters = self._initial
        self._initial_state = self.state = state
        self._held = [self._initial]

    def submit(self, workers: WorkerGroup, round_: Round) -> SubmittedRound:
        """Train from the global parameters and average; a worker without samples does not count."""
        counts = round_.counts
        active = [worker for worker, count in enumerate(counts) if count]
        results = [workers.train(worker, round_, self.parameters, moments=self.state.moments) for worker in active]
        measured = {worker: result[1] for worker, result in zip(active, results, strict=True)}
        weights = measured if workers.data.may_skip else dict(enumerate(counts))
        merged = self._merge([result[0] for result in results], [weights[worker] for worker in active])
        if self.parameters is self._initial:
            self._engine.delete([self._initial])
        self.parameters = merged["parameters"]
        self.state = MergeState(**{name: merged.get(name) for name in vars(self.state)})
        self._held = [self.parameters]
        return SubmittedRound(
            round=round_,
            measured=measured,
            parameters=self.parameters,
            states=tuple(workers.states),
            merge_state=self.state,
            merge_measured=merged.get("measured"),
        )

    def _merge(self, trained: Sequence[Ref], counts: Sequence[int | Ref]) -> Mapping[str, Ref]:
        """Submit the tasks of a merge, and free their inputs; the result of a single worker is used as it is."""
        names = self._rule.results
        if len(trained) == 1 and len(names) == 2 and not self._rule.compressed:
            return {"parameters": trained[0]}
        items, numbers = sum_by_tree(self._engine, trained, counts)
        moments = self.state.moments if self._rule.compressed else None
        last = self._published_rule, self.parameters, self.state.outer, self.state.averaged, moments
        results = self._engine.submit(finish, items, numbers, *last, returns=len(names), priority=True)
        self._engine.delete(items)
        return dict(zip(names, results, strict=True))

    def current(self, submitted: SubmittedRound) -> Parameters:
        """Return the global parameters after that round."""
        merged: Parameters = self._engine.fetch([submitted.parameters])[0]
        return merged

    settled = current

    def go_back(self, submitted: SubmittedRound | None) -> None:
        """Keep only the parameters of that round, or the initial ones if no round was submitted."""
        self.state = self._initial_state if submitted is None else submitted.merge_state
        if submitted is not None:
            self._held = [submitted.parameters]
        elif self.parameters is not self._initial:
            self._held = []

    def retire(self, submitted: SubmittedRound) -> None:
        """Free the parameters of that round."""
        self._engine.delete([submitted.parameters])

    def close(self) -> None:
        """Free the last parameters."""
        self._engine.delete([*self._held, self._published_rule])


def sum_by_tree(
    engine: Engine, versions: Sequence[Ref], counts: Sequence[int | Ref]
) -> tuple[list[Ref], list[int | Ref] | None]:
    """Submit the tasks that add up many versions of the parameters, and free these.

    ``counts`` are the samples of each version, or references to the measurements that hold them. Returns at most
    ``ARITY`` versions and their counts, or partial sums and ``None``. The shape of the tree depends only on the
    number of versions, so that every engine gives the same bits.
    """
    if len(versions) <= ARITY:
        return list(versions), list(counts)
    chunks = zip(_chunks(versions), _chunks(counts), strict=True)
    partials = [_consume(engine, params.partial_sum, refs, list(numbers)) for refs, numbers in chunks]
    while len(partials) > ARITY:
        partials = [_consume(engine, params.add, refs) for refs in _chunks(partials)]
    return partials, None


def _chunks(items: Sequence[Item]) -> list[Sequence[Item]]:
    return [items[start : start + ARITY] for start in range(0, len(items), ARITY)]


def _consume(engine: Engine, function: Any, refs: Sequence[Ref], *args: Any) -> Ref:
    """Submit a merging task and free its inputs."""
    result: Ref = engine.submit(function, list(refs), *args, priority=True)
    engine.delete(refs)
    return result
