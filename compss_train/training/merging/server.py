"""Merging through a parameter server: workers push their changes to it, and the parameters bypass the engine."""

from compss_train import parameter_server
from compss_train._utils import Closable
from compss_train.engines import Engine, Ref
from compss_train.engines.nodes import is_loopback
from compss_train.model.optimizers import OptimizerSpec
from compss_train.model.parameters import Parameters
from compss_train.model.training_spec import TensorNames
from compss_train.training.merging.base import ArrivalMerger, SubmittedRound
from compss_train.training.training_state import MergeState
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


class ServerMerger(ArrivalMerger):
    """Every worker pushes its change to a parameter server, and continues from the parameters that it pulls.

    An outer optimizer is the server's: it steps with each worker's change when it arrives, layer by layer, and is
    new in every fit. Its momentum advances with every push, as often in a round as there are workers. A momentum of
    β then acts like a learning rate 1 / (1 - β) times as large, with changes that were computed without it: values
    that suit one step a round, such as 0.9, can diverge. Commutative merging waits with momentum.
    """

    name = "parameter_server"

    def __init__(self, engine: Engine, initial: Parameters, state: MergeState, shared: GlobalParameters) -> None:
        """``shared`` serves the same ``initial`` parameters; ``stop`` closes it, and so does an error here."""
        self._global = shared
        try:
            super().__init__(engine, initial, state)
            self._address = engine.publish(shared.server_address)
        except BaseException:
            self.stop()
            raise

    def _train(self, workers: WorkerGroup, worker: int, base: Ref, total: int, active: int) -> Ref:
        exchange = train_and_exchange, self._address, total
        self._bases[worker], measured = workers.train_alone(worker, base, self._moments, *exchange)
        self._free([base])
        return measured

    def _after(self, measured: list[Ref]) -> Ref:
        """Read the parameters of the server once all workers have pushed their changes."""
        self.parameters = self.engine.submit(read_parameters, self._address, measured, priority=True)
        return self.parameters

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
