"""Calls to a server that are executed exactly once, however often their connection breaks."""

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import zmq

from compss_train.data.block import Block
from compss_train.exceptions import ParameterServerClosedError
from compss_train.net import messages
from compss_train.net.connection import Address, Connection, ConnectionLostError
from compss_train.net.messages import PIECE, Header, Message

_MAX_IN_FLIGHT = 128
"""The most requests without an answer."""

_MAX_BYTES_IN_FLIGHT = 2**24
"""The most bytes of requests without an answer, unless a single request is larger."""

_POLL_SECONDS = 0.1
_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 0.05

_SMALL_FRAME = 2**16
"""Bytes up to which copying a frame again costs less than sharing it."""

_MAX_FREE_FRAMES = 2**26 // PIECE


@dataclass(eq=False, kw_only=True)
class _Request:
    """A call to the server, and its answer."""

    frames: Sequence[bytes | zmq.Frame]
    size: int
    waited_for: bool
    """Whether its caller gets its error; otherwise the next caller does."""
    times_sent: int = 0
    answer: Message | None = None


class FramePool:
    """Copies of memory in frames of ZeroMQ; memory of large frames is reused. For any threads."""

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
        self._free.extend(
            frame for frame in frames if isinstance(frame, zmq.Frame) and len(frame) == PIECE
        )


class Caller:
    """Sends calls over one connection and receives their answers, for any number of threads.

    One thread at a time has its turn.

    A caller that does not wait for its answer returns when ZeroMQ has its request; later calls
    receive the answer. The number of requests in flight is limited, so that urgent ones can
    overtake others at the server.

    It connects when there is something to send, and again when the connection breaks. Requests
    without an answer are then sent again, before any new one: the server knows which of them it has
    executed. Each time the connection breaks, the limit is halved: with a limit low enough, an
    answer arrives before it breaks again.

    ``greeting`` is the first message of each connection; ``farewell`` the last one, if all requests
    were answered. A server may forget a client that has been away. One whose requests were all
    answered says so when it returns: its greeting then has ``continues``, which the server chose.
    """

    def __init__(
        self, address: Address, greeting: Header, farewell: Header | None, timeout: float
    ) -> None:
        self._address = address
        self._greeting = greeting
        self._farewell = farewell
        self._timeout = timeout
        self._waiting: dict[int, _Request] = {}
        """The requests to send by number: a new one, and those lost with a connection."""
        self._sent: dict[int, _Request] = {}
        """Those without an answer that were sent over this connection."""
        self._bytes = 0
        self._limit = _MAX_IN_FLIGHT
        self._frames = FramePool()
        self._next_number = secrets.randbits(62)  # unique among all clients
        self._counts: dict[str | int, int] = {}
        self._silent = 0.0
        """Seconds of waiting since the last answer, less those in which this program stood."""
        self._failed: Exception | None = None
        """The error of a request that nobody waited for."""
        self._refused = True
        """Whether each attempt to connect has failed, so that a refusal means a wrong token."""
        self._connection: Connection | None = None
        self._process = os.getpid()
        """The process that may use it: sockets cannot be used, nor closed, in a fork of it."""
        self._turn = threading.Lock()
        self._closed = False
        self.continues: str | None = None

    def call(
        self,
        call: str,
        key: str | int,
        arrays: Sequence[Block] = (),
        *,
        priority: int = 0,
        changes: bool = False,
        wait: bool = True,
        **options: int,
    ) -> Message:
        """Send a call with copies of its arrays, and return its answer, or raise its error.

        ``changes`` says whether it changes the key. Without ``wait`` it returns an empty answer,
        and a later call raises the error, in place of its own answer. Raises ``ValueError`` for a
        key and for arrays that no server accepts, ``TimeoutError`` if the server does not answer,
        ``PermissionError`` for a wrong token, and ``RuntimeError`` if the server has died or
        refuses this client. These three and Ctrl-C close the client.
        """
        if self._process != os.getpid():
            raise ParameterServerClosedError(
                "the client is another process's; make one here with connect(...)"
            )
        descriptions, views = messages.pack_arrays(arrays)
        frames: list[bytes | zmq.Frame] = [self._frames.copy(view) for view in views]
        with self._turn:
            if self._closed:
                raise ParameterServerClosedError(
                    "the client was closed; make another one with connect(...)"
                )
            self._raise_failed()
            # The number identifies the answer; the count says how many calls of this client changed
            # the key before.
            number = self._next_number
            count = self._counts.get(key, 0)
            header = {
                "call": call,
                "key": key,
                "priority": priority,
                "number": number,
                "count": count,
                **options,
            }
            frames.insert(0, messages.pack_header(header, descriptions))
            request = _Request(
                frames=frames, size=sum(len(view) for view in views), waited_for=wait
            )
            self._next_number = number + 1
            self._counts[key] = count + changes
            if not self._sent and not self._waiting:
                self._silent = 0.0
            if self._connection is not None and self._connection.is_lost:
                self._disconnect()  # so that what is sent over it need not be sent again
            self._waiting[number] = request
            self._advance(
                lambda: request.answer is not None or not (wait or number in self._waiting)
            )
            self._raise_failed()
        answer, received = request.answer or ({}, [])
        if wait and "error" in answer:
            raise _error_of(answer)
        return answer, received

    def _raise_failed(self) -> None:
        failed = self._failed
        self._failed = None
        if failed is not None:
            raise failed

    def _advance(self, done: Callable[[], bool]) -> None:
        """Send requests, and receive answers, until ``done``; an error ends this client."""
        try:
            while not done():
                try:
                    connection = self._connection or self._connect()
                    if connection is not None:
                        self._exchange(connection, done)
                except ConnectionLostError:
                    self._disconnect()
        except BaseException:
            self._end()
            raise

    def _connect(self) -> Connection | None:
        """Connect; return ``None`` if that failed and may be tried again."""
        began = time.monotonic()
        repeats = any(request.times_sent for request in self._waiting.values())
        greeting = self._greeting if repeats else self._greeting | {"continues": self.continues}
        try:
            connection = self._address.connect(
                greeting, timeout=min(self._timeout, _CONNECT_SECONDS)
            )
            self._connection = connection
            self._refused = False
        except OSError as error:
            if isinstance(error, PermissionError) and self._refused:
                raise
            time.sleep(_RETRY_SECONDS)
            self._waited(min(time.monotonic() - began, _CONNECT_SECONDS))
        return self._connection

    def _disconnect(self) -> None:
        """Close a connection; its requests without an answer are sent over the next one."""
        if self._connection is not None:
            with suppress(ConnectionLostError):
                # Answers that arrived before it was lost.
                while self._receive(self._connection, 0.0):
                    pass
            self._connection.close()
            self._connection = None
        if self._sent:
            self._waiting = {**self._sent, **self._waiting}
            self._sent = {}
            self._bytes = 0
            self._limit = max(1, self._limit // 2)

    def _exchange(self, connection: Connection, done: Callable[[], bool]) -> None:
        """Send what may be sent, and receive an answer, for which it waits unless ``done``."""
        while (
            self._waiting and len(self._sent) < self._limit and self._bytes < _MAX_BYTES_IN_FLIGHT
        ):
            number, request = next(iter(self._waiting.items()))
            connection.send_frames(request.frames)
            self._sent[number] = self._waiting.pop(number)
            request.times_sent += 1
            self._bytes += request.size
        if not self._receive(connection, 0.0 if done() else _POLL_SECONDS) and not done():
            self._waited(_POLL_SECONDS)

    def _receive(self, connection: Connection, timeout: float) -> bool:
        """Process a message; return whether there was one.

        Raises ``RuntimeError`` if it refuses this client.
        """
        message = connection.receive(timeout)
        if message is None:
            return False
        self._silent = 0.0
        header, _ = message
        if "numbers" not in header:  # the server refuses this client, or ends
            raise RuntimeError(f"{self._address.url}: {header.get('error')}")
        for number in header["numbers"]:
            self._answered(number, message)
        return True

    def _waited(self, seconds: float) -> None:
        """Record a wait; raise ``TimeoutError`` if no answer has come for too long."""
        self._silent += seconds
        if self._silent > self._timeout:
            raise TimeoutError(
                f"{self._address.url} has not answered for {self._timeout} s; check that the "
                "server is running"
            )

    def _answered(self, number: int, answer: Message) -> None:
        """Process the answer of one request."""
        if number in self._waiting:
            request = self._waiting.pop(number)
        elif number in self._sent:
            request = self._sent.pop(number)
            self._bytes -= request.size
            self._limit = min(_MAX_IN_FLIGHT, self._limit + 1)
        else:  # it was answered before
            return
        if request.times_sent == 1:  # otherwise ZeroMQ may still be sending the frames once more
            self._frames.give_back(request.frames)
        request.frames = ()
        request.answer = answer
        if "error" in answer[0] and not request.waited_for:
            self._failed = _error_of(answer[0])

    def close(self, *, wait: bool = True) -> None:
        """Disconnect, after all answers or immediately; may be called again.

        Raises the error of a call, if any.
        """
        if self._process != os.getpid():
            return
        with self._turn:
            if not self._closed and wait:
                self._advance(lambda: not (self._sent or self._waiting))
            self._end()
            self._raise_failed()

    def _end(self) -> None:
        """Disconnect; a farewell lets the server forget a client whose calls were all answered."""
        self._closed = True
        if (
            self._connection is not None
            and self._farewell is not None
            and not (self._sent or self._waiting)
        ):
            with suppress(ConnectionLostError):
                self._connection.send(self._farewell)
        self._disconnect()


def _error_of(header: Header) -> Exception:
    kind, text = header["error"]
    return ValueError(text) if kind == "ValueError" else RuntimeError(text)
