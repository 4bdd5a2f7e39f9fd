"""A client of a parameter server that is served over ZeroMQ."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import zmq
from zmq.utils.monitor import recv_monitor_message

from compss_train.data.block import Block
from compss_train.parameter_server.backlog import Backlog, Call
from compss_train.parameter_server.base import ParameterServer, ParameterServerClosedError
from compss_train.parameter_server.entry import Kinds, check_arrays, checked, copy_values, own_tensor
from compss_train.validation import check_integer
from compss_train.wire import pack, unpack

MAX_BACKLOG = 2**30
"""Bytes of pushes that wait to be sent."""
_IN_FLIGHT = 16  # calls that the server has not answered: what is urgent can overtake all others
_ERRORS: dict[str, type[Exception]] = {"ValueError": ValueError, "PermissionError": PermissionError}


@dataclass(eq=False)
class _Request:
    """A call on its way, and its answer."""

    header: dict[str, Any]
    arrays: Sequence[torch.Tensor] = ()
    number: int = -1
    answer: list[torch.Tensor] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    finished: threading.Event = field(default_factory=threading.Event)


class RemoteParameterServer(ParameterServer):
    """The parameter server at an address, for any number of threads of this process; see ``connect``."""

    def __init__(self, address: str, token: str, timeout: float) -> None:
        self._address, self._timeout = address, timeout
        self._kinds: dict[str, Kinds] = {}
        self._link = _Link(address, token.encode(), timeout)
        self._finalizer = weakref.finalize(self, self._link.close)

    def init(self, parameter_id: str, value: Sequence[Block]) -> None:
        """Set what a new key holds, and wait until it does."""
        own = [own_tensor(block) for block in checked("value", value)]
        self._ask("init", parameter_id, own)
        self._kinds[parameter_id] = [(tensor.dtype, tuple(tensor.shape)) for tensor in own]

    def push(self, parameter_id: str, grads: Sequence[Block], priority: int = 0) -> None:
        """Send gradients; returns before they are sent. What the server says against them the next call raises."""
        check_arrays(parameter_id, self._kinds_of(parameter_id), "grads", grads)
        own = [own_tensor(grad) for grad in grads]
        self._link.send(_Request({"call": "push", "key": parameter_id, "priority": priority}, own), priority)

    def pull(self, parameter_id: str, weights: Sequence[Block] | None = None, priority: int = 0) -> Sequence[Block]:
        """Wait for what the key holds after this client's pushes; new arrays are tensors."""
        if weights is not None:
            check_arrays(parameter_id, self._kinds_of(parameter_id), "weights", weights)
        pulled = self._ask("pull", parameter_id, (), priority).answer
        if weights is None:
            return list(pulled)
        copy_values(pulled, weights)
        return weights

    def close(self) -> None:
        """Wait until the server has executed all pushes, and end."""
        self._finalizer()
        self._link.check()

    def _ask(self, call: str, key: str, arrays: Sequence[torch.Tensor] = (), priority: int = 0) -> _Request:
        request = _Request({"call": call, "key": key, "priority": check_integer("priority", priority)}, arrays)
        self._link.send(request, priority)
        request.finished.wait()
        self._link.check()
        if request.error is not None:
            raise request.error
        return request

    def _kinds_of(self, key: str) -> Kinds:
        if key not in self._kinds:
            told = self._ask("describe", key).fields["kinds"]
            self._kinds[key] = [(getattr(torch, name.removeprefix("torch.")), tuple(shape)) for name, shape in told]
        return self._kinds[key]


def connect(address: str, token: str, *, timeout: float = 60.0) -> RemoteParameterServer:
    """Return the parameter server that ``serve`` told the address and the token of.

    Pushes are sent in the background, those of a higher priority first. When the connection breaks it is made anew,
    and what was not answered is sent again; the server executes nothing twice. Where it does not answer for
    ``timeout`` seconds, that is a ``TimeoutError``. A wrong token is a ``PermissionError``.
    """
    server = RemoteParameterServer(address, token, timeout)
    try:
        server._ask("hello", "")
    except BaseException:
        server._link.close(wait=False)
        raise
    return server


class _Link:
    """A thread that has the socket: sends requests, the most urgent first, and takes answers."""

    def __init__(self, address: str, token: bytes, timeout: float) -> None:
        self._address, self._token, self._timeout = address, token, timeout
        self._backlog = Backlog(MAX_BACKLOG)
        self._flying: dict[int, _Request] = {}
        self._numbers = 0
        self._failed: BaseException | None = None
        self._closing = self._aborted = False
        self._woken, self._wake = os.pipe()
        self._pipe, self._ended = threading.Lock(), False
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, uuid.uuid4().bytes)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(address)
        self._thread = threading.Thread(target=self._run, name="parameter-client", daemon=True)
        self._thread.start()

    def send(self, request: _Request, priority: int) -> None:
        """Have a request sent; raises what went wrong before."""
        self.check()
        size = sum(array.numel() * array.element_size() for array in request.arrays)
        call = Call(str(request.header["key"]), lambda: self._send(request), size)
        if self._closing or not self._backlog.add(call, check_integer("priority", priority)):
            raise ParameterServerClosedError("the client was closed; make another one with connect(...)")
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
        poller = zmq.Poller()
        for source in (self._socket, self._monitor, self._woken):
            poller.register(source, zmq.POLLIN)
        heard, connected = time.monotonic(), False
        try:
            while not self._aborted:
                call = self._backlog.take(wait=False) if len(self._flying) < _IN_FLIGHT else None
                if call is not None:
                    heard = heard if self._flying else time.monotonic()
                    call.run()
                    self._backlog.executed(call)
                elif self._closing and not self._flying:
                    return
                ready = dict(poller.poll(0 if call is not None else 100))
                if self._woken in ready:
                    os.read(self._woken, 4096)
                if self._monitor in ready:
                    recv_monitor_message(self._monitor)
                    if connected:
                        self._send_again()
                    connected = True
                if self._socket in ready:
                    self._take_answers()
                    heard = time.monotonic()
                if self._flying and time.monotonic() - heard > self._timeout:
                    self._fail(
                        TimeoutError(f"{self._address} has not answered for {self._timeout} s; is it there?")
                    )
                    return
        except BaseException as error:
            self._fail(error)
        finally:
            self._end()

    def _send(self, request: _Request) -> None:
        request.number = self._numbers
        self._numbers += 1
        self._flying[request.number] = request
        self._transmit(request)

    def _transmit(self, request: _Request) -> None:
        header = {**request.header, "number": request.number, "oldest": min(self._flying)}
        self._socket.send_multipart([self._token, *pack(header, request.arrays)], copy=False)

    def _send_again(self) -> None:
        """After the connection was lost; the server knows what it has executed."""
        for number in sorted(self._flying):
            self._transmit(self._flying[number])

    def _take_answers(self) -> None:
        while self._socket.poll(0):
            header, arrays = unpack(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
            request = self._flying.pop(header["number"], None)
            if request is None:
                continue  # answered before
            request.answer, request.fields = arrays, header
            if "error" in header:
                kind, message = header["error"]
                request.error = _ERRORS.get(kind, RuntimeError)(message)
                if request.header["call"] == "push":
                    self._failed = request.error
            request.arrays = ()
            request.finished.set()

    def _fail(self, error: BaseException) -> None:
        self._failed = error
        for request in self._flying.values():
            request.error = error

    def _end(self) -> None:
        self._closing = True
        self._backlog.close()
        while (call := self._backlog.take(wait=False)) is not None:
            with contextlib.suppress(zmq.ZMQError):
                call.run()
            self._backlog.executed(call)
        for request in self._flying.values():
            request.error = (
                request.error
                or self._failed
                or ParameterServerClosedError("the client was closed; make another one with connect(...)")
            )
            request.finished.set()
        self._socket.disable_monitor()
        self._context.destroy(0)
        with self._pipe:
            self._ended = True
            os.close(self._wake)
            os.close(self._woken)
