"""Merging through a parameter server: workers push their changes to it, and the parameters bypass the engine."""

from collections.abc import Iterable

from compss_train import parameter_server
from compss_train._utils.closing import Closable
from compss_train.data.partitioning import Round
from compss_train.engines import Engine, Ref
from compss_train.engines.nodes import is_loopback
from compss_train.model.optimizers import OptimizerSpec
from compss_train.model.parameters import Parameters
from compss_train.model.training_spec import TensorNames
from compss_train.training.merging.base import Merger, SubmittedRound
from compss_train.training.merging.commutative import ROUNDS_AHEAD
from compss_train.training.training_state import NOTHING_KEPT, MergeState
from compss_train.training.worker_group import WorkerGroup
from compss_train.worker.server_exchange import (
    Exchange,
    ServerAddress,
    read_parameters,
    train_and_exchange,
)


class GlobalParameters(Closable):
    """Serves parameters to the tasks of an engine, starting from ``initial``, for ``num_workers`` workers.

    Changes are added, or an ``optimizer`` of the server steps the weights with them. Raises ``ModuleNotFoundError``
    without ZeroMQ (the extra ``online``).
    """

    def __init__(
        self,
        engine: Engine,
        initial: Parameters,
        num_workers: int,
        *,
        names: TensorNames,
        optimizer: OptimizerSpec | None = None,
    ) -> None:
        exchange = Exchange.of(initial, names, num_workers, stepped=optimizer is not None)
        serve = parameter_server.serve_apart if not engine.traits.interruptible else parameter_server.serve
        host = engine.host()
        self._serving = serve(None if is_loopback(host) else f"tcp://{host}:*", optimizer=optimizer)
        self.server_address = ServerAddress(self._serving.address, self._serving.token, exchange)
        """The address, token and layout that tasks need to connect."""
        try:
            with self.server_address.connect() as server:
                exchange.publish(server, initial)
        except BaseException:
            self.close()
            raise

    def pull(self, timeout: float = 60.0) -> Parameters:
        """Return the current parameters; raise ``TimeoutError`` after ``timeout`` seconds."""
        with self.server_address.connect(timeout=timeout) as server:
            return self.server_address.exchange.pull(server)

    def close(self) -> None:
        """End the server; workers that connect later get no reply."""
        self._serving.close()


class ServerMerger(Merger):
    """Every worker pushes its change to a parameter server, and continues from the parameters that it pulls.

    An outer optimizer is the server's: it steps with each worker's change when it arrives, layer by layer, and is
    new in every fit. Its momentum advances with every push, as often in a round as there are workers. A momentum of
    β then acts like a learning rate 1 / (1 - β) times as large, with changes that were computed without it: values
    that suit one step a round, such as 0.9, can diverge. Commutative merging waits with momentum.
    """

    name = "parameter_server"
    rounds_ahead = ROUNDS_AHEAD

    def __init__(
        self, engine: Engine, initial: Parameters, shared: GlobalParameters, state: MergeState = NOTHING_KEPT
    ) -> None:
        """``shared`` serves the same ``initial`` parameters; ``stop`` closes it, and so does an error here."""
        self.engine = engine
        self.state = state
        self._moments = state.moments
        self._global = shared
        try:
            self._address = engine.publish(self._global.server_address)
            self.parameters = self._initial = engine.publish(initial)
        except BaseException:
            self.stop()
            raise
        self._bases: dict[int, Ref] = {}

    def submit(self, workers: WorkerGroup, round_: Round) -> SubmittedRound:
        """Train each worker from its own base and exchange parameters, then read the server's."""
        counts = round_.counts
        total = sum(counts)
        measured: dict[int, Ref] = {}
        for worker, count in enumerate(counts):
            if count:
                base = self._bases.get(worker, self._initial)
                more = train_and_exchange, self._address, total
                self._bases[worker], measured[worker] = workers.train_alone(
                    worker, round_, base, self._moments, *more
                )
                self._free([base])
        self._moments = None  # from now on workers have their own
        args = self._address, list(measured.values())
        self.parameters = self.engine.submit(read_parameters, *args, priority=True)
        return SubmittedRound(
            round=round_,
            tasks=[[worker] for worker in measured],
            measured=[*measured.values()],
            parameters=self.parameters,
            states=tuple(workers.states),
        )

    def go_back(self, submitted: SubmittedRound | None) -> None:
        """Keep the parameters that were read after that round."""
        self.parameters = self._initial if submitted is None else submitted.parameters

    def retire(self, submitted: SubmittedRound) -> None:
        """Free the parameters that were read after that round."""
        self._free([submitted.parameters])

    def stop(self) -> None:
        """End the server."""
        self._global.close()

    def close(self) -> None:
        """Free the parameters that were read last, and the bases of the workers."""
        self._free({*self._bases.values(), self.parameters})
        self.engine.delete([self._initial, self._address])

    def _free(self, refs: Iterable[Ref]) -> None:
        self.engine.delete([ref for ref in refs if ref is not self._initial])
