"""Stands in for ZeroMQ: sockets in one process, whose messages are late, lost with a connection, or
kill.

Only what the package uses. A connection delivers messages in order. It may break at any message:
what was on its way is lost, in part or all of it, or arrives after messages of the next connection
(``stale``). The names are those of ``zmq``.
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

SHORT = 100
"""Milliseconds of the longest poll that waits longer instead, unless something happens.

Online fits need short polls as they are, and theirs wait longer only after the coordinator's end.
"""
PATIENCE = 30.0
"""Seconds that short polls wait instead."""


class Again(Exception):  # noqa: N818
    pass


class ZMQError(OSError):
    pass


class Frame:
    def __init__(self, data: Any, copy: bool = True, descriptor: int = 0) -> None:
        self.buffer = memoryview(bytearray(data))
        self.more = False
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
        self._zmq = zmq
        self.client = client
        self.server = server
        self.descriptor = 0
        self.ended = self._lost = False
        zmq.after(CONNECTING, self._connected)
        self._arrives = dict.fromkeys((client, server), zmq.events.now + 2 * CONNECTING)
        """When the last message to each end arrives: the next one is not faster."""

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
        zmq = self._zmq
        descriptor = self.descriptor
        self._arrives[to] = max(
            zmq.events.now + zmq.seconds_of_message(self), self._arrives[to] + 1e-6
        )

        def arrive() -> None:
            if not to.closed and not self._lost:
                to.received.append((descriptor, frames))

        zmq.after(self._arrives[to] - zmq.events.now, arrive)

    def break_off(self, *, stale: bool = False) -> None:
        """Break, and lose what is on its way; ``stale`` if that arrives, while the client connects
        again.
        """
        self._lost = not stale
        if not self.ended:
            self._zmq.after(0.0, self._client_disconnected)
            self.end()

    def end(self) -> None:
        """Disconnect both ends, each after what is on its way to it."""
        if self.ended:
            return
        self.ended = True
        for to, event in (
            (self.server, self._server_disconnected),
            (self.client, self._client_disconnected),
        ):
            self._zmq.after(
                max(0.0, self._arrives[to] - self._zmq.events.now) + 2 * max(SECONDS), event
            )

    def _server_disconnected(self) -> None:
        self.server.links.pop(self.client.identity, None)
        self.server.notice(FakeZmq.EVENT_DISCONNECTED, self.descriptor)

    def _client_disconnected(self) -> None:
        self.client.notice(FakeZmq.EVENT_DISCONNECTED)


class Socket:
    def __init__(self, zmq: FakeZmq, kind: str) -> None:
        self._zmq = zmq
        self._kind = kind
        self.process = zmq.events.current.process
        self.identity = b"%d" % len(zmq.sockets)
        self.address = ""
        self.received: deque[tuple[int, list[bytes]]] = deque()
        self._frames: deque[Frame] = deque()
        """The rest of a message that is being received."""
        self.links: dict[bytes, Link] = {}
        self.monitor_events = Monitor()
        self._noticed = 0
        self._link: Link | None = None
        self.closed = False
        zmq.sockets.append(self)

    def notice(self, event: int, value: int = 0) -> None:
        """Tell the monitor of an event, if it watches for it."""
        if event & self._noticed:
            self.monitor_events.handshakes.append({"event": event, "value": value})

    @property
    def EVENTS(self) -> int:
        return FakeZmq.POLLIN if self.received else 0

    @property
    def is_writable(self) -> bool:
        return self._link is not None and not self._link.ended

    def setsockopt(self, option: str, value: Any) -> None:
        pass

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
            if (link := self.links.get(identity)) is None:
                raise ZMQError("no route to host")
            link.send(link.client, sent)
        elif self.is_writable:
            self._link.send(self._link.server, [self.identity, *sent])
        else:
            raise Again

    def recv(self, flags: int = 0, copy: bool = True) -> Frame:
        if not self._frames:
            if not self.received:
                raise Again
            descriptor, frames = self.received.popleft()
            self._frames.extend(Frame(frame, descriptor=descriptor) for frame in frames)
        frame = self._frames.popleft()
        frame.more = bool(self._frames)
        return frame

    def poll(self, milliseconds: float) -> int:
        self._zmq.wait(lambda: bool(self.received), milliseconds)
        return self.EVENTS

    def close(self, linger: int | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        for link in [*self.links.values(), *([self._link] if self._link is not None else [])]:
            link.break_off() if linger == 0 else link.end()


class Monitor:
    def __init__(self) -> None:
        self.handshakes: deque[dict[str, Any]] = deque()

    @property
    def EVENTS(self) -> int:
        return FakeZmq.POLLIN if self.handshakes else 0

    def getsockopt(self, option: str) -> int:
        return self.EVENTS

    def close(self) -> None:
        pass


class Poller:
    def __init__(self, zmq: FakeZmq) -> None:
        self._zmq = zmq
        self._sources: list[tuple[Any, int]] = []

    def register(self, source: Any, flags: int) -> None:
        self._sources.append((source, flags))

    def poll(self, milliseconds: float) -> list[tuple[Any, int]]:
        def found() -> list[tuple[Any, int]]:
            return [(source, flags) for source, flags in self._sources if _is_ready(source, flags)]

        self._zmq.wait(lambda: bool(found()), milliseconds)
        return found()


def _is_ready(source: Any, flags: int) -> bool:
    if flags == FakeZmq.POLLOUT:
        return bool(source.is_writable)
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

    ROUTER = "ROUTER"
    DEALER = "DEALER"
    PAIR = "PAIR"
    LAST_ENDPOINT = "LAST_ENDPOINT"
    EVENTS = "EVENTS"
    RECONNECT_IVL = ROUTER_MANDATORY = RCVHWM = LINGER = HANDSHAKE_IVL = MAXMSGSIZE = "ignored"
    TCP_KEEPALIVE = TCP_KEEPALIVE_IDLE = TCP_KEEPALIVE_INTVL = TCP_KEEPALIVE_CNT = "ignored"
    POLLIN = 1
    POLLOUT = 2
    NOBLOCK = 1
    EVENT_HANDSHAKE_SUCCEEDED = 1
    EVENT_ACCEPTED = 2
    EVENT_DISCONNECTED = 4
    EVENT_CLOSED = 8
    EVENT_MONITOR_STOPPED = 16
    EVENT_HANDSHAKE_FAILED_NO_DETAIL = EVENT_HANDSHAKE_FAILED_PROTOCOL = (
        EVENT_HANDSHAKE_FAILED_AUTH
    ) = 32
    ZMQError = ZMQError
    Again = Again
    Frame = Frame

    def __init__(self, events: FiberEvents, plan: FaultPlan) -> None:
        self.events = events
        self._plan = plan
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

    def curve_public(self, secret: bytes) -> bytes:
        return b"public"

    def recv_monitor_message(self, monitor: Monitor | Socket, flags: int = 0) -> dict[str, Any]:
        noticed = (monitor.monitor_events if isinstance(monitor, Socket) else monitor).handshakes
        self.events.wait(lambda: bool(noticed))
        return noticed.popleft()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.events.after(seconds, action)

    def wait(self, condition: Callable[[], bool], milliseconds: float) -> None:
        """Wait, for longer than told where nothing depends on it."""
        changes = self.events.changes
        patient = self.events.patient or self._plan.killed
        if 0 < milliseconds <= SHORT and patient:
            self.events.wait(lambda: condition() or self.events.changes != changes, PATIENCE)
        else:
            self.events.wait(condition, milliseconds / 1000)

    def seconds_of_message(self, link: Link) -> float:
        """Return how long a message takes; a fault may break the connection, or end the client's
        process.
        """
        seconds = self.events.draw.choice(SECONDS)
        for fault in self._plan.at("message"):
            if fault.kind == "late":
                seconds += fault.seconds
            # What comes twice on one connection breaks it.
            if fault.kind in ("cut", "double", "stale"):
                self.after(seconds / 2, partial(link.break_off, stale=fault.kind == "stale"))
            if fault.kind == "die" and link.client.process is not COORDINATOR:
                self.after(seconds / 2, lambda: self.events.kill(link.client.process))
        return seconds

    def close_sockets(self, process: object) -> None:
        """Do what the system does when a process ends."""
        for each in self.sockets:
            if each.process is process and not each.closed:
                each.close(self.events.draw.choice([0, None]))
