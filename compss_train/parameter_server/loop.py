"""The thread of a served parameter server."""

from __future__ import annotations

import hmac
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import zmq

from compss_train.model.optimizers import OptimizerFactory
from compss_train.parameter_server.backlog import Backlog, Call
from compss_train.parameter_server.deduplication import Caller, Counted
from compss_train.parameter_server.entry import Entries, check_kinds
from compss_train.parameter_server.messages import Received, WireError, pack, unpack_lazily

_TOGETHER = 32  # pushes at most that are answered in one message, and calls that are executed before it is sent
_STOP_MILLISECONDS = 50  # how long a close may go unnoticed


@dataclass(frozen=True)
class _Message:
    """A call as it came from a client."""

    client: bytes
    call: str
    key: str
    priority: int
    number: int
    count: int
    arrays: list[Received]

    @property
    def size(self) -> int:
        """Bytes that its arrays hold."""
        return sum(array.size for array in self.arrays)


def _message(header: dict[str, Any], arrays: list[Received]) -> _Message:
    priority, number, count = (int(header[name]) for name in ("priority", "number", "count"))
    # What comes over a connection that another has replaced has no longer the client's identity with ZeroMQ.
    client = str(header["client"]).encode()
    return _Message(client, str(header["call"]), str(header["key"]), priority, number, count, arrays)


class Loop:
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
        self._callers: defaultdict[bytes, Caller] = defaultdict(Caller)
        self._done: defaultdict[bytes, list[int]] = defaultdict(list)
        self._memory: dict[int, torch.Tensor] = {}
        self._reuses = optimizer is None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let the loop end when it has executed what it has."""
        self._stopped.set()

    def run(self) -> None:
        """Serve until stopped."""
        while self._execute() or not self._stopped.is_set():
            self._confirm()
            if not len(self._backlog):
                self._socket.poll(_STOP_MILLISECONDS)
        self._context.destroy(1000)

    def _execute(self) -> bool:
        """Execute some calls; tell whether there were any."""
        for executed in range(_TOGETHER):
            self._receive()
            call = self._backlog.take(wait=False)
            if call is None:
                return executed > 0
            call.run()
            self._backlog.executed(call)
        return True

    def _confirm(self) -> None:
        """Answer the pushes that have been executed."""
        for client, numbers in self._done.items():
            self._send(client, numbers)
        self._done.clear()

    def _receive(self) -> None:
        """Take in all that has come, as what came last may be the most urgent."""
        while self._backlog.has_room and int(self._socket.EVENTS) & zmq.POLLIN:
            _, token, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            try:
                header, arrays = unpack_lazily(frames)
                message = _message(header, arrays)
            except (WireError, KeyError, TypeError, ValueError, OverflowError):
                continue  # from something that is no client; there is nobody to answer
            self._handle(message, token.bytes)

    def _handle(self, message: _Message, token: bytes) -> None:
        if not hmac.compare_digest(token, self._token):
            self._answer(message, error=("PermissionError", "the token is not the server's"))
            return
        if message.call == "goodbye":
            self._callers.pop(message.client, None)
            return
        try:
            self._call(message)
        except (ValueError, TypeError, LookupError) as error:
            self._answer(message, error=("ValueError", str(error)))

    def _call(self, message: _Message) -> None:
        match message.call:
            case "hello":
                self._answer(message)
            case "describe":
                kinds = self._entries[message.key].kinds
                self._answer(message, kinds=[[str(dtype), list(shape)] for dtype, shape in kinds])
            case "init" | "push":
                self._change_once(message)
            case "pull":
                self._read(message)
            case other:
                raise ValueError(f"{other!r} is no call")

    def _change_once(self, message: _Message) -> None:
        """Execute a call unless it was executed before, or one before it got lost with a connection.

        In the latter case all that got lost will be sent again, in order.
        """
        counted = self._callers[message.client].keys[message.key]
        if message.count == counted.next:
            counted.next += 1
            self._change(message, counted)
        elif counted.is_waiting(message.count):
            counted.wait(message.count, message.number)
        elif message.count < counted.next:
            self._answer(message, counted.refusal(message.count))

    def _change(self, message: _Message, counted: Counted) -> None:
        try:
            if message.call == "push":
                self._update_later(message, counted)
                return
            self._entries.add(message.key, [array.tensor() for array in message.arrays])
        except (ValueError, TypeError) as error:
            counted.refuse(message.count, ("ValueError", str(error)))
        self._answer(message, counted.refusal(message.count))

    def _update_later(self, message: _Message, counted: Counted) -> None:
        entry = self._entries[message.key]
        check_kinds(message.key, entry.kinds, "grads", [(array.dtype, array.shape) for array in message.arrays])

        def update() -> None:
            try:
                entry.update([self._gradient(*numbered) for numbered in enumerate(message.arrays)])
            except Exception as error:
                counted.refuse(message.count, ("RuntimeError", f"{type(error).__name__}: {error}"))
            number, refusal = counted.executed(message.count), counted.refusal(message.count)
            if refusal is None:
                self._done[message.client].append(number)
            else:
                self._send(message.client, [number], refusal)

        counted.wait(message.count, message.number)
        self._later(message, update)

    def _gradient(self, place: int, array: Received) -> torch.Tensor:
        """Put together an array: in memory that serves again where no optimizer can keep it."""
        if not self._reuses or len(array.pieces) == 1:
            return array.tensor()
        memory = self._memory.get(place)
        if memory is None or memory.numel() < array.size:
            memory = self._memory[place] = torch.from_numpy(np.empty(array.size, np.uint8))
        return array.tensor(memory[: array.size])

    def _read(self, message: _Message) -> None:
        """Answer a pull when what the client pushed before has been executed."""
        caller, entry = self._callers[message.client], self._entries[message.key]
        if message.count > caller.keys[message.key].next or message.number in caller.reading:
            return

        def read() -> None:
            caller.reading.discard(message.number)
            self._answer(message, arrays=entry.values)

        caller.reading.add(message.number)
        self._later(message, read)

    def _later(self, message: _Message, run: Callable[[], None]) -> None:
        self._backlog.add(Call(message.key, run, message.size), message.priority, wait=False)

    def _answer(
        self,
        message: _Message,
        error: tuple[str, str] | None = None,
        arrays: Sequence[torch.Tensor] = (),
        **fields: Any,
    ) -> None:
        self._send(message.client, [message.number], error, arrays, **fields)

    def _send(
        self,
        client: bytes,
        numbers: list[int],
        error: tuple[str, str] | None = None,
        arrays: Sequence[torch.Tensor] = (),
        **fields: Any,
    ) -> None:
        if error is not None:
            fields["error"] = error
        with suppress(zmq.ZMQError):  # the client is gone, or will ask again
            self._socket.send_multipart([client, *pack({"numbers": numbers, **fields}, arrays)], zmq.NOBLOCK)
