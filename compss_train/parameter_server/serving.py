"""Serving parameters over ZeroMQ, which the extra ``server`` installs."""

from __future__ import annotations

import secrets
import threading

import zmq

from compss_train._utils.closing import Closable
from compss_train._utils.validation import check_count
from compss_train.model.optimizers import OptimizerSpec, optimizer_factory
from compss_train.parameter_server.loop import Loop

MAX_BACKLOG = 2**28
"""Bytes of pushes that wait at the server, by default; more wait with the clients."""


class Serving(Closable):
    """A running server: its ``address``, the ``token`` that clients need, and ``close``."""

    def __init__(self, loop: Loop, address: str, token: str) -> None:
        self.address = address
        self.token = token
        self._loop = loop
        self._thread = threading.Thread(target=loop.run, name="parameter-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Execute what has been received, and end; may be called again."""
        self._loop.stop()
        self._thread.join()


def serve(
    address: str = "tcp://127.0.0.1:*",
    *,
    optimizer: OptimizerSpec | None = None,
    token: str | None = None,
    max_backlog: int = MAX_BACKLOG,
) -> Serving:
    """Serve parameters to clients in other processes, or on other nodes, from a thread of this process.

    Parameters
    ----------
    address:
        Where to listen; by default a free port, for this machine alone. ``tcp://*:5555`` lets others in.
    optimizer:
        As of ``LocalParameterServer``.
    token:
        What clients must know; ``None`` draws one. It keeps others out of the store, but messages are not
        encrypted: serve in networks that you trust.
    max_backlog:
        Bytes of pushes that wait here, 256 MiB by default; more wait with the clients.

    Raises ``OSError`` where it cannot listen at the address.
    """
    check_count("max_backlog", max_backlog)
    factory = None if optimizer is None else optimizer_factory(optimizer)
    token = secrets.token_urlsafe(16) if token is None else token
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client that comes back is the same client
    socket.setsockopt(zmq.RCVHWM, 256)
    socket.setsockopt(zmq.LINGER, 1000)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        context.destroy(0)
        raise OSError(f"cannot listen at {address}: {error}") from error
    bound = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return Serving(Loop(context, socket, token.encode(), factory, max_backlog), bound, token)
