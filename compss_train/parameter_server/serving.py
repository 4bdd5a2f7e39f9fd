"""Serving parameters over ZeroMQ, which the extra ``server`` installs."""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import zmq

from compss_train.optimizers import OptimizerFactory, OptimizerSpec, optimizer_factory
from compss_train.parameter_server.backlog import Backlog, Call
from compss_train.parameter_server.base import Closable
from compss_train.parameter_server.entry import Entries
from compss_train.validation import check_count
from compss_train.wire import WireError, pack, unpack

MAX_BACKLOG = 2**28
"""Bytes of pushes that wait at the server, by default; more wait with the clients."""
_STOP_MILLISECONDS = 50  # how long a close may go unnoticed

Reply = Callable[..., None]


class Serving(Closable):
    """A running server: its ``address``, the ``token`` that clients need, and ``close``."""

    def __init__(self, loop: _Loop, address: str, token: str) -> None:
        self.address = address
        self.token = token
        self._loop = loop
        self._thread = threading.Thread(target=loop.run, name="parameter-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Execute what has been received, and end; may be called again."""
        self._loop.stop()
        self._thread.join()


def serve(
    address: str = "tcp://127.0.0.1:*",
    *,
    optimizer: OptimizerSpec | None = None,
    token: str | None = None,
    max_backlog: int = MAX_BACKLOG,
) -> Serving:
    """Serve parameters to clients in other processes, or on other nodes, from a thread of this process.

    Parameters
    ----------
    address:
        Where to listen; by default a free port, for this machine alone. ``tcp://*:5555`` lets others in.
    optimizer:
        As of ``LocalParameterServer``.
    token:
        What clients must know; ``None`` draws one. It keeps others out of the store, but messages are not
        encrypted: serve in networks that you trust.
    max_backlog:
        Bytes of pushes that wait here, 256 MiB by default; more wait with the clients.

    Raises ``OSError`` where it cannot listen at the address.
    """
    check_count("max_backlog", max_backlog)
    factory = None if optimizer is None else optimizer_factory(optimizer)
    token = secrets.token_urlsafe(16) if token is None else token
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client that comes back is the same client
    socket.setsockopt(zmq.RCVHWM, 16)
    socket.setsockopt(zmq.LINGER, 1000)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        context.destroy(0)
        raise OSError(f"cannot listen at {address}: {error}") from error
    bound = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return Serving(_Loop(context, socket, token.encode(), factory, max_backlog), bound, token)


@dataclass
class _Seen:
    """What has come from a client."""

    next: int = 0
    """The number of the call that is to come next."""
    executed: dict[int, bool] = field(default_factory=dict)
    """Of the calls whose answers may not have reached the client, whether they were executed or wait."""

    def is_due(self, number: int, oldest: int) -> bool:
        """Tell whether a call is to be executed or answered; ``oldest`` is the first one without an answer.

        After a broken connection calls may come before those that got lost: they will be sent again, in order.
        """
        for answered in [answered for answered in self.executed if answered < oldest]:
            del self.executed[answered]
        if number == self.next:
            self.next += 1
            return True
        return self.executed.get(number, False)


class _Loop:
    """Receives, executes and answers, in one thread: what is urgent overtakes what was received before it."""

    def __init__(
        self,
        context: zmq.Context[Any],
        socket: zmq.Socket[Any],
        token: bytes,
        optimizer: OptimizerFactory | None,
        max_backlog: int,
    ) -> None:
        self._context, self._socket, self._token = context, socket, token
        self._backlog = Backlog(max_backlog)
        self._entries = Entries(optimizer)
        self._seen: dict[bytes, _Seen] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let the loop end when it has executed what it has."""
        self._stopped.set()

    def run(self) -> None:
        """Serve until stopped."""
        busy = False
        while busy or not self._stopped.is_set():
            self._receive(0 if busy else _STOP_MILLISECONDS)
            call = self._backlog.take(wait=False)
            busy = call is not None
            if call is not None:
                call.run()
                self._backlog.executed(call)
        self._context.destroy(1000)

    def _receive(self, milliseconds: int) -> None:
        """Take in what has come; wait for it where there is nothing else to do."""
        while self._backlog.has_room and self._socket.poll(milliseconds):
            identity, token, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            self._handle(identity.bytes, token.bytes, frames)
            milliseconds = 0

    def _handle(self, client: bytes, token: bytes, frames: Sequence[Any]) -> None:
        try:
            header, arrays = unpack(frames)
            number, oldest = int(header["number"]), int(header["oldest"])
        except (WireError, KeyError, TypeError, ValueError):
            return  # from something that is no client; there is nobody to answer
        if not hmac.compare_digest(token, self._token):
            self._answer(client, number, error=("PermissionError", "the token is not the server's"))
            return
        seen = self._seen.setdefault(client, _Seen())
        if not seen.is_due(number, oldest):
            return
        try:
            self._call(client, number, header, arrays, again=number in seen.executed)
        except (ValueError, TypeError, LookupError) as error:
            seen.executed[number] = True
            self._answer(client, number, error=("ValueError", str(error)))

    def _call(
        self, client: bytes, number: int, header: dict[str, Any], arrays: list[torch.Tensor], *, again: bool
    ) -> None:
        """Execute a call now, or when it is its turn. One that was executed before is only answered again."""
        call, key = str(header["call"]), str(header["key"])
        if call == "hello":
            self._answer(client, number)
            return
        if call == "init":
            if not again:
                self._entries.add(key, arrays)
            self._seen[client].executed[number] = True
            self._answer(client, number)
            return
        entry = self._entries[key]
        if call == "describe":
            self._answer(client, number, kinds=[[str(dtype), list(shape)] for dtype, shape in entry.kinds])
        elif call == "push" and again:
            self._answer(client, number)
        elif call == "push":
            entry.check("grads", arrays)
            size = sum(array.numel() * array.element_size() for array in arrays)
            self._later(client, number, Call(key, lambda: entry.update(arrays), size), header, list)
        elif call == "pull":
            self._later(client, number, Call(key, lambda: None), header, entry.copies)
        else:
            raise ValueError(f"{call!r} is no call")

    def _later(
        self, client: bytes, number: int, call: Call, header: dict[str, Any], result: Callable[[], list[Any]]
    ) -> None:
        run = call.run

        def run_and_answer() -> None:
            try:
                run()
                arrays = result()
            except Exception as error:
                self._answer(client, number, error=("RuntimeError", f"{type(error).__name__}: {error}"))
            else:
                self._answer(client, number, arrays)
            self._seen[client].executed[number] = True

        call.run = run_and_answer
        self._seen[client].executed[number] = False
        self._backlog.add(call, int(header["priority"]))

    def _answer(self, client: bytes, number: int, arrays: Sequence[Any] = (), **fields: Any) -> None:
        frames = [client, *pack({"number": number, **fields}, arrays)]
        with suppress(zmq.ZMQError):  # the client is gone, or will ask again
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
