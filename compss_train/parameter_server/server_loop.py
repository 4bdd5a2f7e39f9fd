"""The thread of a served parameter server, and the records by which it executes no call of a client
twice.
"""

import heapq
import itertools
import logging
import math
import secrets
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch

from compss_train._utils import Closable
from compss_train.model.value_encoding import decode_value, encode_value
from compss_train.net import Client, Header, MessageServer, ReceivedArray, parsing, shortened
from compss_train.parameter_server.local import LocalParameterServer, check_specs

_LOG = logging.getLogger(__name__)

CallError: TypeAlias = tuple[str, str]
"""The name of an exception's class, and its message."""
MAX_BACKLOG = 2**28
"""Bytes of pushes that may wait at the server; further pushes wait at the clients."""
MAX_BATCH = 32  # calls that are executed before pushes are answered, in one message
_STOP_SECONDS = 0.05  # maximum delay until a stop is noticed
_FORGET_SECONDS = 600.0
"""How long a client without a name is remembered after its connection was lost, unless it waits
longer itself.
"""


@dataclass
class KeyCalls:
    """A client's calls that change one key. Its n-th call is executed once, however often it is
    received.
    """

    next: int = 0
    """The number of calls received so far."""
    waiting: dict[int, int] = field(default_factory=dict)
    """The calls that are to be executed, and the number of the request with which each was received
    last.
    """
    errors: dict[int, CallError] = field(default_factory=dict)
    """The errors that answer calls, each time that they are received."""


@dataclass(eq=False)
class Records:
    """What is known of a client, over all its connections."""

    name: str
    generation: int
    continued: bool = False
    """Whether its earlier calls, which were all answered, were forgotten: it may begin with any
    count.
    """
    timeout: float | None = None
    """Seconds that it waits for an answer; ``None`` for a client with a name, which is never
    forgotten.
    """
    connections: list[Client] = field(default_factory=list)
    forget_at: float = math.inf
    """When it will be forgotten, unless it connects again."""
    keys: dict[str, KeyCalls] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A call of a client, as received."""

    records: Records
    arrays: list[ReceivedArray]
    call: str
    key: str
    priority: int
    number: int
    count: int
    optimized: int = True

    def __post_init__(self) -> None:
        numbers = self.priority, self.number, self.count, self.optimized
        if not isinstance(self.key, str) or not all(isinstance(each, int) for each in numbers):
            raise TypeError("a call whose key is not text, or whose fields are not integers")


@dataclass(eq=False)
class _Waiting:
    """A call that waits to be executed."""

    key: str
    size: int
    """Bytes of memory that it holds."""
    run: Callable[[], None] | None
    """``None`` once it was taken."""


class CallQueue:
    """Waiting calls: those of one key in order, and the key of the call with the highest priority
    first.
    """

    def __init__(self) -> None:
        self.size = 0
        """Bytes that waiting calls hold."""
        self._by_priority: list[tuple[int, int, _Waiting]] = []  # a heap by priority, then by age
        self._by_key: defaultdict[str, deque[_Waiting]] = defaultdict(deque)
        self._added = 0

    def add(self, key: str, priority: int, size: int, run: Callable[[], None]) -> None:
        """Add a call that ``run`` executes."""
        call = _Waiting(key, size, run)
        heapq.heappush(self._by_priority, (-priority, self._added, call))
        self._by_key[key].append(call)
        self._added += 1
        self.size += size

    def take(self) -> Callable[[], None] | None:
        """Remove the next call and return its function; ``None`` if no call waits."""
        while self._by_priority and self._by_priority[0][2].run is None:
            heapq.heappop(self._by_priority)
        if not self._by_priority:
            return None
        # Earlier calls of the same key come first.
        call = self._by_key[self._by_priority[0][2].key].popleft()
        run = call.run
        call.run = None
        self.size -= call.size
        return run


def _described(error: Exception) -> CallError:
    """Return an error as it is sent."""
    if isinstance(error, ValueError | TypeError | LookupError):
        return "ValueError", shortened(str(error))
    return "RuntimeError", shortened(f"{type(error).__name__}: {error}")


class ServerLoop(Closable):
    """A thread that receives, executes and answers calls; those with a high priority overtake
    earlier ones.
    """

    def __init__(
        self,
        server: MessageServer,
        store: LocalParameterServer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._clock = clock
        self.address, self.token = server.address.url, server.address.token
        """Where it listens, and what clients need."""
        self._queue = CallQueue()
        self._store = store
        self._clients: dict[str, Records] = {}
        self._connected: dict[Client, Records] = {}
        self._absent: list[tuple[float, int, Records]] = []
        """A heap of the clients to be forgotten, by the time."""
        self._losses = itertools.count()
        self._executed: defaultdict[Records, list[int]] = defaultdict(list)
        """Numbers of executed pushes that were not answered yet."""
        self._memory: dict[int, torch.Tensor] = {}
        self._reuses_memory = store.optimizer is None
        self._id = secrets.token_hex(8)
        """By which clients notice that it is another server at the same address."""
        self._failed: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parameter-server", daemon=True)
        self._thread.start()

    @property
    def clients(self) -> dict[str, bool]:
        """The clients that it remembers by their names, and whether each is connected."""
        return {name: bool(records.connections) for name, records in list(self._clients.items())}

    def close(self) -> None:
        """Execute all received calls, and end; may be called again. Raises ``RuntimeError`` if the
        thread died.
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
        while (executed := self._execute()) or not self._stopped.is_set():
            for records, numbers in self._executed.items():
                self._send(records, {"numbers": numbers})
            self._executed.clear()
            if not executed:
                self._forget_absent()
                self._receive(_STOP_SECONDS)

    def _execute(self) -> bool:
        """Execute a batch of calls; return whether there were any."""
        for executed in range(MAX_BATCH):
            self._receive()
            if (run := self._queue.take()) is None:
                return executed > 0
            run()
        return True

    def _receive(self, timeout: float = 0.0) -> None:
        """Receive all pending messages: the last may have the highest priority."""
        while (
            self._queue.size < MAX_BACKLOG
            and (received := self._server.receive(timeout)) is not None
        ):
            timeout = 0.0
            client, header, arrays = received
            try:
                if header is None:
                    self._lost(client)
                elif (records := self._connected.get(client)) is None:
                    self._greeted(client, header)
                else:
                    self._call(records, header, arrays)
            except Exception as error:
                client.refuse(error)

    def _greeted(self, client: Client, greeting: Header) -> None:
        """Continue the records of a client; a later generation of its name forgets the earlier
        ones.

        The calls of an earlier generation are not executed any more.
        """
        with parsing():
            name = str(greeting["client"])
            generation = int(greeting["generation"])
            timeout = greeting.get("timeout")
            continued = greeting.get("continues") == self._id
            timeout = None if timeout is None else float(timeout)
        known = self._clients.get(name)
        if known is None or generation > known.generation:
            self._clients[name] = known = Records(name, generation, continued, timeout)
        elif generation < known.generation:
            known = Records(name, generation)
        self._connected[client] = known
        known.connections.append(client)

    def _lost(self, client: Client) -> None:
        """Take note of a lost connection; a client without a name and another one will be
        forgotten.
        """
        if (records := self._connected.pop(client, None)) is None:
            return
        records.connections = [each for each in records.connections if each is not client]
        if not records.connections and records.timeout is not None:
            records.forget_at = self._clock() + max(_FORGET_SECONDS, records.timeout)
            heapq.heappush(self._absent, (records.forget_at, next(self._losses), records))

    def _forget_absent(self) -> None:
        """Forget clients without a name that can no longer repeat a call: they died without a
        goodbye.
        """
        while self._absent and self._absent[0][0] <= self._clock():
            due, _, records = heapq.heappop(self._absent)
            if (
                due == records.forget_at
                and not records.connections
                and self._clients.get(records.name) is records
            ):
                del self._clients[records.name]

    def _call(self, records: Records, header: Header, arrays: list[ReceivedArray]) -> None:
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
                case other:
                    names = "hello, init, load, push, pull, save or goodbye"
                    raise ValueError(f"unknown call {other!r}; use {names}")
        except ValueError as error:
            self._answer(request, _described(error))

    def _change_once(self, request: _Request) -> None:
        """Execute a call unless it was executed before.

        A connection brings the calls of a key in order, beginning with the first one that has no
        answer.
        """
        records = request.records
        if (calls := records.keys.get(request.key)) is None:
            calls = records.keys[request.key] = KeyCalls(request.count if records.continued else 0)
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
            if request.call == "load":
                self._store.load(
                    request.key, decode_value(arrays[0]), optimized=bool(request.optimized)
                )
            else:
                self._store.init(request.key, arrays, optimized=bool(request.optimized))
        except Exception as error:
            calls.errors[request.count] = _described(error)
        self._answer(request, calls.errors.get(request.count))

    def _queue_update(self, request: _Request, calls: KeyCalls) -> None:
        entry = self._store.entry(request.key)
        check_specs(
            request.key,
            entry.specs,
            "grads",
            [(array.dtype, array.shape) for array in request.arrays],
        )

        def update() -> None:
            try:
                entry.update([self._gradient(*numbered) for numbered in enumerate(request.arrays)])
            except Exception as error:
                calls.errors[request.count] = (
                    "RuntimeError",
                    shortened(f"{type(error).__name__}: {error}"),
                )
            number = calls.waiting.pop(request.count)
            call_error = calls.errors.get(request.count)
            if call_error is None:
                self._executed[request.records].append(number)
            else:
                self._send(request.records, {"numbers": [number], "error": call_error})

        calls.waiting[request.count] = request.number
        self._enqueue(request, update)

    def _gradient(self, place: int, array: ReceivedArray) -> torch.Tensor:
        """Return a received array: in reused memory, unless an optimizer could keep a reference to
        it.
        """
        if not self._reuses_memory or len(array.pieces) == 1:
            return array.tensor()
        memory = self._memory.get(place)
        if memory is None or memory.numel() < array.size:
            memory = self._memory[place] = torch.from_numpy(np.empty(array.size, np.uint8))
        return array.tensor(memory[: array.size])

    def _enqueue(self, request: _Request, execute: Callable[[], None]) -> None:
        def run() -> None:
            try:
                execute()
            except Exception as error:  # an answer that is too large, for example
                self._answer(request, _described(error))

        self._queue.add(
            request.key, request.priority, sum(array.size for array in request.arrays), run
        )

    def _answer(
        self,
        request: _Request,
        error: CallError | None = None,
        arrays: Sequence[torch.Tensor] = (),
        **fields: str,
    ) -> None:
        errors = {} if error is None else {"error": error}
        self._send(request.records, {"numbers": [request.number], **errors, **fields}, arrays)

    def _send(self, records: Records, header: Header, arrays: Sequence[torch.Tensor] = ()) -> None:
        """Send an answer over all connections of a client; at most one of them still works."""
        records.connections = [
            client for client in records.connections if client.send(header, arrays)
        ]
