"""A client's connection to a served parameter server."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from compss_train._utils.validation import check_integer
from compss_train.data.block import Block
from compss_train.parameter_server.backlog import Backlog
from compss_train.parameter_server.base import ParameterServerClosedError
from compss_train.parameter_server.in_flight import Flight, Frames, Request
from compss_train.parameter_server.messages import Received, pack_arrays, pack_header, unpack_lazily

MAX_BACKLOG = 2**30
"""Bytes of pushes that wait to be sent."""
_IN_FLIGHT = 128  # calls on their way
_GOODBYE_MILLISECONDS = 200  # for the last message to get away
_ERRORS: dict[str, type[Exception]] = {"ValueError": ValueError, "PermissionError": PermissionError}


class Link:
    """A thread that has the socket: sends requests, the most urgent first, and takes answers."""

    def __init__(self, address: str, token: bytes, timeout: float, name: str | None) -> None:
        self._address, self._token, self._timeout, self._named = address, token, timeout, name is not None
        self._backlog = Backlog(MAX_BACKLOG)
        self._flight = Flight(_IN_FLIGHT)
        self._frames = Frames()
        self._numbers = secrets.randbits(62)
        self._counts: dict[str, int] = {}
        self._heard = time.monotonic()
        self._failed: BaseException | None = None
        self._closing = self._aborted = self._asleep = self._connected = False
        self._woken, self._wake = os.pipe()
        self._pipe, self._ended = threading.Lock(), False
        self._identity = f"unnamed {uuid.uuid4().hex}" if name is None else _identity(name)
        self._open(address)
        self._thread = threading.Thread(target=self._run, name="parameter-client", daemon=True)
        self._thread.start()

    def _open(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt_string(zmq.IDENTITY, self._identity)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(address)
        self._poller = zmq.Poller()
        for source in (self._socket, self._monitor, self._woken):
            self._poller.register(source, zmq.POLLIN)

    def request(self, call: str, key: str, arrays: Sequence[Block] = (), priority: int = 0) -> Request:
        """Return a call with copies of its arrays."""
        described, views = pack_arrays(arrays)
        size = sum(len(view) for view in views)
        frames = [self._frames.copy(view) for view in views]
        return Request(key, size=size, call=call, priority=priority, described=described, frames=frames)

    def send(self, request: Request) -> None:
        """Have a request sent; raises what went wrong before."""
        self.check()
        request.run = lambda: self._send(request)
        if self._closing or not self._backlog.add(request, check_integer("priority", request.priority)):
            raise _closed()
        if self._asleep:
            self._rouse()

    def _rouse(self) -> None:
        """Let the thread look at the backlog."""
        with self._pipe:
            if not self._ended:
                os.write(self._wake, b"x")

    def check(self) -> None:
        """Raise what the server said against a push, once."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def close(self, *, wait: bool = True) -> None:
        """End the thread, when all is answered or at once."""
        self._closing, self._aborted = True, self._aborted or not wait
        self._backlog.close()
        self._rouse()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._aborted:
                self._send_more()
                if self._closing and not self._flight and not len(self._backlog):
                    return
                if not self._take_answers():
                    self._rest()
                if self._flight and time.monotonic() - self._heard > self._timeout:
                    raise TimeoutError(f"{self._address} has not answered for {self._timeout} s; is it there?")
        except BaseException as error:
            self._fail(error)
        finally:
            self._end()

    def _send_more(self) -> None:
        while self._flight.has_room and (lost := self._flight.next_lost()) is not None:
            self._transmit(lost)
        while self._flight.has_room and (call := self._backlog.take(wait=False)) is not None:
            if not self._flight:
                self._heard = time.monotonic()
            call.run()
            self._backlog.executed(call)

    def _rest(self) -> None:
        """Wait for answers, calls, or a connection that was made anew."""
        self._asleep = self._flight.has_room
        if self._asleep and len(self._backlog):  # it came while we were not seen to sleep
            self._asleep = False
            return
        ready = dict(self._poller.poll(100))
        self._asleep = False
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._monitor in ready:
            recv_monitor_message(self._monitor)
            if self._connected:
                self._flight.lose()  # the server knows what it has executed of that
            self._connected = True

    def _send(self, request: Request) -> None:
        request.number, self._numbers = self._numbers, self._numbers + 1
        request.count = self._counts.get(request.key, 0)
        if request.call in ("init", "push"):
            self._counts[request.key] = request.count + 1
        self._transmit(request)

    def _transmit(self, request: Request) -> None:
        self._flight.add(request)
        fields = {name: getattr(request, name) for name in ("call", "key", "priority", "number", "count")}
        fields["client"] = self._identity
        self._socket.send_multipart([self._token, pack_header(fields, request.described), *request.frames])

    def _take_answers(self) -> bool:
        """Take what is there; tell whether that was anything."""
        taken = False
        while int(self._socket.EVENTS) & zmq.POLLIN:
            self._take(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
            taken = True
        if taken:
            self._heard = time.monotonic()
        return taken

    def _take(self, frames: Sequence[zmq.Frame]) -> None:
        """Take an answer, which several requests may share."""
        fields, arrays = unpack_lazily(frames)
        for number in fields["numbers"]:
            request = self._flight.answered(number)
            if request is not None:
                self._finish(request, fields, arrays)

    def _finish(self, request: Request, fields: dict[str, Any], arrays: list[Received]) -> None:
        if request.times_sent == 1:  # else the other may be on its way still
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
        for request in self._flight:
            request.error = error

    def _end(self) -> None:
        self._closing = True
        self._backlog.close()
        left = len(self._flight)
        while (call := self._backlog.take(wait=False)) is not None:
            with contextlib.suppress(zmq.ZMQError):
                call.run()
            self._backlog.executed(call)
        for request in self._flight:
            request.error = request.error or self._failed or _closed()
            request.finished.set()
        self._hang_up(goodbye=not left and not self._named)

    def _hang_up(self, *, goodbye: bool) -> None:
        """Close the socket; a client that has no name will not come back, and the server may forget it."""
        if goodbye and self._connected:
            self._transmit(Request("", call="goodbye"))
        self._socket.disable_monitor()
        self._context.destroy(_GOODBYE_MILLISECONDS if goodbye else 0)
        with self._pipe:
            self._ended = True
            os.close(self._wake)
            os.close(self._woken)


def _identity(name: str) -> str:
    return f"named {hashlib.sha256(name.encode()).hexdigest()}"  # of a length that ZeroMQ takes


def _closed() -> ParameterServerClosedError:
    return ParameterServerClosedError("the client was closed; make another one with connect(...)")
