"""What the coordinator hears: the messages of all clients, and whether the fit's own tasks are
still there.

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
"""How long a task may take to reconnect after its process died, for engines that cannot report a
lost task.
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
        """Losses and the greetings of replacements, which are reported after the last messages of
        the lost.
        """
        self._poller = zmq.Poller()
        self._poller.register(self._tasks.socket, zmq.POLLIN)
        self.address = self._tasks.address

    def listen_for_senders(self, address: str, token: str) -> Address:
        """Listen at another address, for senders only, which present this token; return where they
        connect.
        """
        self._servers.append(MessageServer(address, token))
        self._poller.register(self._servers[-1].socket, zmq.POLLIN)
        return self._servers[-1].address

    def next(self, timeout: float) -> Received | None:
        """Return the next message, or ``None`` after ``timeout`` seconds; a client's first one
        gives its role.
        """
        if (
            (received := self._next()) is None
            and timeout
            and self._poller.poll(math.ceil(1000 * timeout))
        ):
            return self._next()
        return received

    def _next(self) -> Received | None:
        for server in self._servers:
            while (received := server.receive()) is not None:
                client, header, _ = received
                if header is client.greeting:
                    try:
                        with parsing():
                            lost = self._replaced(header, tasks=server is self._tasks)
                    except MessageError as error:
                        client.refuse(error)
                        continue
                    self._clients.add(client)
                    if lost:  # a fork takes a place within milliseconds
                        self._held.extend([*((each, None, []) for each in lost), received])
                        continue
                if self._is_known(client, header):
                    return received
        held = (self._held.popleft() for _ in range(len(self._held)))
        return next((each for each in held if self._is_known(*each[:2])), None)

    def _replaced(self, greeting: Header, *, tasks: bool) -> list[Client]:
        """Return the lost clients whose place a new one takes; raise ``MessageError`` for roles of
        others.
        """
        role = greeting.get("role")
        number = greeting.get("number")
        if not isinstance(role, str) or (role == SENDER) == tasks:
            raise MessageError(f"role {role!r}; this address is for others")
        if role == SENDER:
            return []
        if not isinstance(number, int | None):
            raise MessageError(f"number {number!r} of a {role}; give an integer")
        places = (
            (each, each.greeting["role"], each.greeting.get("number")) for each in self._clients
        )
        return [each for each, *place in places if place == [role, number] and not each.send({})]

    def _is_known(self, client: Client, header: Header | None) -> bool:
        """Return whether a client has a role and is not lost; forget it with its loss."""
        known = client in self._clients
        if header is None:
            self._clients.discard(client)
        return known

    def close(self) -> None:
        """Close all connections; simulations and workers then end."""
        for server in self._servers:
            server.close()


class ConnectedTask:
    """A task of the fit, which stays connected to the coordinator while it runs; ``submit`` submits
    it.
    """

    def __init__(self, engine: Engine, submit: Callable[[], Ref]) -> None:
        self._engine = engine
        self._submit = submit
        self.client: Client | None = None
        """The current connection."""
        self._start()

    def _start(self) -> None:
        self.ref = self._submit()
        self.has_connected = False
        self._disconnected_since = time.monotonic()

    def connect(self, client: Client) -> bool:
        """Accept a connection; return False if another task is connected in its place."""
        if self.client is not None:
            client.send({"accepted": False})
            return False
        self.client = client
        self.has_connected = True
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

    def restart(self, never_connected: Callable[[Exception | None], bool]) -> None:
        """Submit it again if it was lost with its node or connection, or the engine has given it
        up.

        If it has ended without ever connecting, ``never_connected`` gets its exception and decides
        whether to.
        """
        if self.client is not None:
            return
        ended = bool(self._engine.arrived([self.ref]))
        if ended and not self.has_connected and not never_connected(self._exception()):
            return
        known = self._engine.traits.interruptible  # what has become of tasks
        if ended or (
            not known and self.has_connected and self.seconds_disconnected > RECONNECT_SECONDS
        ):
            self._start()

    def _exception(self) -> Exception | None:
        try:
            self._engine.fetch([self.ref])
        except Exception as error:
            # Whose frames would keep the fit, and the error itself, alive.
            return error.with_traceback(None)
        return None
