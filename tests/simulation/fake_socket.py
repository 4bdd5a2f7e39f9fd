"""Stands in for the modules ``socket``, ``select`` and ``queue``: connections of bytes in one process, which break.

Bytes arrive in order, in parts, after a while, and no more are on their way than a buffer holds. A fault delays
them, doubles them, lets later ones overtake them, cuts the connection in the middle of them, or ends the process
that sends them. The names are those of the modules.
"""

# ruff: noqa: N802

from __future__ import annotations

import queue
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.engine import FaultPlan
from tests.simulation.fibers import COORDINATOR, FiberEvents

SECONDS = (0.0001, 0.001, 0.001, 0.05)
"""How long bytes take."""

BUFFERS = (2**9, 2**12, 2**20)
"""Bytes that a connection holds; a sender of more waits until some have been read."""

HOST = "127.0.0.1"


class Network:
    """The listeners of a simulated network, and its faults."""

    def __init__(self, events: FiberEvents, plan: FaultPlan) -> None:
        self.events, self._plan = events, plan
        self.listeners: dict[int, FakeSocket] = {}
        self.sockets: list[FakeSocket] = []
        self.ports = 50_000
        self.buffer = events.draw.choice(BUFFERS)
        events.at_end.append(self.close_sockets)

    def close_sockets(self, process: object) -> None:
        """Do what the system does when a process ends."""
        for each in [each for each in self.sockets if each.process is process]:
            each.close()

    def send(self, sender: FakeSocket, data: bytes) -> None:
        """Have bytes arrive at the other end."""
        seconds, overtaken = self.events.draw.choice(SECONDS), False
        for fault in self._plan.at("message"):
            if fault.kind == "late":
                seconds += min(fault.seconds, 5.0)
            if fault.kind == "double":
                data += data
            if fault.kind == "stale":
                overtaken = True
            if fault.kind == "cut":
                data = data[: len(data) // 2]
                self.events.after(seconds, sender.break_off)
            if fault.kind == "die" and sender.process is not COORDINATOR:
                data = data[: len(data) // 2]
                self.events.after(0.0, lambda: self.events.kill(sender.process))
        sender.deliver(data, seconds, overtaken=overtaken)


class FakeSocket:
    """One end of a connection, or a listener."""

    def __init__(self, network: Network) -> None:
        self._network, self._events = network, network.events
        self.process = self._events.current.process
        self.peer: FakeSocket | None = None
        self.accepted: deque[FakeSocket] = deque()
        self.port = 0
        self.closed = self.broken = self.ended = False
        self._received = bytearray()
        self._arrives = 0.0
        self._on_the_way = 0
        self._timeout: float | None = None
        network.sockets.append(self)

    def connect_to(self, listener: FakeSocket) -> None:
        other = FakeSocket(self._network)
        other.process, other.port = listener.process, listener.port
        self.peer, other.peer = other, self
        listener.accepted.append(other)

    def deliver(self, data: bytes, seconds: float, *, overtaken: bool = False) -> None:
        """Have bytes arrive after all that were sent before, or also after some that will be sent later."""
        peer = self.peer
        if peer is None:
            return
        self._on_the_way += len(data)
        self._arrives = max(self._events.now + seconds, self._arrives + 1e-9)

        def arrive() -> None:
            self._on_the_way -= len(data)
            if not peer.broken:
                peer._received += data

        late = max(SECONDS) if overtaken else 0.0
        self._events.after(self._arrives + late - self._events.now, arrive)

    def has_space(self) -> bool:
        """Return whether more may be sent: the bytes on their way and the unread ones are fewer than the buffer."""
        gone = self.peer is None or self.closed or self.broken or self.ended or self.peer.closed
        return gone or self._on_the_way + len(self.peer._received) < self._network.buffer

    def break_off(self) -> None:
        for end in (self, self.peer):
            if end is not None:
                end.broken = True

    def _end(self) -> None:
        """No more bytes will come: the peer has closed, and all that it sent has arrived."""
        self.ended = True

    # -- the interface ---------------------------------------------------------------------------------------

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def setsockopt(self, *_: Any) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return HOST, self.port

    def getpeername(self) -> tuple[str, int]:
        if self.peer is None:
            raise OSError("not connected")
        return HOST, self.peer.port

    def fileno(self) -> int:
        return -1 if self.closed else id(self)

    def accept(self) -> tuple[FakeSocket, Any]:
        self._wait(lambda: bool(self.accepted))
        return self.accepted.popleft(), (HOST, 0)

    def sendall(self, data: Any) -> None:
        self._events.wait(self.has_space, self._timeout)
        self._check()
        if self.peer is None or self.peer.closed:
            raise BrokenPipeError("the peer has closed")
        self._network.send(self, bytes(data))

    def recv_into(self, buffer: Any) -> int:
        self._wait(self.readable)
        count = min(len(buffer), len(self._received))
        buffer[:count] = self._received[:count]
        del self._received[:count]
        return count

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(buffer)])

    def readable(self) -> bool:
        return bool(self._received or self.ended or self.broken or self.closed)

    def shutdown(self, how: int) -> None:
        self._close_peer()
        self.ended = True

    def close(self) -> None:
        if not self.closed:
            self._close_peer()
            self.closed = True
            self._network.listeners.pop(self.port if self.peer is None else -1, None)

    def _close_peer(self) -> None:
        if self.peer is not None and not self.peer.ended:
            self._arrives = max(self._events.now, self._arrives + 1e-9)
            self._events.after(self._arrives - self._events.now, self.peer._end)

    def _wait(self, condition: Callable[[], bool]) -> None:
        there = self._events.wait(lambda: condition() or self.closed or self.broken or self.ended, self._timeout)
        if not there:
            raise TimeoutError("timed out")
        if not condition() or self.broken:
            self._check()

    def _check(self) -> None:
        if self.closed or self.broken or (self.peer is None and self.ended):
            raise ConnectionResetError("the connection is closed")


class SocketModule:
    """The module ``socket``."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.socket = FakeSocket

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    def create_server(self, address: tuple[str, int], **_: Any) -> FakeSocket:
        made = FakeSocket(self._network)
        self._network.ports += 1
        made.port = address[1] or self._network.ports
        self._network.listeners[made.port] = made
        return made

    def create_connection(self, address: tuple[str, int], timeout: float | None = None) -> FakeSocket:
        listener = self._network.listeners.get(address[1])
        if listener is None or listener.closed or listener.ended:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        made = FakeSocket(self._network)
        made.connect_to(listener)
        return made


class Poll:
    def __init__(self, events: FiberEvents) -> None:
        self._events = events
        self._sockets: list[FakeSocket] = []

    def register(self, source: FakeSocket, flags: int) -> None:
        self._sockets.append(source)

    def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
        ready = [each for each in self._sockets if each.readable()]
        return [(each.fileno(), select.POLLIN) for each in ready]


class SelectModule:
    """The module ``select``."""

    def __init__(self, events: FiberEvents) -> None:
        self._events = events

    def __getattr__(self, name: str) -> Any:
        return getattr(select, name)

    def poll(self) -> Poll:
        return Poll(self._events)


class FakeQueue:
    """``queue.SimpleQueue``."""

    def __init__(self, events: FiberEvents) -> None:
        self._events = events
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._events.wait(lambda: bool(self._items), timeout if block else 0.0):
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class QueueModule:
    """The module ``queue``."""

    def __init__(self, events: FiberEvents) -> None:
        self._events = events

    def __getattr__(self, name: str) -> Any:
        return getattr(queue, name)

    def SimpleQueue(self) -> FakeQueue:
        return FakeQueue(self._events)
