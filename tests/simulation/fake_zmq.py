"""Stands in for ZeroMQ: sockets in one process, whose messages are late, doubled, lost with a connection, or kill.

Only what the package uses. A connection delivers messages in order. It may break at any message: what was on its
way is lost, in part or all of it, or arrives after messages of the next connection (``stale``). Clients of the
parameter server connect again; those with ``RECONNECT_IVL`` of -1 learn that they are disconnected. The names are
those of ``zmq``.
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
    def __init__(self, data: Any, copy: bool = True, descriptor: int = 0) -> None:
        self.buffer = memoryview(bytearray(data))
        self._descriptor = descriptor

    @property
    def bytes(self) -> bytes:
        return bytes(self.buffer)

    def __len__(self) -> int:
        return len(self.buffer)

    def get(self, name: str) -> str:
        return str(self._descriptor)


class Link:
    """The connection of one client."""

    def __init__(self, zmq: FakeZmq, client: Socket, server: Socket) -> None:
        self._zmq, self.client, self.server = zmq, client, server
        self.descriptor = 0
        self.ended = False
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
        if self.server.closed:
            self.client.notice(FakeZmq.EVENT_CLOSED)
        elif not self.client.closed and not self.ended:
            self._zmq.descriptors += 1
            self.descriptor = self._zmq.descriptors
            self.server.links[self.client.identity] = self
            self.server.notice(FakeZmq.EVENT_ACCEPTED, self.descriptor)
            self.client.notice(FakeZmq.EVENT_HANDSHAKE_SUCCEEDED)

    def send(self, to: Socket, frames: list[bytes]) -> None:
        zmq, generation, descriptor = self._zmq, self._generation, self.descriptor
        seconds, times = zmq.message(self)
        arrives = max(zmq.events.now + seconds, self._arrives[to] + 1e-6)
        self._arrives[to] = arrives

        def arrive(late: bool = False) -> None:
            if to.closed:
                return
            if late or generation == self._generation:
                to.received.append((descriptor, frames))
            elif generation in self._late:
                zmq.after(zmq.events.draw.choice(SECONDS), lambda: arrive(late=True))

        for _ in range(times):
            zmq.after(arrives - zmq.events.now, arrive)

    def break_off(self, *, late: bool = False) -> None:
        """Lose what is on its way, or have it arrive late, and connect again."""
        if late:
            self._late.add(self._generation)
        self._generation += 1
        if self.client.reconnects:
            self.server.links.pop(self.client.identity, None)
            self.server.notice(FakeZmq.EVENT_DISCONNECTED, self.descriptor)
            self.connect()
        else:
            self.end()

    def end(self) -> None:
        """Disconnect both ends, each after what is on its way to it."""
        if self.ended:
            return
        self.ended = True
        for to, event in ((self.server, self._server_disconnected), (self.client, self._client_disconnected)):
            self._zmq.after(max(0.0, self._arrives[to] - self._zmq.events.now) + 2 * max(SECONDS), event)

    def _server_disconnected(self) -> None:
        self.server.links.pop(self.client.identity, None)
        self.server.notice(FakeZmq.EVENT_DISCONNECTED, self.descriptor)

    def _client_disconnected(self) -> None:
        self.client.notice(FakeZmq.EVENT_DISCONNECTED)


class Socket:
    def __init__(self, zmq: FakeZmq, kind: str) -> None:
        self._zmq, self._kind = zmq, kind
        self.process = zmq.events.current.process
        self.identity = b"%d" % len(zmq.sockets)
        self.address = ""
        self.received: deque[tuple[int, list[bytes]]] = deque()
        self.links: dict[bytes, Link] = {}
        self.monitor_events = Monitor(self)
        self.reconnects, self.mandatory = True, False
        self._noticed = 0
        self._link: Link | None = None
        self.closed = False
        zmq.sockets.append(self)

    @property
    def patient(self) -> bool:
        """Whether polls wait longer than they are told."""
        return self.reconnects and not self.mandatory

    def notice(self, event: int, value: int = 0) -> None:
        """Tell the monitor of an event, if it watches for it."""
        if event & self._noticed:
            self.monitor_events.handshakes.append({"event": event, "value": value})

    @property
    def EVENTS(self) -> int:
        return FakeZmq.POLLIN if self.received else 0

    def setsockopt(self, option: str, value: Any) -> None:
        if option == FakeZmq.IDENTITY:
            self.identity = value
        if option == FakeZmq.RECONNECT_IVL:
            self.reconnects = value >= 0
        if option == FakeZmq.ROUTER_MANDATORY:
            self.mandatory = bool(value)

    def setsockopt_string(self, option: str, value: str) -> None:
        self.setsockopt(option, value.encode())

    def getsockopt_string(self, option: str) -> str:
        return self.address

    def get_monitor_socket(self, events: int) -> Monitor:
        self._noticed = events
        return self.monitor_events

    def monitor(self, address: str, events: int) -> None:
        self._noticed = events
        self._zmq.monitored[address] = self.monitor_events

    def disable_monitor(self) -> None:
        self.notice(FakeZmq.EVENT_MONITOR_STOPPED)
        self._noticed = 0

    def bind(self, address: str) -> None:
        self._zmq.ports += 1
        self.address = address.replace("*", str(40_000 + self._zmq.ports))
        self._zmq.bound[self.address] = self

    def connect(self, address: str) -> None:
        if self._kind == FakeZmq.PAIR:
            self.monitor_events = self._zmq.monitored[address]
            return
        server = self._zmq.bound.get(address)
        if server is not None and not server.closed:
            self._link = Link(self._zmq, self, server)
        else:
            self._zmq.after(CONNECTING, lambda: self.notice(FakeZmq.EVENT_CLOSED))

    def send_multipart(self, frames: Sequence[Any], flags: int = 0) -> None:
        sent = [bytes(frame.buffer if isinstance(frame, Frame) else frame) for frame in frames]
        if self._kind == "ROUTER":
            identity, *sent = sent
            if (link := self.links.get(identity)) is not None:
                link.send(link.client, sent)
            elif self.mandatory:
                raise ZMQError("no route to host")
        elif self._link is not None and not self._link.ended:
            self._link.send(self._link.server, [self.identity, *sent])
        elif not self.reconnects:
            raise Again

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Frame]:
        if not self.received:
            raise Again
        descriptor, frames = self.received.popleft()
        return [Frame(frame, descriptor=descriptor) for frame in frames]

    def poll(self, milliseconds: float) -> int:
        if self.patient:
            self._zmq.poll(lambda: bool(self.received), 120 * PATIENCE)
        else:
            self._zmq.wait(lambda: bool(self.received), milliseconds)
        return self.EVENTS

    def close(self, linger: int | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        for link in [*self.links.values(), *([self._link] if self._link is not None else [])]:
            if not link.client.reconnects:
                link.break_off() if linger == 0 else link.end()


class Monitor:
    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self.handshakes: deque[dict[str, Any]] = deque()

    @property
    def patient(self) -> bool:
        return self._socket.patient

    @property
    def EVENTS(self) -> int:
        return FakeZmq.POLLIN if self.handshakes else 0

    def close(self) -> None:
        pass


class Poller:
    def __init__(self, zmq: FakeZmq) -> None:
        self._zmq = zmq
        self._sources: list[Any] = []

    def register(self, source: Any, flags: int) -> None:
        self._sources.append(source)

    def poll(self, milliseconds: float) -> list[tuple[Any, int]]:
        def ready() -> bool:
            return any(map(_readable, self._sources))

        if all(isinstance(source, int) or source.patient for source in self._sources):
            self._zmq.poll(ready, PATIENCE)
        else:
            self._zmq.wait(ready, milliseconds)
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
            socket.close(milliseconds)

    def term(self) -> None:
        pass


class FakeZmq:
    """The module ``zmq``, of one simulated network."""

    ROUTER, DEALER, PAIR = "ROUTER", "DEALER", "PAIR"
    IDENTITY, LAST_ENDPOINT = "IDENTITY", "LAST_ENDPOINT"
    RECONNECT_IVL, ROUTER_MANDATORY = "RECONNECT_IVL", "ROUTER_MANDATORY"
    ROUTER_HANDOVER = RCVHWM = LINGER = HANDSHAKE_IVL = MAXMSGSIZE = "ignored"
    TCP_KEEPALIVE = TCP_KEEPALIVE_IDLE = TCP_KEEPALIVE_INTVL = TCP_KEEPALIVE_CNT = "ignored"
    POLLIN = NOBLOCK = 1
    EVENT_HANDSHAKE_SUCCEEDED, EVENT_ACCEPTED, EVENT_DISCONNECTED = 1, 2, 4
    EVENT_CLOSED, EVENT_MONITOR_STOPPED = 8, 16
    EVENT_HANDSHAKE_FAILED_NO_DETAIL = EVENT_HANDSHAKE_FAILED_PROTOCOL = EVENT_HANDSHAKE_FAILED_AUTH = 32
    ZMQError, Again, Frame = ZMQError, Again, Frame

    def __init__(self, events: FiberEvents, plan: FaultPlan) -> None:
        self.events, self._plan = events, plan
        self.bound: dict[str, Socket] = {}
        self.sockets: list[Socket] = []
        self.monitored: dict[str, Monitor] = {}
        self.ports = self.descriptors = 0
        events.at_end.append(self.close_sockets)

    def Context(self) -> Context:
        return Context(self)

    def Poller(self) -> Poller:
        return Poller(self)

    def has(self, transport: str) -> bool:
        return True

    def curve_keypair(self) -> tuple[bytes, bytes]:
        return b"public", b"secret"

    def recv_monitor_message(self, monitor: Monitor | Socket, flags: int = 0) -> dict[str, Any]:
        noticed = (monitor.monitor_events if isinstance(monitor, Socket) else monitor).handshakes
        self.events.wait(lambda: bool(noticed))
        return noticed.popleft()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.events.after(seconds, action)

    def poll(self, condition: Callable[[], bool], seconds: float) -> None:
        changes = self.events.changes
        self.events.wait(lambda: condition() or self.events.changes != changes, seconds)

    def wait(self, condition: Callable[[], bool], milliseconds: float) -> None:
        """Wait as long as told; longer in what outlives the coordinator, which may wait for hours."""
        self.events.wait(condition, PATIENCE if milliseconds and self._plan.killed else milliseconds / 1000)

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
            if fault.kind == "double" and link.client.reconnects:
                times = 2  # as they are sent again; what comes twice on one connection breaks it
            elif fault.kind == "double":
                self.after(seconds / 2, link.break_off)
            if fault.kind == "die" and link.client.process is not COORDINATOR:
                self.after(seconds / 2, lambda: self.events.kill(link.client.process))
        return seconds, times

    def close_sockets(self, process: object) -> None:
        """Do what the system does when a process ends."""
        for each in self.sockets:
            if each.process is process and not each.closed:
                each.close(None if each.patient else self.events.draw.choice([0, None]))
