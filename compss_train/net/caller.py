"""Calls to a server that are executed exactly once, however often their connection breaks."""

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import zmq

from compss_train.data.block import Block
from compss_train.exceptions import ParameterServerClosedError
from compss_train.net.call_queue import Call, CallQueue
from compss_train.net.connection import Address, Connection, ConnectionLostError
from compss_train.net.messages import (
    PIECE,
    ArrayDescriptions,
    Header,
    Message,
    ReceivedArray,
    pack_arrays,
    pack_header,
)

MAX_BACKLOG = 2**30
"""Maximum number of bytes of calls that wait to be sent."""
_MAX_IN_FLIGHT = 128  # requests
_MAX_BYTES_IN_FLIGHT = 2**24  # or a single larger request
_POLL_MILLISECONDS = 100
_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 0.05
_ERRORS: dict[str, type[Exception]] = {"ValueError": ValueError}
_SMALL_FRAME = 2**16  # bytes up to which copying a frame again costs less than sharing it
_MAX_KEY_BYTES = 2**12
_MAX_HEADER_BYTES = PIECE - 2**14  # servers accept frames of PIECE bytes and a bit
_MAX_FREE_FRAMES = 2**26 // PIECE


@dataclass(eq=False, kw_only=True)
class Request(Call):
    """A call to the server, and its answer."""

    header: Header
    """The ``call``, its ``key``, ``priority`` and options; its ``number``, which identifies the answer; its
    ``count``, how many calls that change the key this client made before."""
    changes: bool
    """Whether it changes the key."""
    waited_for: bool
    """Whether its caller gets its error; otherwise the next caller does."""
    descriptions: ArrayDescriptions
    frames: Sequence[bytes | zmq.Frame]
    times_sent: int = 0
    answer: Message = field(default_factory=lambda: ({}, []))
    error: BaseException | None = None
    finished: threading.Event = field(default_factory=lambda: threading.Event())


class FramePool:
    """Copies of memory in frames of ZeroMQ; the memory of large frames is reused. For any number of threads."""

    def __init__(self) -> None:
        self._free: deque[zmq.Frame] = deque(maxlen=_MAX_FREE_FRAMES)

    def copy(self, view: memoryview) -> bytes | zmq.Frame:
        """Return a frame with a copy of this memory."""
        if len(view) <= _SMALL_FRAME:
            return bytes(view)
        if len(view) == PIECE:
            with suppress(IndexError):
                frame = self._free.pop()
                np.copyto(np.frombuffer(frame.buffer, np.uint8), np.frombuffer(view, np.uint8))
                return frame
        return zmq.Frame(view, copy=True)

    def give_back(self, frames: Sequence[bytes | zmq.Frame]) -> None:
        """Reuse frames that have arrived, so that ZeroMQ does not use them any more."""
        self._free.extend(frame for frame in frames if isinstance(frame, zmq.Frame) and len(frame) == PIECE)


class Caller:
    """A thread with a connection: it sends requests, those with the highest priority first, and receives answers.

    It connects when there is something to send, and again when the connection breaks. Requests without an answer
    are then sent again, before any new one: the server knows which of them it has executed. Their number is
    limited, so that urgent requests can overtake others. Each time the connection breaks, the limit is halved: with
    a limit low enough, an answer arrives before the connection breaks again.

    ``greeting`` is the first message of each connection; ``farewell`` the last one, if all requests were answered.
    """

    def __init__(self, address: Address, greeting: Header, farewell: Header | None, timeout: float) -> None:
        self._address, self._greeting, self._farewell, self._timeout = address, greeting, farewell, timeout
        self._queue = CallQueue(MAX_BACKLOG)
        self._sent: dict[int, Request] = {}
        """By number, the requests without an answer that were sent over this connection."""
        self._lost: dict[int, Request] = {}
        """Those that were lost with an earlier one."""
        self._bytes, self._limit = 0, _MAX_IN_FLIGHT
        self._frames = FramePool()
        self._next_number = secrets.randbits(62)  # unique among all clients
        self._counts: dict[str, int] = {}
        self._silent = 0.0
        """Seconds that it has waited since the last answer, without those in which this process was stopped."""
        self._failed: BaseException | None = None
        self._closing = self._aborted = self._asleep = False
        self._refused = True
        """Whether each attempt to connect has failed, so that a refusal means a wrong token."""
        self._connection: Connection | None = None
        self._woken, self._wake = os.pipe()
        self._idle = zmq.Poller()
        self._idle.register(self._woken, zmq.POLLIN)
        self._pipe, self._ended = threading.Lock(), False
        self._thread = threading.Thread(target=self._run, name="caller", daemon=True)
        self._thread.start()

    def call(
        self,
        call: str,
        key: str,
        arrays: Sequence[Block] = (),
        *,
        priority: int = 0,
        changes: bool = False,
        wait: bool = True,
        **options: int,
    ) -> Message:
        """Send a call with copies of its arrays, and return its answer, or raise its error.

        ``changes`` says whether it changes the key. Without ``wait`` it returns an empty answer at once, and the
        next call raises the error. Raises ``ValueError`` for a key and for arrays that no server accepts.
        """
        descriptions, views = pack_arrays(arrays)
        if len(key.encode()) > _MAX_KEY_BYTES:
            raise ValueError(f"a key of {len(key):,} characters, {key[:40]!r}...: give at most {_MAX_KEY_BYTES:,}")
        if len(descriptions) > 1000 and len(pack_header({}, descriptions)) > _MAX_HEADER_BYTES:
            raise ValueError(
                f"{key!r} with {len(descriptions):,} arrays: these are too many for a key; use several keys"
            )
        request = Request(
            key,
            size=sum(len(view) for view in views),
            header={"call": call, "key": key, "priority": priority, **options},
            descriptions=descriptions,
            frames=[self._frames.copy(view) for view in views],
            changes=changes,
            waited_for=wait,
        )
        self.check()
        if self._closing or not self._queue.add(request, priority):
            raise _closed()
        if self._asleep:
            self._wake_up()
        if wait:
            request.finished.wait()
            self.check()
            if request.error is not None:
                raise request.error
        return request.answer

    def check(self) -> None:
        """Raise the error of a request without a waiting caller, once."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _wake_up(self) -> None:
        """Make the thread check the queue."""
        with self._pipe:
            if not self._ended:
                os.write(self._wake, b"x")

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
                if self._closing and not (self._sent or self._lost or len(self._queue)):
                    return
                if self._connection is None:
                    self._connect()
                else:
                    self._exchange(self._connection)
        except BaseException as error:
            self._failed = error
        finally:
            self._end()

    def _connect(self) -> None:
        """Connect, when there is something to send."""
        if not (self._sent or self._lost or len(self._queue)):
            self._silent = 0.0
            self._sleep()
            return
        if self._sent:
            self._lost, self._sent, self._bytes = {**self._sent, **self._lost}, {}, 0
            self._limit = max(1, self._limit // 2)
        began = time.monotonic()
        try:
            connection = self._address.connect(self._greeting, timeout=min(self._timeout, _CONNECT_SECONDS))
            connection.poller.register(self._woken, zmq.POLLIN)
            self._connection, self._refused = connection, False
        except OSError as error:
            if isinstance(error, PermissionError) and self._refused:
                raise
            time.sleep(_RETRY_SECONDS)
            self._waited(min(time.monotonic() - began, _CONNECT_SECONDS))

    def _exchange(self, connection: Connection) -> None:
        """Send what may be sent, and receive answers, or wait for something to happen."""
        try:
            while self._has_room and (request := self._next()) is not None:
                self._sent[request.header["number"]] = request
                request.times_sent += 1
                self._bytes += request.size
                connection.send_frames([pack_header(request.header, request.descriptions), *request.frames])
            if (message := connection.receive(0)) is None:
                self._sleep()
            while message is not None:
                self._silent = 0.0
                self._answered(*message)
                message = connection.receive(0)
        except ConnectionLostError:
            connection.close()
            self._connection = None

    @property
    def _has_room(self) -> bool:
        """Whether another request may be sent."""
        return len(self._sent) < self._limit and self._bytes < _MAX_BYTES_IN_FLIGHT

    def _next(self) -> Request | None:
        """Return the next request to send: one that was lost with a connection, or a new one."""
        if self._lost:
            return self._lost.pop(next(iter(self._lost)))
        if (call := self._queue.take(wait=False)) is None:
            return None
        self._queue.executed(call)
        if not self._sent:
            self._silent = 0.0
        request = cast("Request", call)
        count = self._counts.get(request.key, 0)
        self._counts[request.key] = count + request.changes
        request.header |= {"number": self._next_number, "count": count}
        self._next_number += 1
        return request

    def _sleep(self) -> None:
        """Wait for answers, calls, or the loss of the connection."""
        self._asleep = self._has_room
        if self._asleep and len(self._queue):  # a call was added before _asleep was set
            self._asleep = False
            return
        poller = self._idle if self._connection is None else self._connection.poller
        began = time.monotonic()
        ready = dict(poller.poll(_POLL_MILLISECONDS))
        self._asleep = False
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._sent:
            self._waited(min(time.monotonic() - began, _POLL_MILLISECONDS / 1000))

    def _waited(self, seconds: float) -> None:
        """Record a wait; raise ``TimeoutError`` if no answer has come for too long."""
        self._silent += seconds
        if self._silent > self._timeout:
            raise TimeoutError(
                f"{self._address.url} has not answered for {self._timeout} s; check that the server is running"
            )

    def _answered(self, header: Header, arrays: list[ReceivedArray]) -> None:
        """Process an answer, which may belong to several requests."""
        for number in header["numbers"]:
            if (request := self._lost.pop(number, None)) is None:
                if (request := self._sent.pop(number, None)) is None:
                    continue  # it was answered before
                self._bytes -= request.size
                self._limit = min(_MAX_IN_FLIGHT, self._limit + 1)
            if request.times_sent == 1:  # otherwise ZeroMQ may still be sending the frames once more
                self._frames.give_back(request.frames)
            request.frames, request.answer = (), (header, arrays)
            if "error" in header:
                kind, text = header["error"]
                request.error = _ERRORS.get(kind, RuntimeError)(text)
                self._failed = self._failed if request.waited_for else request.error
            request.finished.set()

    def _end(self) -> None:
        """Disconnect, after a farewell that lets the server forget this client, and fail what has no answer."""
        self._closing = True
        self._queue.close()
        failed = [*self._sent.values(), *self._lost.values()]
        while (call := self._queue.take(wait=False)) is not None:
            failed.append(cast("Request", call))
        if self._connection is not None:
            with suppress(ConnectionLostError):
                if not failed and self._farewell is not None:
                    self._connection.send(self._farewell)
            self._connection.close()
        for request in failed:
            request.error = self._failed or _closed()
            request.finished.set()
        with self._pipe:
            self._ended = True
            os.close(self._wake)
            os.close(self._woken)


def _closed() -> ParameterServerClosedError:
    return ParameterServerClosedError("the client was closed; make another one with connect(...)")
