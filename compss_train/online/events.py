"""What the coordinator hears of its clients, and whether the fit's own tasks are still there.

Clients are workers, simulations, external senders and evaluations.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from compss_train._utils import Closable
from compss_train.data.block import Block
from compss_train.engines import Engine, Ref, nodes
from compss_train.net import (
    Address,
    Client,
    Header,
    MessageError,
    MessageServer,
    Received,
    new_token,
    parsing,
)

RECONNECT_SECONDS = 120.0
"""How long a task whose process died may take to reconnect.

For engines that cannot report a lost task.
"""

SENDER = "sender"
"""The role of programs that are not tasks of the fit."""


class EventServer(Closable):
    """Receives the messages of all clients, for one thread.

    The fit's own tasks present a token that is generated for each fit. ``host`` is the address at
    which they reach this machine: if it is the loopback address, only this user can connect.
    """

    def __init__(self, host: str) -> None:
        self._tasks = MessageServer(
            None if nodes.is_loopback(host) else f"tcp://{host}:*", new_token()
        )
        self._servers = [self._tasks]
        self._clients: set[Client] = set()
        self._held: deque[Received] = deque()
        """Losses of clients, and greetings of what replaces them.

        They are reported after the last messages of the lost clients.
        """
        self._poller = zmq.Poller()
        self._poller.register(self._tasks.socket, zmq.POLLIN)
        self.address = self._tasks.address

    def listen_for_senders(self, address: str, token: str) -> Address:
        """Listen at another address, for senders with this token; return where they connect."""
        server = MessageServer(address, token)
        self._servers.append(server)
        self._poller.register(server.socket, zmq.POLLIN)
        return server.address

    def next(self, timeout: float) -> Received | None:
        """Return the next message, or ``None`` after ``timeout`` seconds.

        The first one of a client gives its role.
        """
        received = self._next()
        if received is None and timeout and self._poller.poll(math.ceil(1000 * timeout)):
            return self._next()
        return received

    def _next(self) -> Received | None:
        for server in self._servers:
            while (received := server.receive()) is not None:
                client, header, _ = received
                if header is client.greeting and not self._greeted(server, received):
                    continue
                if self._is_known(client, header):
                    return received
        for _ in range(len(self._held)):
            received = self._held.popleft()
            client, header, _ = received
            if self._is_known(client, header):
                return received
        return None

    def _greeted(self, server: MessageServer, received: Received) -> bool:
        """Accept a client; return whether its greeting is to be reported now."""
        client = received[0]
        try:
            with parsing():
                lost_clients = self._replaced(client.greeting, tasks=server is self._tasks)
        except MessageError as error:
            client.refuse(error)
            return False
        self._clients.add(client)
        # A fork takes a place within milliseconds.
        self._held += [(replaced, None, []) for replaced in lost_clients]
        if lost_clients:
            self._held.append(received)
        return not lost_clients

    def _replaced(self, greeting: Header, *, tasks: bool) -> list[Client]:
        """Return the lost clients whose place a new one takes.

        Raises ``MessageError`` for a role that does not belong to this address.
        """
        role = greeting.get("role")
        number = greeting.get("number")
        if not isinstance(role, str) or (role == SENDER) == tasks:
            raise MessageError(f"role {role!r}; this address is for others")
        if role == SENDER:
            return []
        if not isinstance(number, int | None):
            raise MessageError(f"number {number!r} of a {role}; give an integer")
        lost_clients: list[Client] = []
        for client in self._clients:
            place = (client.greeting["role"], client.greeting.get("number"))
            if place == (role, number) and not client.send({}):
                lost_clients.append(client)
        return lost_clients

    def _is_known(self, client: Client, header: Header | None) -> bool:
        """Return whether a client has a role and is not lost; forget it with its loss."""
        is_known = client in self._clients
        if header is None:
            self._clients.discard(client)
        return is_known

    def close(self) -> None:
        """Close all connections; simulations and workers then end."""
        for server in self._servers:
            server.close()


class ConnectedSource:
    """A program that is connected to the coordinator while it runs."""

    def __init__(self) -> None:
        self.client: Client | None = None
        """The current connection."""
        self._await_connection()

    def _await_connection(self) -> None:
        """Begin as a program that has never connected."""
        self.has_connected = False
        self.connected = 0.0
        """When the current connection was made, by the monotonic clock."""
        self._disconnected_since = time.monotonic()

    def connect(self, client: Client) -> bool:
        """Accept a connection; return False if another program is connected in its place."""
        if self.client is not None:
            client.send({"accepted": False})
            return False
        self.client = client
        self.has_connected = True
        self.connected = time.monotonic()
        return True

    def disconnect(self) -> None:
        """Mark as disconnected."""
        self.client = None
        self._disconnected_since = time.monotonic()

    def send(self, header: Header, arrays: Sequence[Block] = ()) -> None:
        """Send a message if it is connected."""
        if self.client is not None:
            self.client.send(header, arrays)

    @property
    def seconds_disconnected(self) -> float:
        """Seconds since it was submitted or disconnected; 0 while it is connected."""
        return time.monotonic() - self._disconnected_since if self.client is None else 0.0


class ConnectedTask(ConnectedSource):
    """A task of the fit, which ``submit`` submits."""

    def __init__(self, engine: Engine, submit: Callable[[], Ref]) -> None:
        super().__init__()
        self._engine = engine
        self._submit = submit
        self._start()

    def _start(self) -> None:
        self.ref = self._submit()
        self._await_connection()

    def restart(self, never_connected: Callable[[Exception | None], bool]) -> None:
        """Submit it again if it was lost with its node or connection, or the engine gave it up.

        If it has ended without ever connecting, ``never_connected`` gets its exception and decides.
        """
        if self.client is not None:
            return
        has_ended = bool(self._engine.arrived([self.ref]))
        if has_ended and not self.has_connected and not never_connected(self._exception()):
            return
        engine_knows = self._engine.traits.interruptible  # what has become of tasks
        is_overdue = self.has_connected and self.seconds_disconnected > RECONNECT_SECONDS
        if has_ended or (is_overdue and not engine_knows):
            self._start()

    def _exception(self) -> Exception | None:
        try:
            self._engine.fetch([self.ref])
        except Exception as error:
            # Whose frames would keep the fit, and the error itself, alive.
            return error.with_traceback(None)
        return None
