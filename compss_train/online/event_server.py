"""Event server of the coordinator: turns the messages of all clients into events.

Clients are workers, simulations, external senders and evaluations. ``TaskLiveness`` keeps the connection state of
a task.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import zmq

from compss_train._utils import Closable
from compss_train.data.block import Block
from compss_train.engines.nodes import is_loopback
from compss_train.net.connection import Header
from compss_train.net.server import MessageServer
from compss_train.net.tokens import new_token

RECONNECT_SECONDS = 120.0
"""How long a task may take to reconnect after its process died, for engines that cannot report a lost task."""

SENDER = "sender"
"""The role of programs that are not tasks of the fit."""


class Client:
    """A client that is connected to the coordinator."""

    def __init__(self, server: MessageServer, identity: bytes, greeting: Header) -> None:
        self._server, self._identity = server, identity
        self.role = str(greeting["role"])
        """worker, simulation, sender or evaluation."""
        self.number: Any = greeting.get("number")
        self.name: Any = greeting.get("name")

    def send(self, header: Header, arrays: Sequence[Block] = ()) -> None:
        """Send a message. Ignored if disconnected; a disconnect event follows."""
        self._server.send(self._identity, header, arrays)


@dataclass(frozen=True)
class Event:
    """A message of a client; the first one is its greeting. ``header`` is ``None`` if it disconnected."""

    client: Client
    header: Header | None
    arrays: Sequence[torch.Tensor] = ()


class EventServer(Closable):
    """Receives the messages of all clients, for one thread.

    The fit's own tasks present a token that is generated for each fit. ``host`` is the address at which they reach
    this machine: if it is the loopback address, nobody but this user can connect.
    """

    def __init__(self, host: str) -> None:
        self._tasks = MessageServer(None if is_loopback(host) else f"tcp://{host}:*", new_token())
        self._servers = [self._tasks]
        self._clients: dict[tuple[MessageServer, bytes], Client] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._tasks.socket, zmq.POLLIN)
        self.address = self._tasks.address

    def listen_for_senders(self, address: str, token: str) -> None:
        """Listen at another address, for senders only, which present this token."""
        self._servers.append(MessageServer(address, token))
        self._poller.register(self._servers[-1].socket, zmq.POLLIN)

    def next(self, timeout: float) -> Event | None:
        """Return the next event, ``None`` after ``timeout`` seconds."""
        if (event := self._next()) is None and timeout and self._poller.poll(math.ceil(1000 * timeout)):
            return self._next()
        return event

    def _next(self) -> Event | None:
        for server in self._servers:
            while (received := server.receive()) is not None:
                if (event := self._event(server, *received)) is not None:
                    return event
        return None

    def _event(
        self, server: MessageServer, identity: bytes, header: Header | None, arrays: Sequence[torch.Tensor]
    ) -> Event | None:
        """Return the event of a message; ``None`` for a client whose greeting is not accepted."""
        client = self._clients.get((server, identity))
        if header is None:
            self._clients.pop((server, identity), None)
            return None if client is None else Event(client, None)
        if client is None:
            role = header.get("role")
            if not isinstance(role, str) or (role == SENDER) == (server is self._tasks):
                server.send(identity, {"error": f"role {role!r}; this address is for others"})
                return None
            client = self._clients[server, identity] = Client(server, identity, header)
        return Event(client, header, arrays)

    def close(self) -> None:
        """Close all connections; simulations and workers then end."""
        for server in self._servers:
            server.close()


class TaskLiveness:
    """Connection state of one submitted task."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._disconnected_since = clock()
        self.client: Client | None = None
        """The current connection."""
        self.has_connected = False
        """Whether it was ever connected."""

    def connect(self, client: Client) -> None:
        """Mark as connected."""
        self.client, self.has_connected = client, True

    def disconnect(self) -> None:
        """Mark as disconnected."""
        self.client, self._disconnected_since = None, self._clock()

    @property
    def seconds_disconnected(self) -> float:
        """Seconds since it was submitted or disconnected; 0 while it is connected."""
        return self._clock() - self._disconnected_since if self.client is None else 0.0

    @property
    def is_lost(self) -> bool:
        """Whether it was connected and has not reconnected in time."""
        return self.has_connected and self.seconds_disconnected > RECONNECT_SECONDS
