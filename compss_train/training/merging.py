"""Merging: what a round does with references to parameters. Knows no engine in particular.

Synchronous merging averages the workers' parameters, weighted by the samples each trained in the round, as in
local SGD (Stich 2019) and federated averaging (McMahan et al. 2017). Commutative merging adds each worker's
weighted change to the global parameters when it arrives, so that no worker waits for another. Merging through a
parameter server does the same layer by layer, and the parameters pass by the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from compss_train.data.partitioning import Round
from compss_train.engines import Engine, Ref
from compss_train.model import parameters as params
from compss_train.training.fit_options import FitOptions, MergeName, Rule
from compss_train.training.server_parameters import GlobalParameters
from compss_train.training.task_submission import States, WorkerGroup
from compss_train.training.worker.server_exchange import read, train_and_exchange

Item = TypeVar("Item")

ARITY = 8
"""How many versions one task of the tree of averages adds up."""


@dataclass(frozen=True)
class Submitted:
    """A round whose tasks have been submitted."""

    round: Round
    measured: dict[int, Ref]
    """What each worker that has samples measures."""
    parameters: Ref
    """The global parameters after the round."""
    states: States
    """Each worker's state after the round."""


class Merge(ABC):
    """Keeps the global parameters' reference from round to round."""

    name: ClassVar[MergeName]
    parameters: Ref
    rounds_ahead: ClassVar[int] = 1
    """Rounds submitted beyond the one whose measurements are waited for, so that no worker idles."""
    by_rounds: ClassVar[bool] = False
    """Whether a round's parameters never hold anything of later rounds."""

    @abstractmethod
    def submit(self, fleet: WorkerGroup, round_: Round) -> Submitted:
        """Submit a round's training and merging."""

    @abstractmethod
    def current(self, submitted: Submitted) -> params.Parameters:
        """Return the global parameters after a round that is complete, waiting for its merge if need be."""

    @abstractmethod
    def settled(self, submitted: Submitted) -> params.Parameters:
        """Return the global parameters after a round beyond which none was submitted, or does not matter."""

    def go_back(self, submitted: Submitted | None) -> None:
        """Forget the rounds submitted after this one, of which ``retire`` is told; ``None`` for the beginning."""
        return

    @abstractmethod
    def retire(self, submitted: Submitted) -> None:
        """Free a round's parameters; called when a later round's are there."""

    @abstractmethod
    def close(self) -> None:
        """Free what is left, after the last round."""

    def stop(self) -> None:
        """End what runs beside the tasks; called however the fit ends, and before ``close``."""
        return


class Synchronous(Merge):
    """Every worker begins a round with the global parameters, and their average ends it."""

    name = "synchronous"
    by_rounds = True

    def __init__(self, engine: Engine, initial: params.Parameters) -> None:
        self._engine = engine
        self._initial = engine.publish(initial)
        self.parameters = self._initial
        self._held = [self._initial]

    def submit(self, fleet: WorkerGroup, round_: Round) -> Submitted:
        """Train from the global parameters and average; a worker without samples has no vote."""
        counts = round_.counts
        active = [worker for worker, count in enumerate(counts) if count]
        results = [fleet.train(worker, round_, self.parameters) for worker in active]
        trained = [result[0] for result in results]
        if self.parameters is self._initial:
            self._engine.delete([self._initial])
        measured = {worker: result[1] for worker, result in zip(active, results, strict=True)}
        weights = measured if fleet.data.may_skip else dict(enumerate(counts))
        self.parameters = tree_average(self._engine, trained, [weights[worker] for worker in active])
        self._held = [self.parameters]
        return Submitted(round_, measured, self.parameters, tuple(fleet.states))

    def current(self, submitted: Submitted) -> params.Parameters:
        """Return that round's average."""
        average: params.Parameters = self._engine.fetch([submitted.parameters])[0]
        return average

    settled = current

    def go_back(self, submitted: Submitted | None) -> None:
        """Hold on to that round's average only, or to the first parameters where no round has been submitted."""
        if submitted is not None:
            self._held = [submitted.parameters]
        elif self.parameters is not self._initial:
            self._held = []

    def retire(self, submitted: Submitted) -> None:
        """Free the average of that round."""
        self._engine.delete([submitted.parameters])

    def close(self) -> None:
        """Free the last average."""
        self._engine.delete(self._held)


class Commutative(Merge):
    """Every worker adds its change to the global parameters and goes on from what it just made."""

    name = "commutative"
    rounds_ahead = 8
    """How far the fastest worker may get ahead of the slowest before no more rounds are submitted."""

    def __init__(
        self,
        engine: Engine,
        initial: params.Parameters,
        num_workers: int,
        rule: Rule = "weighted",
        buffers: Collection[str] = (),
    ) -> None:
        self._engine = engine
        self._buffers = frozenset(buffers)
        self._rule = rule
        self._initial = engine.publish(initial)
        self._bases = [self._initial] * num_workers
        self.parameters = engine.publish(initial)

    def submit(self, fleet: WorkerGroup, round_: Round) -> Submitted:
        """Train each worker from its own base, then update the global parameters."""
        counts = round_.counts
        measured = {}
        for worker, count in enumerate(counts):
            if count:
                trained, measured[worker] = fleet.train(worker, round_, self._bases[worker])
                self._update(worker, trained, measured[worker] if fleet.data.may_skip else count, sum(counts))
        return Submitted(round_, measured, self.parameters, tuple(fleet.states))

    def _update(self, worker: int, trained: Ref, count: int | Ref, total: int) -> None:
        base = self._bases[worker]
        if self._rule == "halving":
            self._bases[worker] = self._engine.commute(self.parameters, params.halve, trained)
        else:
            self._bases[worker] = self._engine.commute(
                self.parameters, params.apply_delta, base, trained, count, total, self._buffers
            )
        self._engine.delete([trained] if base is self._initial else [trained, base])

    def current(self, submitted: Submitted) -> params.Parameters:
        """Return the newest value, with whatever has been added to it: waiting would hold the others up."""
        newest: params.Parameters | None = self._engine.peek(self.parameters)
        return self._engine.fetch([self.parameters])[0] if newest is None else newest

    def settled(self, submitted: Submitted) -> params.Parameters:
        """Wait for all that has been submitted, and return the value."""
        value: params.Parameters = self._engine.fetch([self.parameters])[0]
        return value

    def retire(self, submitted: Submitted) -> None:
        """Nothing: all rounds share one value."""

    def close(self) -> None:
        """Free the global parameters and what the workers would have gone on from."""
        self._engine.delete([*{self.parameters, self._initial, *self._bases}])


class ThroughServer(Merge):
    """Every worker pushes its change to a server beside the tasks, and goes on from what it pulls there."""

    name = "parameter_server"
    rounds_ahead = Commutative.rounds_ahead

    def __init__(
        self, engine: Engine, initial: params.Parameters, num_workers: int, buffers: Collection[str]
    ) -> None:
        self._engine = engine
        self._global = GlobalParameters(engine, initial, num_workers, buffers)
        try:
            self._served = engine.publish(self._global.served)
            self.parameters = self._initial = engine.publish(initial)
        except BaseException:
            self.stop()
            raise
        self._bases = [self._initial] * num_workers

    def submit(self, fleet: WorkerGroup, round_: Round) -> Submitted:
        """Train each worker from its own base and have it exchange parameters, then read what is there."""
        counts = round_.counts
        measured = {}
        for worker, count in enumerate(counts):
            if count:
                base = self._bases[worker]
                more = self._served, worker, sum(counts)
                self._bases[worker], measured[worker] = fleet.train(worker, round_, base, train_and_exchange, *more)
                self._free([base])
        name = f"round {round_.number}"
        self.parameters = self._engine.submit(read, self._served, list(measured.values()), name, priority=True)
        return Submitted(round_, measured, self.parameters, tuple(fleet.states))

    def current(self, submitted: Submitted) -> params.Parameters:
        """Return what was read when all workers had pushed that round's changes."""
        read_then: params.Parameters = self._engine.fetch([submitted.parameters])[0]
        return read_then

    settled = current

    def go_back(self, submitted: Submitted | None) -> None:
        """Hold on to what was read after that round."""
        self.parameters = self._initial if submitted is None else submitted.parameters

    def retire(self, submitted: Submitted) -> None:
        """Free what was read after that round."""
        self._free([submitted.parameters])

    def stop(self) -> None:
        """End the server."""
        self._global.close()

    def close(self) -> None:
        """Free what was read last, and what the workers would have gone on from."""
        self._free({*self._bases, self.parameters})
        self._engine.delete([self._initial, self._served])

    def _free(self, refs: Iterable[Ref]) -> None:
        self._engine.delete([ref for ref in refs if ref is not self._initial])


def make_merge(
    options: FitOptions,
    engine: Engine,
    initial: params.Parameters,
    num_workers: int,
    buffers: Collection[str],
) -> Merge:
    """Return the merge that the options name, beginning with these parameters; ``buffers`` names statistics."""
    if options.merge == "synchronous":
        return Synchronous(engine, initial)
    if options.merge == "parameter_server":
        return ThroughServer(engine, initial, num_workers, buffers)
    return Commutative(engine, initial, num_workers, options.rule, buffers)


def tree_average(engine: Engine, versions: Sequence[Ref], counts: Sequence[int | Ref]) -> Ref:
    """Submit a tree of tasks that averages the versions, and free them.

    ``counts`` are the samples of each, or references to what measured them.

    The tree's shape depends on the number of versions only, so that every engine gives the same bits. One
    version is returned as it is.
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
