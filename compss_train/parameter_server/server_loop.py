"""The thread of a served parameter server."""

import heapq
import itertools
import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from compss_train._utils import Closable
from compss_train.model.value_encoding import decode_value, encode_value
from compss_train.net import Client, Header, MessageServer, ReceivedArray, parsing, shortened
from compss_train.parameter_server.call_queue import CallQueue
from compss_train.parameter_server.client_records import CallError, ClientRecords, KeyCalls
from compss_train.parameter_server.interface import Key, check_specs
from compss_train.parameter_server.local import LocalParameterServer

_LOG = logging.getLogger(__name__)

MAX_BACKLOG = 2**28
"""Bytes of pushes that may wait at the server; further pushes wait at the clients."""
MAX_BATCH = 32
"""Calls that are executed before pushes are answered, in one message."""
_STOP_SECONDS = 0.05
"""Maximum delay until a stop is noticed."""
_FORGET_SECONDS = 600.0
"""How long a client without a name is remembered after its connection was lost.

It is longer if the client waits longer for answers.
"""


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A call of a client, as received."""

    records: ClientRecords
    arrays: list[ReceivedArray]
    call: str
    key: Key
    priority: int
    number: int
    count: int
    optimized: int = True

    def __post_init__(self) -> None:
        numbers = (self.priority, self.number, self.count, self.optimized)
        is_key = isinstance(self.key, Key)
        if not is_key or not all(isinstance(value, int) for value in numbers):
            raise TypeError(
                "a call whose key is neither text nor integer, or whose fields are not integers"
            )


def _described(error: Exception) -> CallError:
    """Return an error as it is sent."""
    if isinstance(error, ValueError | TypeError | LookupError):
        return "ValueError", shortened(str(error))
    return "RuntimeError", shortened(f"{type(error).__name__}: {error}")


class ServerLoop(Closable):
    """A thread that receives, executes and answers calls.

    Those with a high priority overtake earlier ones.
    """

    def __init__(
        self,
        server: MessageServer,
        store: LocalParameterServer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._clock = clock
        self.address = server.address.url
        """Where it listens."""
        self.token = server.address.token
        """What clients need."""
        self._queue = CallQueue()
        self._store = store
        self._clients: dict[str, ClientRecords] = {}
        """The clients that are remembered, by their names."""
        self._connected: dict[Client, ClientRecords] = {}
        self._absent: list[tuple[float, int, ClientRecords]] = []
        """A heap of the clients to be forgotten, by the time."""
        self._losses = itertools.count()
        self._executed: defaultdict[ClientRecords, list[int]] = defaultdict(list)
        """Numbers of executed pushes that were not answered yet."""
        self._memory: dict[int, torch.Tensor] = {}
        """By place among the arrays of a push, memory that is used again and again."""
        self._reuses_memory = store.optimizer is None
        self._id = secrets.token_hex(8)
        """By which clients notice that it is another server at the same address."""
        self._failed: BaseException | None = None
        """What has ended the thread, if it has died."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parameter-server", daemon=True)
        self._thread.start()

    @property
    def clients(self) -> dict[str, bool]:
        """The clients that it remembers by their names, and whether each is connected."""
        return {name: bool(records.connections) for name, records in list(self._clients.items())}

    def close(self) -> None:
        """Execute all received calls, and end; may be called again.

        Raises ``RuntimeError`` if the thread has died.
        """
        self._stopped.set()
        self._thread.join()
        failed = self._failed
        self._failed = None
        if failed is not None:
            raise RuntimeError(self._end_of(failed)) from failed

    def _end_of(self, error: BaseException) -> str:
        return (
            f"the thread of the parameter server at {self.address} has died: "
            f"{type(error).__name__}: {error}"
        )

    def _run(self) -> None:
        with self._server:
            try:
                self._serve()
            except BaseException as error:
                self._failed = error
                _LOG.critical(self._end_of(error), exc_info=error)
                for client in self._connected:
                    client.send({"error": self._end_of(error)})

    def _serve(self) -> None:
        while True:
            has_executed = self._execute()
            if not has_executed and self._stopped.is_set():
                return
            for records, numbers in self._executed.items():
                self._send(records, {"numbers": numbers})
            self._executed.clear()
            if not has_executed:
                self._forget_absent()
                self._receive(_STOP_SECONDS)

    def _execute(self) -> bool:
        """Execute a batch of calls; return whether there were any."""
        for executed in range(MAX_BATCH):
            self._receive()
            run = self._queue.take()
            if run is None:
                return executed > 0
            run()
        return True

    def _receive(self, timeout: float = 0.0) -> None:
        """Receive all pending messages: the last may have the highest priority."""
        while self._queue.size < MAX_BACKLOG:
            received = self._server.receive(timeout)
            if received is None:
                return
            timeout = 0.0
            client, header, arrays = received
            records = self._connected.get(client)
            try:
                if header is None:
                    self._lost(client)
                elif records is None:
                    self._greeted(client, header)
                else:
                    self._call(records, header, arrays)
            except Exception as error:
                client.refuse(error)

    # Clients

    def _greeted(self, client: Client, greeting: Header) -> None:
        """Continue the records of a client, and forget those of an earlier generation.

        The calls of an earlier generation are not executed any more.
        """
        with parsing():
            name = str(greeting["client"])
            generation = int(greeting["generation"])
            timeout = greeting.get("timeout")
            timeout = None if timeout is None else float(timeout)
        continued = greeting.get("continues") == self._id
        records = self._clients.get(name)
        if records is None or generation > records.generation:
            records = ClientRecords(name, generation, continued=continued, timeout=timeout)
            self._clients[name] = records
        elif generation < records.generation:
            records = ClientRecords(name, generation)
        self._connected[client] = records
        records.connections.append(client)

    def _lost(self, client: Client) -> None:
        """Take note of a lost connection; a client that can have no other will be forgotten."""
        records = self._connected.pop(client, None)
        if records is None:
            return
        records.connections = [
            connection for connection in records.connections if connection is not client
        ]
        if not records.connections and records.timeout is not None:
            records.forget_at = self._clock() + max(_FORGET_SECONDS, records.timeout)
            heapq.heappush(self._absent, (records.forget_at, next(self._losses), records))

    def _forget_absent(self) -> None:
        """Forget clients without a name that can repeat no call: they died without a goodbye."""
        while self._absent and self._absent[0][0] <= self._clock():
            forget_at, _, records = heapq.heappop(self._absent)
            is_absent = forget_at == records.forget_at and not records.connections
            if is_absent and self._clients.get(records.name) is records:
                del self._clients[records.name]

    # Calls

    def _call(self, records: ClientRecords, header: Header, arrays: list[ReceivedArray]) -> None:
        if header.get("call") == "goodbye":
            self._clients.pop(records.name, None)
            return
        with parsing():
            request = _Request(records=records, arrays=arrays, **header)
        try:
            match request.call:
                case "hello":
                    self._answer(request, server=self._id)
                case "init" | "load" | "push":
                    self._change_once(request)
                case "pull":  # answered after the client's earlier pushes have been executed
                    entry = self._store.entry(request.key)
                    self._enqueue(request, lambda: self._answer(request, arrays=entry.values))
                case "save":
                    entry = self._store.entry(request.key)
                    self._enqueue(
                        request, lambda: self._answer(request, arrays=[encode_value(entry.state())])
                    )
                case unknown:
                    names = "hello, init, load, push, pull, save or goodbye"
                    raise ValueError(f"unknown call {unknown!r}; use {names}")
        except ValueError as error:
            self._answer(request, _described(error))

    def _change_once(self, request: _Request) -> None:
        """Execute a call unless it was executed before.

        A connection brings the calls of a key in order, beginning with the first one that has no
        answer.
        """
        records = request.records
        calls = records.keys.get(request.key)
        if calls is None:
            calls = KeyCalls(request.count if records.continued else 0)
            records.keys[request.key] = calls
        if self._clients.get(records.name) is not records:  # of an earlier generation
            self._answer(request)
        elif request.count == calls.next:
            calls.next += 1
            self._change(request, calls)
        elif request.count in calls.waiting:
            calls.waiting[request.count] = request.number
        elif request.count < calls.next:
            self._answer(request, calls.errors.get(request.count))
        else:
            missing = f"call {request.count} of {request.key!r} came before call {calls.next}"
            raise ValueError(
                f"{missing}; if the server was restarted, use a new client: connect(...)"
            )

    def _change(self, request: _Request, calls: KeyCalls) -> None:
        try:
            if request.call == "push":
                self._queue_update(request, calls)
                return
            arrays = [array.tensor() for array in request.arrays]
            optimized = bool(request.optimized)
            if request.call == "load":
                self._store.load(request.key, decode_value(arrays[0]), optimized=optimized)
            else:
                self._store.init(request.key, arrays, optimized=optimized)
        except Exception as error:
            calls.errors[request.count] = _described(error)
        self._answer(request, calls.errors.get(request.count))

    def _queue_update(self, request: _Request, calls: KeyCalls) -> None:
        entry = self._store.entry(request.key)
        specs = [(array.dtype, array.shape) for array in request.arrays]
        check_specs(request.key, entry.specs, "grads", passed=specs)

        def update() -> None:
            try:
                gradients = [
                    self._gradient(place, array) for place, array in enumerate(request.arrays)
                ]
                entry.update(gradients)
            except Exception as error:
                text = shortened(f"{type(error).__name__}: {error}")
                calls.errors[request.count] = ("RuntimeError", text)
            number = calls.waiting.pop(request.count)
            call_error = calls.errors.get(request.count)
            if call_error is None:
                self._executed[request.records].append(number)
            else:
                self._send(request.records, {"numbers": [number], "error": call_error})

        calls.waiting[request.count] = request.number
        self._enqueue(request, update)

    def _gradient(self, place: int, array: ReceivedArray) -> torch.Tensor:
        """Return a received array, in reused memory unless an optimizer could keep it."""
        if not self._reuses_memory or len(array.pieces) == 1:
            return array.tensor()
        memory = self._memory.get(place)
        if memory is None or memory.numel() < array.size:
            memory = torch.from_numpy(np.empty(array.size, np.uint8))
            self._memory[place] = memory
        return array.tensor(memory[: array.size])

    def _enqueue(self, request: _Request, execute: Callable[[], None]) -> None:
        def run() -> None:
            try:
                execute()
            except Exception as error:  # an answer that is too large, for example
                self._answer(request, _described(error))

        size = sum(array.size for array in request.arrays)
        self._queue.add(request.key, run, priority=request.priority, size=size)

    # Answers

    def _answer(
        self,
        request: _Request,
        error: CallError | None = None,
        arrays: Sequence[torch.Tensor] = (),
        **fields: str,
    ) -> None:
        errors = {} if error is None else {"error": error}
        self._send(request.records, {"numbers": [request.number], **errors, **fields}, arrays)

    def _send(
        self, records: ClientRecords, header: Header, arrays: Sequence[torch.Tensor] = ()
    ) -> None:
        """Send an answer over all connections of a client; at most one of them still works."""
        records.connections = [
            client for client in records.connections if client.send(header, arrays)
        ]
