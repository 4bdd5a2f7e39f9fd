"""The thread of a served parameter server, and the records by which it executes no call of a client twice."""

import hmac
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
import zmq

from compss_train.model.optimizers import OptimizerFactory
from compss_train.net.call_queue import Call, CallQueue
from compss_train.net.messages import MessageError, ReceivedArray, pack, unpack_lazily
from compss_train.net.sockets import ServerSocket
from compss_train.net.tokens import WRONG_TOKEN, proof_of
from compss_train.parameter_server.base import check_specs
from compss_train.parameter_server.store import ParameterStore

CallError: TypeAlias = tuple[str, str]
"""The name of an exception's class, and its message."""
_MAX_KEPT_ERRORS = 100  # per client and key
_MAX_BATCH = 32  # calls that are executed before pushes are answered, in one message
_STOP_MILLISECONDS = 50  # maximum delay until a stop is noticed


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A call of a client, as received."""

    client: bytes
    call: str
    key: str
    priority: int
    number: int
    count: int
    optimized: bool
    replicas: int
    generation: int
    proof: str
    arrays: list[ReceivedArray]

    @property
    def size(self) -> int:
        """Size of its arrays in bytes."""
        return sum(array.size for array in self.arrays)


def _request(header: dict[str, Any], arrays: list[ReceivedArray]) -> _Request:
    return _Request(
        # From the header, since ZeroMQ changes the identity in messages of a connection that was replaced.
        client=str(header["client"]).encode(),
        call=str(header["call"]),
        key=str(header["key"]),
        priority=int(header["priority"]),
        number=int(header["number"]),
        count=int(header["count"]),
        optimized=bool(header.get("optimized", True)),
        replicas=int(header.get("replicas", 1)),
        generation=int(header.get("generation", 0)),
        proof=str(header.get("proof", "")),
        arrays=arrays,
    )


def _described(error: Exception) -> CallError:
    """Return an error as it is sent."""
    if isinstance(error, ValueError | TypeError | LookupError):
        return "ValueError", str(error)
    return "RuntimeError", f"{type(error).__name__}: {error}"


@dataclass
class KeyCalls:
    """A client's calls that change one key. Its n-th call is executed once, however often it is received."""

    next: int = 0
    """The number of calls received so far."""
    _waiting: dict[int, int] = field(default_factory=dict)
    _errors: dict[int, CallError] = field(default_factory=dict)

    def add_waiting(self, count: int, number: int) -> None:
        """Record a call that is to be executed, and the number of its answer."""
        self._waiting[count] = number

    def is_waiting(self, count: int) -> bool:
        """Return whether a call is still to be executed."""
        return count in self._waiting

    def pop_executed(self, count: int) -> int:
        """Remove an executed call and return the number of its answer: that with which it was received last."""
        return self._waiting.pop(count)

    def add_error(self, count: int, error: CallError) -> None:
        """Record the error that answers a call, each time that it is received."""
        self._errors[count] = error
        if len(self._errors) > _MAX_KEPT_ERRORS:
            del self._errors[min(self._errors)]

    def error(self, count: int) -> CallError | None:
        """Return the error of a call, ``None`` if it succeeded."""
        return self._errors.get(count)


@dataclass
class ClientState:
    """A client's calls by key, and its waiting pulls."""

    keys: defaultdict[str, KeyCalls] = field(default_factory=lambda: defaultdict(KeyCalls))
    pulls: set[int] = field(default_factory=set)
    """Numbers of waiting pulls: one that is received again is answered once."""
    generation: int = 0
    """That of the last client of this name; calls of earlier ones have been executed."""


class ServerLoop:
    """Receive, execute and answer calls in one thread; calls with a high priority overtake earlier ones."""

    def __init__(
        self,
        *,
        socket: ServerSocket,
        token: str,
        optimizer: OptimizerFactory | None,
        max_backlog: int,
    ) -> None:
        self._server, self._socket, self._proof = socket, socket.socket, proof_of(token)
        self._queue = CallQueue(max_backlog)
        self._store = ParameterStore(optimizer)
        self._clients: defaultdict[bytes, ClientState] = defaultdict(ClientState)
        self._executed: defaultdict[bytes, list[int]] = defaultdict(list)
        """Numbers of executed pushes that were not answered yet, by client."""
        self._memory: dict[int, torch.Tensor] = {}
        self._reuses_memory = optimizer is None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the loop when all received calls have been executed."""
        self._stopped.set()

    def run(self) -> None:
        """Serve until stopped."""
        while self._execute() or not self._stopped.is_set():
            self._answer_pushes()
            if not len(self._queue):
                self._socket.poll(_STOP_MILLISECONDS)
        self._server.close(1000)

    def _execute(self) -> bool:
        """Execute a batch of calls; return whether there were any."""
        for executed in range(_MAX_BATCH):
            self._receive()
            call = self._queue.take(wait=False)
            if call is None:
                return executed > 0
            call.run()
            self._queue.executed(call)
        return True

    def _answer_pushes(self) -> None:
        """Answer the pushes that have been executed."""
        for client, numbers in self._executed.items():
            self._send(client, numbers)
        self._executed.clear()

    def _receive(self) -> None:
        """Receive all pending messages: the last may have the highest priority."""
        while self._queue.has_space and int(self._socket.EVENTS) & zmq.POLLIN:
            _, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            self._server.connections.heard(frames[0])
            try:
                header, arrays = unpack_lazily(frames)
                request = _request(header, arrays)
            except (MessageError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
                continue  # not from a client of ours; no answer is possible
            self._handle(request)

    def _handle(self, request: _Request) -> None:
        if request.call == "goodbye":
            self._clients.pop(request.client, None)
            return
        try:
            self._call(request)
        except Exception as error:
            self._answer(request, error=_described(error))

    def _call(self, request: _Request) -> None:
        match request.call:
            case "hello":
                same = hmac.compare_digest(request.proof.encode(), self._proof.encode())
                self._answer(request, None if same else ("PermissionError", WRONG_TOKEN))
            case "describe":
                specs = self._store[request.key].specs
                self._answer(request, specs=[[str(dtype), list(shape)] for dtype, shape in specs])
            case "init" | "push":
                self._change_once(request)
            case "pull":
                self._pull(request)
            case other:
                raise ValueError(f"unknown call {other!r}; use hello, describe, init, push, pull or goodbye")

    def _change_once(self, request: _Request) -> None:
        """Execute a call unless it was executed before, or an earlier call was lost with a connection.

        In the latter case the client will send all lost calls again, in order.
        """
        client = self._client(request)
        calls = client.keys[request.key]
        if request.generation < client.generation:
            self._answer(request)
        elif request.count == calls.next:
            calls.next += 1
            self._change(request, calls)
        elif calls.is_waiting(request.count):
            calls.add_waiting(request.count, request.number)
        elif request.count < calls.next:
            self._answer(request, calls.error(request.count))

    def _client(self, request: _Request) -> ClientState:
        """Return the state of the client; the first call of a later generation forgets the earlier ones."""
        if request.generation > self._clients[request.client].generation:
            self._clients[request.client] = ClientState(generation=request.generation)
        return self._clients[request.client]

    def _change(self, request: _Request, calls: KeyCalls) -> None:
        try:
            if request.call == "push":
                self._queue_update(request, calls)
                return
            arrays = [array.tensor() for array in request.arrays]
            self._store.add(request.key, arrays, request.optimized, request.replicas)
        except Exception as error:
            calls.add_error(request.count, _described(error))
        self._answer(request, calls.error(request.count))

    def _queue_update(self, request: _Request, calls: KeyCalls) -> None:
        entry = self._store[request.key]
        check_specs(request.key, entry.specs, "grads", [(array.dtype, array.shape) for array in request.arrays])

        def update() -> None:
            try:
                entry.update([self._gradient(*numbered) for numbered in enumerate(request.arrays)])
            except Exception as error:
                calls.add_error(request.count, ("RuntimeError", f"{type(error).__name__}: {error}"))
            number, call_error = calls.pop_executed(request.count), calls.error(request.count)
            if call_error is None:
                self._executed[request.client].append(number)
            else:
                self._send(request.client, [number], call_error)

        calls.add_waiting(request.count, request.number)
        self._enqueue(request, update)

    def _gradient(self, place: int, array: ReceivedArray) -> torch.Tensor:
        """Return a received array: in reused memory, unless an optimizer could keep a reference to it."""
        if not self._reuses_memory or len(array.pieces) == 1:
            return array.tensor()
        memory = self._memory.get(place)
        if memory is None or memory.numel() < array.size:
            memory = self._memory[place] = torch.from_numpy(np.empty(array.size, np.uint8))
        return array.tensor(memory[: array.size])

    def _pull(self, request: _Request) -> None:
        """Answer a pull after the client's earlier pushes have been executed."""
        client, entry = self._client(request), self._store[request.key]
        is_early = request.generation == client.generation and request.count > client.keys[request.key].next
        if is_early or request.number in client.pulls:
            return

        def answer() -> None:
            client.pulls.discard(request.number)
            self._answer(request, arrays=entry.values, replicas=entry.replicas)

        client.pulls.add(request.number)
        self._enqueue(request, answer)

    def _enqueue(self, request: _Request, run: Callable[[], None]) -> None:
        self._queue.add(Call(request.key, run, request.size), request.priority, wait=False)

    def _answer(
        self,
        request: _Request,
        error: CallError | None = None,
        arrays: Sequence[torch.Tensor] = (),
        **fields: Any,
    ) -> None:
        self._send(request.client, [request.number], error, arrays, **fields)

    def _send(
        self,
        client: bytes,
        numbers: list[int],
        error: CallError | None = None,
        arrays: Sequence[torch.Tensor] = (),
        **fields: Any,
    ) -> None:
        if error is not None:
            fields["error"] = error
        with suppress(zmq.ZMQError):  # the client has disconnected, or will send its request again
            self._socket.send_multipart([client, *pack({"numbers": numbers, **fields}, arrays)], zmq.NOBLOCK)
