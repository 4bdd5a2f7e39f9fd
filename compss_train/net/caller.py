"""Calls to a server that are executed exactly once, however often their connection breaks."""

import contextlib
import hashlib
import os
import secrets
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zmq
from zmq.utils.monitor import recv_monitor_message

from compss_train._utils.validation import check_integer
from compss_train.data.block import Block
from compss_train.exceptions import ParameterServerClosedError
from compss_train.net.call_queue import Call, CallQueue
from compss_train.net.messages import (
    PIECE,
    ArrayDescriptions,
    ReceivedArray,
    pack_arrays,
    pack_header,
    unpack_lazily,
)
from compss_train.net.sockets import HANDSHAKE_FAILED, client_socket
from compss_train.net.tokens import WRONG_TOKEN

MAX_BACKLOG = 2**30
"""Maximum number of bytes of pushes that wait to be sent."""
_MAX_IN_FLIGHT = 128  # requests
_MAX_BYTES_IN_FLIGHT = 2**24  # or a single larger request
_POLL_MILLISECONDS = 100
_GOODBYE_MILLISECONDS = 200  # time to send the last message
_ERRORS: dict[str, type[Exception]] = {"ValueError": ValueError, "PermissionError": PermissionError}
_SMALL_FRAME = 2**16  # bytes up to which copying a frame again costs less than sharing it
_FIELDS = "call", "key", "priority", "number", "count"  # of a request's header
_MAX_KEY_BYTES = 2**12
_MAX_HEADER_BYTES = PIECE - 2**14  # servers accept frames of PIECE bytes and a bit
_MAX_REFUSALS = 5  # handshakes that fail one after another, before any has succeeded
_MAX_FREE_FRAMES = 2**26 // PIECE


@dataclass(eq=False, kw_only=True)
class Request(Call):
    """A call to the server, and its answer."""

    call: str = ""
    priority: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    """What else the server needs to know."""
    descriptions: ArrayDescriptions = field(default_factory=list)
    frames: Sequence[bytes | zmq.Frame] = ()
    number: int = -1
    """Identifies the answer; unique among all clients."""
    count: int = 0
    """How many calls that change the key this client made before."""
    times_sent: int = 0
    fields: dict[str, Any] = field(default_factory=dict)
    answer: list[ReceivedArray] = field(default_factory=list)
    error: BaseException | None = None
    finished: threading.Event = field(default_factory=lambda: threading.Event())


class InFlight:
    """Requests without an answer: those sent over this connection, and those lost with an earlier one.

    Their number is limited, so that urgent requests can overtake others. Each time the connection breaks, the limit
    is halved: with a limit low enough, an answer arrives before the connection breaks again.
    """

    def __init__(self, limit: int) -> None:
        self._max_limit = self._limit = limit
        self._sent: dict[int, Request] = {}
        self._lost: dict[int, Request] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sent) + len(self._lost)

    def __iter__(self) -> Iterator[Request]:
        return iter([*self._sent.values(), *self._lost.values()])

    @property
    def has_space(self) -> bool:
        """Whether another request may be sent."""
        return len(self._sent) < self._limit and self._bytes < _MAX_BYTES_IN_FLIGHT

    def add(self, request: Request) -> None:
        """Add a request that is being sent."""
        self._sent[request.number] = request
        request.times_sent += 1
        self._bytes += request.size

    def next_lost(self) -> Request | None:
        """Remove and return a lost request, which must be sent again before any new one."""
        return self._lost.pop(next(iter(self._lost))) if self._lost else None

    def lose_all(self) -> None:
        """Mark all sent requests as lost, because the connection broke."""
        self._lost, self._sent, self._bytes = {**self._sent, **self._lost}, {}, 0
        self._limit = max(1, self._limit // 2)

    def pop_answered(self, number: int) -> Request | None:
        """Remove and return the request with this number; ``None`` if it was answered before."""
        if number not in self._sent:
            return self._lost.pop(number, None)
        request = self._sent.pop(number)
        self._bytes -= request.size
        self._limit = min(self._max_limit, self._limit + 1)
        return request


class FramePool:
    """Copies of memory in frames of ZeroMQ; the memory of large frames is reused. For any number of threads."""

    def __init__(self) -> None:
        self._free: deque[zmq.Frame] = deque(maxlen=_MAX_FREE_FRAMES)

    def copy(self, view: memoryview) -> bytes | zmq.Frame:
        """Return a frame with a copy of this memory."""
        if len(view) <= _SMALL_FRAME:
            return bytes(view)
        if len(view) < PIECE or (frame := self._take()) is None:
            return zmq.Frame(view, copy=True)
        np.copyto(np.frombuffer(frame.buffer, np.uint8), np.frombuffer(view, np.uint8))
        return frame

    def _take(self) -> zmq.Frame | None:
        try:
            return self._free.pop()
        except IndexError:
            return None

    def give_back(self, frames: Sequence[bytes | zmq.Frame]) -> None:
        """Reuse frames that have arrived, so that ZeroMQ does not use them any more."""
        self._free.extend(frame for frame in frames if isinstance(frame, zmq.Frame) and len(frame) == PIECE)


class Caller:
    """A thread with a socket: it sends requests, those with the highest priority first, and receives answers."""

    def __init__(self, address: str, token: str, timeout: float, name: str | None, generation: int) -> None:
        self._address, self._timeout, self._named = address, timeout, name is not None
        self._generation = generation
        self._queue = CallQueue(MAX_BACKLOG)
        self._in_flight = InFlight(_MAX_IN_FLIGHT)
        self._frames = FramePool()
        self._next_number = secrets.randbits(62)
        self._counts: dict[str, int] = {}
        self._silent = 0.0
        """Seconds that it has waited since the last answer, without those in which this process was stopped."""
        self._failed: BaseException | None = None
        self._closing = self._aborted = self._asleep = self._connected = False
        self._woken, self._wake = os.pipe()
        self._pipe, self._ended = threading.Lock(), False
        self._identity = f"unnamed {uuid.uuid4().hex}" if name is None else _identity(name)
        self._refusals = 0
        self._open(address, token)
        self._thread = threading.Thread(target=self._run, name="caller", daemon=True)
        self._thread.start()

    def _open(self, address: str, token: str) -> None:
        self._context = zmq.Context()
        self._socket = client_socket(self._context, address, token, self._identity)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | HANDSHAKE_FAILED)
        self._socket.connect(address)
        self._poller = zmq.Poller()
        for source in (self._socket, self._monitor, self._woken):
            self._poller.register(source, zmq.POLLIN)

    def request(self, call: str, key: str, arrays: Sequence[Block] = (), priority: int = 0) -> Request:
        """Return a request with copies of its arrays."""
        descriptions, views = pack_arrays(arrays)
        _check_header(key, descriptions)
        size = sum(len(view) for view in views)
        frames = [self._frames.copy(view) for view in views]
        return Request(key, size=size, call=call, priority=priority, descriptions=descriptions, frames=frames)

    def send(self, request: Request) -> None:
        """Queue a request; raise the error of an earlier push."""
        self.check()
        request.run = lambda: self._send(request)
        if self._closing or not self._queue.add(request, check_integer("priority", request.priority)):
            raise _closed()
        if self._asleep:
            self._wake_up()

    def _wake_up(self) -> None:
        """Make the thread check the queue."""
        with self._pipe:
            if not self._ended:
                os.write(self._wake, b"x")

    def check(self) -> None:
        """Raise the server's error for a push, once."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def close(self, *, wait: bool = True) -> None:
        """End the thread, after all answers or immediately."""
        self._closing, self._aborted = True, self._aborted or not wait
        self._queue.close()
        self._wake_up()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._aborted:
                self._send_more()
                if self._closing and not self._in_flight and not len(self._queue):
                    return
                if not self._receive_answers():
                    self._sleep()
                if self._in_flight and self._silent > self._timeout:
                    raise TimeoutError(
                        f"{self._address} has not answered for {self._timeout} s; check that the server is running"
                    )
        except BaseException as error:
            self._fail(error)
        finally:
            self._end()

    def _send_more(self) -> None:
        while self._in_flight.has_space and (lost := self._in_flight.next_lost()) is not None:
            self._transmit(lost)
        while self._in_flight.has_space and (call := self._queue.take(wait=False)) is not None:
            if not self._in_flight:
                self._silent = 0.0
            call.run()
            self._queue.executed(call)

    def _sleep(self) -> None:
        """Wait for answers, calls, or a new connection."""
        self._asleep = self._in_flight.has_space
        if self._asleep and len(self._queue):  # a call was added before _asleep was set
            self._asleep = False
            return
        began = time.monotonic()
        ready = dict(self._poller.poll(_POLL_MILLISECONDS))
        self._silent += min(time.monotonic() - began, _POLL_MILLISECONDS / 1000)
        self._asleep = False
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._monitor in ready:
            self._handshake_ended(recv_monitor_message(self._monitor)["event"])

    def _handshake_ended(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            if self._connected:
                self._in_flight.lose_all()  # the server knows which of them it has executed
            self._connected = True
            return
        self._refusals += 1
        if self._refusals >= _MAX_REFUSALS and not self._connected:
            raise PermissionError(f"{WRONG_TOKEN}, or there is no parameter server at {self._address}")

    def _send(self, request: Request) -> None:
        request.number, self._next_number = self._next_number, self._next_number + 1
        request.count = self._counts.get(request.key, 0)
        if request.call in ("init", "push"):
            self._counts[request.key] = request.count + 1
        self._transmit(request)

    def _transmit(self, request: Request) -> None:
        self._in_flight.add(request)
        fields = {name: getattr(request, name) for name in _FIELDS}
        fields |= {"client": self._identity, "generation": self._generation, **request.options}
        self._socket.send_multipart([pack_header(fields, request.descriptions), *request.frames])

    def _receive_answers(self) -> bool:
        """Process pending answers; return True if there were any."""
        received = False
        while int(self._socket.EVENTS) & zmq.POLLIN:
            self._receive(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
            received = True
        if received:
            self._silent = 0.0
        return received

    def _receive(self, frames: Sequence[zmq.Frame]) -> None:
        """Process an answer, which may belong to several requests."""
        fields, arrays = unpack_lazily(frames)
        for number in fields["numbers"]:
            request = self._in_flight.pop_answered(number)
            if request is not None:
                self._finish(request, fields, arrays)

    def _finish(self, request: Request, fields: dict[str, Any], arrays: list[ReceivedArray]) -> None:
        if request.times_sent == 1:  # otherwise ZeroMQ may still be sending the frames once more
            self._frames.give_back(request.frames)
        request.frames, request.fields, request.answer = (), fields, arrays
        if "error" in fields:
            kind, message = fields["error"]
            request.error = _ERRORS.get(kind, RuntimeError)(message)
            if request.call == "push":
                self._failed = request.error
        request.finished.set()

    def _fail(self, error: BaseException) -> None:
        self._failed = error
        for request in self._in_flight:
            request.error = error

    def _end(self) -> None:
        self._closing = True
        self._queue.close()
        unanswered = len(self._in_flight)
        while (call := self._queue.take(wait=False)) is not None:
            with contextlib.suppress(zmq.ZMQError):
                call.run()
            self._queue.executed(call)
        for request in self._in_flight:
            request.error = request.error or self._failed or _closed()
            request.finished.set()
        self._disconnect(goodbye=not unanswered and not self._named)

    def _disconnect(self, *, goodbye: bool) -> None:
        """Close the socket; a client without a name says goodbye, so that the server can forget it."""
        if goodbye and self._connected:
            self._transmit(Request("", call="goodbye"))
        self._socket.disable_monitor()
        self._context.destroy(_GOODBYE_MILLISECONDS if goodbye else 0)
        with self._pipe:
            self._ended = True
            os.close(self._wake)
            os.close(self._woken)


def _check_header(key: str, descriptions: ArrayDescriptions) -> None:
    """Raise ``ValueError`` for a key or for arrays whose description no server accepts."""
    if len(key.encode()) > _MAX_KEY_BYTES:
        raise ValueError(f"a key of {len(key):,} characters, {key[:40]!r}...: give at most {_MAX_KEY_BYTES:,}")
    if len(descriptions) > 1000 and len(pack_header({}, descriptions)) > _MAX_HEADER_BYTES:
        raise ValueError(
            f"{key!r} with {len(descriptions):,} arrays: these are too many for a key; use several keys"
        )


def _identity(name: str) -> str:
    return f"named {hashlib.sha256(name.encode()).hexdigest()}"  # ZeroMQ limits the length of identities


def _closed() -> ParameterServerClosedError:
    return ParameterServerClosedError("the client was closed; make another one with connect(...)")
