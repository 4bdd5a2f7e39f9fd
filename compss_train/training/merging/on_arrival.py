"""Merging each worker by itself, as it arrives: in the engine (``quorum=0``), or on a server.

Additions commute, so that the order of arrival changes rounding only. Through a parameter server,
workers push their changes layer by layer, and the parameters bypass the engine.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from compss_train import parameter_server
from compss_train._utils import Closable
from compss_train.engines import Ref
from compss_train.engines.nodes import is_loopback
from compss_train.model import parameters as params
from compss_train.model.optimizers import OptimizerSpec
from compss_train.training.merge import Merge
from compss_train.training.merging.synchronous import Merger, RoundWorkers, SubmittedRound
from compss_train.training.session import Session
from compss_train.worker.server_exchange import Exchange, ServerAddress, read_parameters
from compss_train.worker.train import train_worker


class ArrivalMerger(Merger):
    """Each worker trains from its own base parameters, and merges when it arrives."""

    rounds_ahead = 8
    """Maximum number of rounds that the fastest worker may be ahead of the slowest."""

    def __init__(self, session: Session, merge: Merge, initial: params.Parameters) -> None:
        super().__init__(session, merge, initial)
        self._initial = self.parameters
        self._moments = self.state.moments
        """What workers start their first round from, if anything."""

    def submit(self, workers: RoundWorkers) -> SubmittedRound:
        """Train each worker from its own base, and merge it."""
        counts = workers.round.counts
        active = [worker for worker, count in enumerate(counts) if count]
        measured = []
        for worker in active:
            base = self.bases.get(worker, self._initial)
            measured.append(self._train(workers, worker, base, sum(counts)))
        self._moments = None  # from now on workers have their own
        return SubmittedRound(
            round=workers.round,
            tasks=[[worker] for worker in active],
            measured={"workers": measured},
            parameters=self.parameters,
            states=[*self.session.states],
        )

    @abstractmethod
    def _train(self, workers: RoundWorkers, worker: int, base: Ref, total: int) -> Ref:
        """Train a worker from its base, and set its next one; return its measurements.

        The workers of the round have ``total`` samples in all.
        """


class CommutativeMerger(ArrivalMerger):
    """Every worker adds its change to the global parameters and continues from the result."""

    name = "commutative"

    def __init__(self, session: Session, merge: Merge, initial: params.Parameters) -> None:
        super().__init__(session, merge, initial)
        self._rule = merge.rule
        self._buffers = session.names.buffers
        self.parameters = self.engine.publish(initial)

    def _train(self, workers: RoundWorkers, worker: int, base: Ref, total: int) -> Ref:
        trained, measured = workers.submit(worker, train_worker, base, self._moments)
        if self._rule == "halving":
            self.bases[worker] = self.engine.commute(self.parameters, params.halve, trained)
            return measured
        count = measured if workers.data.source.may_skip else workers.round.counts[worker]
        self.bases[worker] = self.engine.commute(
            self.parameters, params.apply_delta, base, trained, count, total, self._buffers
        )
        return measured

    def newest(self, submitted: SubmittedRound) -> params.Parameters:
        """Return the newest value, with later changes: waiting would delay the other workers."""
        value: params.Parameters | None = self.engine.peek(self.parameters)
        return self.engine.fetch([self.parameters])[0] if value is None else value


class GlobalParameters(Closable):
    """Serves parameters, starting from ``initial``, to the tasks of the workers of a session.

    Changes are added, or the server's ``optimizer`` steps the weights with them. With ``saved``,
    which ``save`` of an earlier one returned, it continues from that. Raises
    ``ModuleNotFoundError`` without ZeroMQ (the extra ``online``).
    """

    def __init__(
        self,
        session: Session,
        initial: params.Parameters,
        optimizer: OptimizerSpec | None,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        engine = session.engine
        workers = session.num_workers
        exchange = Exchange.of(initial, session.names, workers, stepped=optimizer is not None)
        interruptible = engine.traits.interruptible
        serve = parameter_server.serve if interruptible else parameter_server.serve_apart
        host = engine.host()
        self._serving = serve(None if is_loopback(host) else f"tcp://{host}:*", optimizer=optimizer)
        self.server_address = ServerAddress(self._serving.address, self._serving.token, exchange)
        """The address, token and layout that tasks need to connect."""
        try:
            with self.server_address.connect() as server:
                exchange.publish(server, initial, saved)
        except BaseException:
            self.close()
            raise

    def pull(self, timeout: float = 60.0) -> params.Parameters:
        """Return the current parameters; raise ``TimeoutError`` after ``timeout`` seconds."""
        with self.server_address.connect(timeout=timeout) as server:
            return self.server_address.exchange.pull(server)

    def save(self, timeout: float = 60.0) -> dict[str, Any]:
        """Return what the server holds; for when no worker pushes.

        Raises ``TimeoutError`` after ``timeout`` seconds.
        """
        with self.server_address.connect(timeout=timeout) as server:
            return self.server_address.exchange.save(server)

    def close(self) -> None:
        """End the server; workers that connect later get no reply."""
        self._serving.close()


class ServerMerger(ArrivalMerger):
    """Every worker pushes its change to a server, and continues from what it pulls.

    An outer optimizer runs on the server: it steps with each worker's change on arrival, layer by
    layer, and starts fresh in every fit. Its momentum advances with every push, in each round once
    for every worker. A momentum of β then acts like a learning rate 1 / (1 - β) times as large,
    with changes that were computed without it: values that suit one step a round, such as 0.9, can
    diverge.
    """

    name = "parameter_server"

    def __init__(self, session: Session, merge: Merge, initial: params.Parameters) -> None:
        super().__init__(session, merge, initial)
        self._global = GlobalParameters(session, initial, merge.outer_optimizer)
        try:
            self._address = self.engine.publish(self._global.server_address)
        except BaseException:
            self.stop()
            raise

    def _train(self, workers: RoundWorkers, worker: int, base: Ref, total: int) -> Ref:
        self.bases[worker], measured = workers.submit(
            worker, train_worker, base, self._moments, self._address, total
        )
        return measured

    def submit(self, workers: RoundWorkers) -> SubmittedRound:
        """Train each worker from its own base; read the parameters once all have pushed."""
        submitted = super().submit(workers)
        measured = submitted.measured["workers"]
        self.parameters = self.engine.submit(
            read_parameters, self._address, measured, priority=True
        )
        return replace(submitted, parameters=self.parameters)

    def stop(self) -> None:
        """End the server."""
        self._global.close()
