"""What a client has sent and what was not answered yet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zmq

from compss_train.parameter_server.backlog import Call
from compss_train.parameter_server.messages import PIECE, Described, Received

_BYTES = 2**24  # that may be on their way, or a single call that has more


@dataclass(eq=False)
class Request(Call):
    """A call to the server, and its answer."""

    call: str = ""
    priority: int = 0
    described: Described = field(default_factory=list)
    frames: Sequence[bytes | zmq.Frame] = ()
    number: int = -1
    """Tells its answer from others; no other client's is the same."""
    count: int = 0
    """Of the calls that change the key, how many this client made before."""
    times_sent: int = 0
    fields: dict[str, Any] = field(default_factory=dict)
    answer: list[Received] = field(default_factory=list)
    error: BaseException | None = None
    finished: threading.Event = field(default_factory=threading.Event)


class Flight:
    """Requests without an answer: those sent over this connection, and those lost with the one before.

    Few may be on their way, so that what is urgent can overtake the others. Over a connection that breaks fewer and
    fewer are sent at a time: where it breaks before all of many are answered, one of them will be.
    """

    def __init__(self, limit: int) -> None:
        self._limit = self._most = limit
        self._sent: dict[int, Request] = {}
        self._lost: dict[int, Request] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sent) + len(self._lost)

    def __iter__(self) -> Iterator[Request]:
        return iter([*self._sent.values(), *self._lost.values()])

    @property
    def has_room(self) -> bool:
        """Whether something more may be sent."""
        return len(self._sent) < self._most and self._bytes < _BYTES

    def add(self, request: Request) -> None:
        """Note what is being sent."""
        self._sent[request.number] = request
        request.times_sent += 1
        self._bytes += request.size

    def next_lost(self) -> Request | None:
        """Return what is to be sent again before anything else is sent."""
        return self._lost.pop(next(iter(self._lost))) if self._lost else None

    def lose(self) -> None:
        """Note that the connection broke."""
        self._lost, self._sent, self._bytes = {**self._sent, **self._lost}, {}, 0
        self._most = max(1, self._most // 2)

    def answered(self, number: int) -> Request | None:
        """Return what was answered, unless it was so before."""
        if number not in self._sent:
            return self._lost.pop(number, None)
        request = self._sent.pop(number)
        self._bytes -= request.size
        self._most = min(self._limit, self._most + 1)
        return request


_SMALL = 2**16  # bytes up to which a frame is cheaper to copy once more than to share
_KEPT = 2**26 // PIECE  # frames of free memory


class Frames:
    """Copies what is to be sent into frames, those that were used before if there are any. For many threads."""

    def __init__(self) -> None:
        self._free: deque[zmq.Frame] = deque(maxlen=_KEPT)

    def copy(self, view: memoryview) -> bytes | zmq.Frame:
        """Return a frame with a copy of this memory."""
        if len(view) <= _SMALL:
            return bytes(view)
        if len(view) < PIECE or (frame := self._used()) is None:
            return zmq.Frame(view, copy=True)
        np.copyto(np.frombuffer(frame.buffer, np.uint8), np.frombuffer(view, np.uint8))
        return frame

    def _used(self) -> zmq.Frame | None:
        try:
            return self._free.pop()
        except IndexError:
            return None

    def give_back(self, frames: Sequence[bytes | zmq.Frame]) -> None:
        """Take frames that have arrived, so that ZeroMQ has no more use for them."""
        self._free.extend(frame for frame in frames if isinstance(frame, zmq.Frame) and len(frame) == PIECE)
