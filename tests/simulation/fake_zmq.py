"""Stands in for ZeroMQ: sockets in one process, whose messages are late, doubled, lost with a connection, or kill.

Only what the parameter server uses. A connection delivers messages in order. It may break at any message: what was
on its way is lost, in part or all of it, or arrives after messages of the next connection (``stale``), and the
client connects again. The names are those of ``zmq``.
"""

# ruff: noqa: N802

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.simulation.engine import FaultPlan
from tests.simulation.fibers import COORDINATOR, FiberEvents

SECONDS = (0.001, 0.01, 0.01, 0.5)
"""How long a message takes."""

CONNECTING = 0.01
"""Seconds that it takes to connect."""

PATIENCE = 30.0
"""Seconds that a poll waits unless something happens, however little it was to wait."""


class Again(Exception):  # noqa: N818
    pass


class ZMQError(OSError):
    pass


class Frame:
    def __init__(self, data: Any, copy: bool = True) -> None:
        self.bytes = bytearray(data)
        self.buffer = memoryview(self.bytes)

    def __len__(self) -> int:
        return len(self.bytes)

    def get(self, name: str) -> str:
        return "0"


class Link:
    """The connection of one client."""

    def __init__(self, zmq: FakeZmq, client: Socket, server: Socket) -> None:
        self._zmq, self.client, self.server = zmq, client, server
        self._generation = 0
        self._late: set[int] = set()
        """Generations whose messages arrive after those of later ones."""
        self._arrives: dict[Socket, float] = {}
        """When the last message to each end arrives: the next one is not faster."""
        self.connect()

    def connect(self) -> None:
        self._zmq.after(CONNECTING, self._connected)
        self._arrives = dict.fromkeys((self.client, self.server), self._zmq.events.now + 2 * CONNECTING)

    def _connected(self) -> None:
        if not self.client.closed and not self.server.closed:
            self.server.links[self.client.identity] = self
            self.client.handshakes.append({"event": FakeZmq.EVENT_HANDSHAKE_SUCCEEDED})

    def send(self, to: Socket, frames: list[bytes]) -> None:
        zmq, generation = self._zmq, self._generation
        seconds, times = zmq.message(self)
        arrives = max(zmq.events.now + seconds, self._arrives[to] + 1e-6)
        self._arrives[to] = arrives

        def arrive(late: bool = False) -> None:
            if to.closed:
                return
            if late or generation == self._generation:
                to.received.append(frames)
            elif generation in self._late:
                zmq.after(zmq.events.draw.choice(SECONDS), lambda: arrive(late=True))

        for _ in range(times):
            zmq.after(arrives - zmq.events.now, arrive)

    def break_off(self, *, late: bool = False) -> None:
        """Lose what is on its way, or have it arrive late, and connect again."""
        if late:
            self._late.add(self._generation)
        self._generation += 1
        self.server.links.pop(self.client.identity, None)
        self.connect()


class Socket:
    def __init__(self, zmq: FakeZmq, kind: str) -> None:
        self._zmq, self._kind = zmq, kind
        self.process = zmq.events.current.process
        self.identity = b""
        self.address = ""
        self.received: deque[list[bytes]] = deque()
        self.links: dict[bytes, Link] = {}
        self.handshakes: deque[dict[str, Any]] = deque()
        self._link: Link | None = None
        self._unsent: list[list[bytes]] = []
        self.closed = False
        zmq.sockets.append(self)

    @property
    def EVENTS(self) -> int:
        return FakeZmq.POLLIN if self.received else 0

    def setsockopt(self, option: str, value: Any) -> None:
        if option == FakeZmq.IDENTITY:
            self.identity = value

    def setsockopt_string(self, option: str, value: str) -> None:
        self.setsockopt(option, value.encode())

    def getsockopt_string(self, option: str) -> str:
        return self.address

    def get_monitor_socket(self, events: int) -> Monitor:
        return Monitor(self.handshakes)

    def monitor(self, address: str, events: int) -> None:
        pass

    def disable_monitor(self) -> None:
        pass

    def bind(self, address: str) -> None:
        self._zmq.ports += 1
        self.address = address.replace("*", str(40_000 + self._zmq.ports))
        self._zmq.bound[self.address] = self

    def connect(self, address: str) -> None:
        server = self._zmq.bound.get(address)
        if server is not None and not server.closed:
            self._link = Link(self._zmq, self, server)

    def send_multipart(self, frames: Sequence[Any], flags: int = 0) -> None:
        sent = [bytes(frame.buffer if isinstance(frame, Frame) else frame) for frame in frames]
        if self._kind == "ROUTER":
            identity, *sent = sent
            if (link := self.links.get(identity)) is not None:
                link.send(link.client, sent)
        elif self._link is not None:
            self._link.send(self._link.server, [self.identity, *sent])

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Frame]:
        if not self.received:
            raise Again
        return [Frame(frame) for frame in self.received.popleft()]

    def poll(self, milliseconds: float) -> int:
        self._zmq.poll(lambda: bool(self.received), 120 * PATIENCE)
        return self.EVENTS

    def close(self) -> None:
        self.closed = True


class Monitor:
    def __init__(self, handshakes: deque[dict[str, Any]]) -> None:
        self.handshakes = handshakes

    @property
    def EVENTS(self) -> int:
        return FakeZmq.POLLIN if self.handshakes else 0


class Poller:
    def __init__(self, zmq: FakeZmq) -> None:
        self._zmq = zmq
        self._sources: list[Any] = []

    def register(self, source: Any, flags: int) -> None:
        self._sources.append(source)

    def poll(self, milliseconds: float) -> list[tuple[Any, int]]:
        self._zmq.poll(lambda: any(map(_readable, self._sources)), PATIENCE)
        return [(source, FakeZmq.POLLIN) for source in self._sources if _readable(source)]


def _readable(source: Any) -> bool:
    if isinstance(source, int):
        return bool(select.select([source], [], [], 0)[0])
    return bool(source.EVENTS)


class Context:
    def __init__(self, zmq: FakeZmq) -> None:
        self._zmq = zmq
        self._sockets: list[Socket] = []

    def socket(self, kind: str) -> Socket:
        made = Socket(self._zmq, kind)
        self._sockets.append(made)
        return made

    def destroy(self, milliseconds: int = 0) -> None:
        for socket in self._sockets:
            socket.close()


class FakeZmq:
    """The module ``zmq``, of one simulated network."""

    ROUTER, DEALER, PAIR = "ROUTER", "DEALER", "PAIR"
    IDENTITY, LAST_ENDPOINT = "IDENTITY", "LAST_ENDPOINT"
    ROUTER_HANDOVER = RCVHWM = LINGER = HANDSHAKE_IVL = MAXMSGSIZE = "ignored"
    POLLIN = NOBLOCK = EVENT_HANDSHAKE_SUCCEEDED = 1
    EVENT_ACCEPTED = EVENT_DISCONNECTED = 2
    EVENT_HANDSHAKE_FAILED_NO_DETAIL = EVENT_HANDSHAKE_FAILED_PROTOCOL = EVENT_HANDSHAKE_FAILED_AUTH = 4
    ZMQError, Again, Frame = ZMQError, Again, Frame

    def __init__(self, events: FiberEvents, plan: FaultPlan) -> None:
        self.events, self._plan = events, plan
        self.bound: dict[str, Socket] = {}
        self.sockets: list[Socket] = []
        self.ports = 0
        events.at_end.append(self.close_sockets)

    def Context(self) -> Context:
        return Context(self)

    def Poller(self) -> Poller:
        return Poller(self)

    def has(self, transport: str) -> bool:
        return True

    def curve_keypair(self) -> tuple[bytes, bytes]:
        return b"public", b"secret"

    def recv_monitor_message(self, monitor: Monitor, flags: int = 0) -> dict[str, Any]:
        return monitor.handshakes.popleft()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.events.after(seconds, action)

    def poll(self, condition: Callable[[], bool], seconds: float) -> None:
        changes = self.events.changes
        self.events.wait(lambda: condition() or self.events.changes != changes, seconds)

    def message(self, link: Link) -> tuple[float, int]:
        """Return how long a message takes, and how often it arrives.

        A fault may break the connection, or end the client's process.
        """
        seconds, times = self.events.draw.choice(SECONDS), 1
        for fault in self._plan.at("message"):
            if fault.kind == "late":
                seconds += fault.seconds
            if fault.kind in ("cut", "stale"):
                self.after(seconds / 2, partial(link.break_off, late=fault.kind == "stale"))
            if fault.kind == "double":
                times = 2
            if fault.kind == "die" and link.client.process is not COORDINATOR:
                self.after(seconds / 2, lambda: self.events.kill(link.client.process))
        return seconds, times

    def close_sockets(self, process: object) -> None:
        """Do what the system does when a process ends."""
        for each in self.sockets:
            if each.process is process:
                each.close()
