"""The global parameters on a parameter server beside the coordinator, where workers push to and pull from."""

from __future__ import annotations

from collections.abc import Collection

from compss_train import parameter_server
from compss_train._utils.closing import Closable
from compss_train.engines import Engine
from compss_train.model.parameters import Parameters
from compss_train.parameter_server.subprocess_server import serve_apart
from compss_train.training.worker.server_exchange import Exchange, Served


class GlobalParameters(Closable):
    """Serves parameters to an engine's tasks, beginning with ``initial``, for ``num_workers`` workers.

    ``buffers`` names the network's statistics. Raises ``ModuleNotFoundError`` where ZeroMQ is missing.
    """

    def __init__(self, engine: Engine, initial: Parameters, num_workers: int, buffers: Collection[str]) -> None:
        exchange = Exchange.of(initial, buffers, num_workers)
        serve = serve_apart if engine.waiting_stops_threads else parameter_server.serve
        self._serving = serve(f"tcp://{engine.host()}:*")
        self.served = Served(self._serving.address, self._serving.token, exchange)
        """What tasks need to get there."""
        try:
            with self.served.connect() as server:
                exchange.publish(server, initial)
        except BaseException:
            self.close()
            raise

    def pull(self, timeout: float = 60.0) -> Parameters:
        """Return the parameters as they are now; ``TimeoutError`` after so many seconds."""
        with self.served.connect(timeout=timeout) as server:
            return self.served.exchange.pull(server)

    def close(self) -> None:
        """End the server; workers that still come get no answer."""
        self._serving.close()
