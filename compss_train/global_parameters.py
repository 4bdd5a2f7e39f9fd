"""The global parameters on a parameter server in the coordinator, where workers push to and pull from."""

from __future__ import annotations

import uuid
from collections.abc import Collection

from compss_train import parameter_server
from compss_train.parameter_server.base import Closable
from compss_train.parameters import Parameters
from compss_train.worker.exchange import Exchange
from compss_train.worker.served import Served


class GlobalParameters(Closable):
    """Serves parameters at this host's address, beginning with ``initial``, to ``num_workers`` workers.

    ``buffers`` names the network's statistics. Needs ZeroMQ: raises ``ModuleNotFoundError`` without.
    """

    def __init__(self, host: str, initial: Parameters, num_workers: int, buffers: Collection[str]) -> None:
        self._serving = parameter_server.serve(f"tcp://{host}:*")
        exchange = Exchange.of(initial, buffers, num_workers)
        self.served = Served(self._serving.address, self._serving.token, exchange)
        """What tasks need to get there."""
        try:
            self._client = self.served.connect(f"coordinator {uuid.uuid4()}")
            exchange.publish(self._client, initial)
        except BaseException:
            self._serving.close()
            raise

    def pull(self) -> Parameters:
        """Return them as they are now."""
        return self.served.exchange.pull(self._client)

    def close(self) -> None:
        """End the server; workers that still come get no answer."""
        self._client.close()
        self._serving.close()
