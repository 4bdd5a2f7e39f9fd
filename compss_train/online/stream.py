"""A stream: the client that sends the samples of one simulation, or of another program, to the workers.

Samples go to the workers in turn (``route``). An offset counts the samples of a stream, as in a log: a worker with
offset n has received all samples of the stream below n that are routed to it.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias
from urllib.parse import urlsplit

import zmq

from compss_train._utils import Closable
from compss_train.data.block import Block
from compss_train.engines.nodes import is_loopback
from compss_train.exceptions import TrainingEndedError
from compss_train.net.connection import LINGER_MILLISECONDS, Address, Connection, ConnectionLostError, Header

Sample: TypeAlias = tuple[Block, ...]
"""x and y, or x alone."""

_PAUSE = 0.2
"""Seconds within which the end of training is noticed after a connection to a worker was lost."""
_TICK = 0.1
"""Seconds between checks for messages of the coordinator."""


def route(stream: int, sample: int, workers: int, *, whole: bool) -> int:
    """Return the worker that gets a sample: round-robin, or one worker for all of a ``whole`` stream."""
    return (stream if whole else stream + sample) % workers


def end_offset(worker: int, stream: int, samples: int, workers: int, *, whole: bool) -> int:
    """Return the offset that a worker has when it holds all its samples of a stream of ``samples``; 0 if none."""
    for sample in range(samples - 1, max(-1, samples - 1 - workers), -1):
        if route(stream, sample, workers, whole=whole) == worker:
            return sample + 1
    return 0


class WorkerDisconnectedError(ConnectionLostError):
    """A worker has died, and with it the samples that it had not checkpointed."""

    def __init__(self, worker: int, error: Exception) -> None:
        super().__init__(f"worker {worker} disconnected: {error}")
        self.worker = worker


class NameInUseError(PermissionError):
    """Another client sends under this name, or the coordinator has not noticed yet that it disconnected."""


class Stream(Closable):
    """Connects to the coordinator, and after its acceptance to the workers (``open``).

    Each worker answers with its offset, so that samples that an earlier attempt delivered are not sent again. For
    one thread; others may call ``update`` and ``notify``.

    Raises ``PermissionError`` with the reason if the coordinator rejects the stream.
    """

    def __init__(self, address: Address, greeting: Header) -> None:
        self._address, self._context = address, zmq.Context()
        self.sent = 0
        """Samples sent so far, including those that an earlier attempt delivered."""
        self.ended = threading.Event()
        """Set when training has ended."""
        self._rejection: str | None = None
        self._lock = threading.Lock()
        self._updated = 0.0
        self._connections: dict[int, Connection] = {}  # by worker
        self._connected: dict[int, str | None] = {}  # where each of them listens
        self._offsets: dict[int, int] = {}
        self._credit: dict[int, int] = {}
        self._flushed: set[int] = set()
        try:
            self._control = address.connect(greeting, self._context)
            self._greet()
        except BaseException:
            self.close()
            raise

    def _greet(self) -> None:
        reply, _ = self._control.receive() or ({}, [])
        if "error" in reply:
            kind = NameInUseError if reply.get("busy") else PermissionError
            raise kind(f"{self._address.url}: {reply['error']}")
        self.accepted = bool(reply.get("accepted"))
        """Whether training still needs samples of this stream."""
        self.number: int = reply.get("stream", 0)
        self.paired: bool = reply.get("paired", False)
        """Whether the buffers pair time steps, so that the whole stream goes to one worker."""
        self._key = reply.get("key", "")
        self._urls: list[str | None] = reply.get("workers", [])

    # Connections

    def open(self) -> None:
        """Connect to the workers, when all of them have started."""
        for worker in range(len(self._urls)):
            self._open(worker)

    def _open(self, worker: int, lost: str | None = None) -> None:
        """Connect to a worker, when it listens elsewhere than the one that was ``lost``."""
        while (url := self._urls[worker]) in (None, lost):
            self.update(_TICK)
            self._check()
        with self._translating_errors(worker):
            self._disconnect(worker)
            connection = Address(self._reachable(str(url)), self._key).connect(
                {"stream": self.number}, self._context
            )
            self._connections[worker], self._connected[worker], self._credit[worker] = connection, url, 0
            self._offsets[worker] = self._receive(worker)["next"]
            self._flushed.discard(worker)

    def _reachable(self, url: str) -> str:
        """Return a worker's address; a loopback address on the coordinator's node is replaced by that node's."""
        host = urlsplit(self._address.url).hostname
        own = urlsplit(url).hostname
        return url.replace(own, host, 1) if own and host and is_loopback(own) and not is_loopback(host) else url

    def update(self, timeout: float = 0.0) -> None:
        """Process the coordinator's messages: where the workers listen, and the end of training."""
        with self._lock:
            self._updated = time.monotonic()
            try:
                while not self.ended.is_set() and (message := self._control.receive(timeout)) is not None:
                    self._urls, timeout = message[0].get("workers", self._urls), 0.0
                    if "stop" in message[0]:
                        self.ended.set()
            except OSError:  # the coordinator has ended
                self.ended.set()

    def _disconnect(self, worker: int) -> None:
        if worker in self._connections:
            self._connections.pop(worker).close()

    def reconnect(self, worker: int) -> int:
        """Wait for the replacement of a lost worker; return how many samples of this stream it does not have."""
        lost = self._urls[worker]
        try:
            self._open(worker)  # in case that only the connection broke
        except WorkerDisconnectedError:
            self._open(worker, lost)
        return sum(self._route(number) == worker for number in range(self._offsets[worker], self.sent))

    # Samples

    @property
    def delivered(self) -> int:
        """How many samples, counted from the first, earlier attempts have delivered."""
        workers = range(len(self._urls))
        used = {self._route(number) for number in workers}
        return min((self._first_missing(worker) for worker in workers if worker in used), default=0)

    def _first_missing(self, worker: int) -> int:
        number = self._offsets[worker]
        while self._route(number) != worker:
            number += 1
        return number

    def skip(self, number: int) -> None:
        """Skip the next ``number`` samples, which must have been delivered before."""
        if not 0 <= number <= max(0, self.delivered - self.sent):
            raise ValueError(
                f"skip({number}): after the first {self.sent} samples, {max(0, self.delivered - self.sent)} "
                "were delivered before and may be skipped; send the others"
            )
        self.sent += number

    def send(self, sample: Sample, step: int | None) -> None:
        """Send the next sample to its worker; blocks while that worker's buffer is full."""
        if time.monotonic() - self._updated > _TICK:
            self.update()
        self._check()
        worker = self._route(self.sent)
        if self.sent >= self._offsets[worker]:
            header = {"sample": self.sent} if step is None else {"sample": self.sent, "step": step}
            with self._translating_errors(worker):
                while not self._credit[worker]:
                    self._receive(worker)
                self._connection(worker).send(header, sample)
            self._credit[worker] -= 1
        self.sent += 1

    def flush(self) -> None:
        """Wait until the workers have received all samples sent."""
        self._check()
        for worker in range(len(self._urls)):
            if worker not in self._flushed:
                with self._translating_errors(worker):
                    self._connection(worker).send({"end": True})
                    while "ended" not in self._receive(worker):
                        pass
                self._flushed.add(worker)

    def finish(self) -> None:
        """Flush, and report the number of samples to the coordinator."""
        self.flush()
        self.notify({"finished": self.sent})

    def notify(self, header: Header) -> None:
        """Send a message to the coordinator."""
        with self._lock:
            self._control.send(header)

    def _route(self, number: int) -> int:
        return route(self.number, number, len(self._urls), whole=self.paired)

    def _connection(self, worker: int) -> Connection:
        if worker not in self._connections or self._connected[worker] != self._urls[worker]:
            raise ConnectionLostError("the coordinator has lost it")
        return self._connections[worker]

    def _receive(self, worker: int) -> Header:
        """Wait for a worker's next message, while it is not lost and training has not ended."""
        while (message := self._connection(worker).receive(_TICK)) is None:
            self.update()
            self._check()
        reply, _ = message
        self._credit[worker] += reply.get("credit", 0)
        if "error" in reply:
            self._rejection = reply["error"]
            self._check()
        return reply

    @contextmanager
    def _translating_errors(self, worker: int) -> Iterator[None]:
        """Raise ``TrainingEndedError`` or ``WorkerDisconnectedError`` for a lost connection."""
        try:
            yield
        except OSError as error:
            self._disconnect(worker)
            self.update(_PAUSE)  # if training has ended the coordinator disconnects, too
            self._check()
            raise WorkerDisconnectedError(worker, error) from error

    def _check(self) -> None:
        if self.ended.is_set():
            raise TrainingEndedError("training has ended; no more samples are accepted")
        if self._rejection is not None:
            raise ValueError(f"a worker rejected a sample: {self._rejection}")

    def close(self) -> None:
        """Close all connections when what was sent has left."""
        with self._lock, suppress(AttributeError):
            self._control.close()
        for worker in list(self._connections):
            self._disconnect(worker)
        self._context.destroy(LINGER_MILLISECONDS)
