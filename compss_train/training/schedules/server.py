"""Merging through a parameter server, layer by layer: the parameters bypass the engine."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from compss_train import parameter_server
from compss_train._utils import Closable
from compss_train.engines import Ref
from compss_train.engines.mapping import MappedChunk
from compss_train.engines.nodes import is_loopback
from compss_train.model import parameters as params
from compss_train.training.merge import Merge
from compss_train.training.schedules.base import SubmittedRound
from compss_train.training.schedules.on_arrival import ArrivalSchedule
from compss_train.training.schedules.round_workers import RoundWorkers
from compss_train.training.session import Session
from compss_train.worker.merging.on_arrival import only_parameters
from compss_train.worker.server_exchange import Exchange, ServerAddress, read_parameters
from compss_train.worker.train import training_through_server


class GlobalParameters(Closable):
    """Serves parameters, starting from ``initial``, to the tasks of the workers of a session.

    Changes are added, or the outer optimizer of ``merge`` steps the weights with them. If ``merge``
    keeps an average by steps, it is served, too, and continues ``averaged``, if any. With
    ``saved``, which ``save`` of an earlier one returned, all continues from that. Raises
    ``ModuleNotFoundError`` without ZeroMQ (the extra ``online``).
    """

    def __init__(
        self,
        session: Session,
        initial: params.Parameters,
        merge: Merge,
        saved: Mapping[str, Any] | None = None,
        averaged: params.Parameters | None = None,
    ) -> None:
        engine = session.engine
        workers = session.num_workers
        optimizer = merge.outer_optimizer
        exchange = Exchange.of(
            initial,
            session.names,
            workers,
            stepped=optimizer is not None,
            buffers=session.buffer_rules(merge),
        )
        interruptible = engine.traits.interruptible
        serve = parameter_server.serve if interruptible else parameter_server.serve_apart
        host = engine.host()
        self._serving = serve(None if is_loopback(host) else f"tcp://{host}:*", optimizer=optimizer)
        averages = exchange.of_averages if merge.decay("steps") is not None else None
        self.server_address = ServerAddress(
            self._serving.address, self._serving.token, exchange, averages
        )
        """The address, token and layout that tasks need to connect."""
        try:
            with self.server_address.connect() as server:
                exchange.publish(server, initial, saved)
                if averages is not None:
                    averages.publish(server, averaged or initial, saved)
        except BaseException:
            self.close()
            raise

    def pull(self, timeout: float = 60.0) -> params.Parameters:
        """Return the current parameters; raise ``TimeoutError`` after ``timeout`` seconds."""
        with self.server_address.connect(timeout=timeout) as server:
            return self.server_address.exchange.pull(server)

    def pull_averaged(self, timeout: float = 60.0) -> params.Parameters | None:
        """Return the average by steps, with the newest buffers; ``None`` if none is kept.

        Raises ``TimeoutError`` after ``timeout`` seconds.
        """
        address = self.server_address
        if address.averages is None:
            return None
        with address.connect(timeout=timeout) as server:
            return {**address.exchange.pull(server), **address.averages.pull(server)}

    def save(self, timeout: float = 60.0) -> dict[str, Any]:
        """Return what the server holds; for when no worker pushes.

        Raises ``TimeoutError`` after ``timeout`` seconds.
        """
        address = self.server_address
        with address.connect(timeout=timeout) as server:
            saved = address.exchange.save(server)
            if address.averages is not None:
                saved |= address.averages.save(server)
            return saved

    def close(self) -> None:
        """End the server; workers that connect later get no reply."""
        self._serving.close()


class ServerSchedule(ArrivalSchedule):
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
        self._global = GlobalParameters(session, initial, merge)
        try:
            self._address = self.engine.publish(self._global.server_address)
        except BaseException:
            self.stop()
            raise

    def _train(self, workers: RoundWorkers, worker: int, base: Ref, total: int) -> MappedChunk:
        chunk = range(worker, worker + 1)
        moments = None if self._moments is None else [*self._moments]
        start = [[base], moments, self._address, total]
        (mapped,) = workers.train([chunk], training_through_server, start, combine=only_parameters)
        (self.bases[worker],) = mapped.results
        return mapped

    def submit(self, workers: RoundWorkers) -> SubmittedRound:
        """Train each worker from its own base; read the parameters once all have pushed."""
        submitted = super().submit(workers)
        measured = submitted.measured["workers"]
        pulled = self.engine.submit(read_parameters, self._address, measured, priority=True)
        self.merged = replace(self.merged, parameters=[pulled])
        return replace(submitted, merged=self.merged)

    def stop(self) -> None:
        """End the server."""
        self._global.close()
