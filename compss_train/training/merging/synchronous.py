"""Synchronous merging: a weighted average of all workers, summed by a tree of tasks."""

from collections.abc import Sequence
from typing import Any, TypeVar

from compss_train.data.partitioning import Round
from compss_train.engines import Engine, Ref
from compss_train.model import parameters as params
from compss_train.model.parameters import Parameters
from compss_train.training.merging.base import Merge, SubmittedRound
from compss_train.training.task_submission import WorkerGroup

Item = TypeVar("Item")

ARITY = 8
"""The most versions of the parameters that one task of the tree adds up."""


class SynchronousMerge(Merge):
    """Every worker starts a round from the global parameters; the average of all workers ends it."""

    name = "synchronous"
    by_rounds = True

    def __init__(self, engine: Engine, initial: Parameters) -> None:
        self._engine = engine
        self._initial = engine.publish(initial)
        self.parameters = self._initial
        self._held = [self._initial]

    def submit(self, workers: WorkerGroup, round_: Round) -> SubmittedRound:
        """Train from the global parameters and average; a worker without samples does not count."""
        counts = round_.counts
        active = [worker for worker, count in enumerate(counts) if count]
        results = [workers.train(worker, round_, self.parameters) for worker in active]
        trained = [result[0] for result in results]
        if self.parameters is self._initial:
            self._engine.delete([self._initial])
        measured = {worker: result[1] for worker, result in zip(active, results, strict=True)}
        weights = measured if workers.data.may_skip else dict(enumerate(counts))
        self.parameters = tree_average(self._engine, trained, [weights[worker] for worker in active])
        self._held = [self.parameters]
        return SubmittedRound(round_, measured, self.parameters, tuple(workers.states))

    def current(self, submitted: SubmittedRound) -> Parameters:
        """Return the average of that round."""
        average: Parameters = self._engine.fetch([submitted.parameters])[0]
        return average

    settled = current

    def go_back(self, submitted: SubmittedRound | None) -> None:
        """Keep only the average of that round, or the initial parameters if no round was submitted."""
        if submitted is not None:
            self._held = [submitted.parameters]
        elif self.parameters is not self._initial:
            self._held = []

    def retire(self, submitted: SubmittedRound) -> None:
        """Free the average of that round."""
        self._engine.delete([submitted.parameters])

    def close(self) -> None:
        """Free the last average."""
        self._engine.delete(self._held)


def tree_average(engine: Engine, versions: Sequence[Ref], counts: Sequence[int | Ref]) -> Ref:
    """Submit a tree of tasks that averages the versions, and free them.

    ``counts`` are the samples of each version, or references to the measurements that hold them. The shape of the
    tree depends only on the number of versions, so that every engine gives the same bits. A single version is
    returned unchanged.
    """
    if len(versions) == 1:
        return versions[0]
    if len(versions) <= ARITY:
        return _consume(engine, params.average, versions, list(counts))
    chunks = zip(_chunks(versions), _chunks(counts), strict=True)
    partials = [_consume(engine, params.partial_sum, refs, list(numbers)) for refs, numbers in chunks]
    while len(partials) > ARITY:
        partials = [_consume(engine, params.add, refs) for refs in _chunks(partials)]
    return _consume(engine, params.mean, partials)


def _chunks(items: Sequence[Item]) -> list[Sequence[Item]]:
    return [items[start : start + ARITY] for start in range(0, len(items), ARITY)]


def _consume(engine: Engine, function: Any, refs: Sequence[Ref], *args: Any) -> Ref:
    """Submit a merging task and free its inputs."""
    result: Ref = engine.submit(function, list(refs), *args, priority=True)
    engine.delete(refs)
    return result
