"""A stream: the client that sends the samples of one simulation, or of another program, to the workers.

Samples go to the workers in turn (``route``). An offset counts the samples of a stream, as in a log: a worker with
offset n has received all samples of the stream below n that are routed to it.
"""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from compss_train._utils.closing import Closable
from compss_train.data.block import Block
from compss_train.engines.nodes import is_loopback
from compss_train.exceptions import TrainingEndedError
from compss_train.online.authentication import ConnectionLostError
from compss_train.online.connection import Address, Connection, Header

Sample: TypeAlias = tuple[Block, ...]
"""x and y, or x alone."""
Endpoint: TypeAlias = list[str | int]
"""Host and port."""

_PAUSE = 0.2
"""Seconds within which the end of training is noticed after a connection to a worker was lost."""


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
    """Connects to the coordinator, and after its acceptance to the workers (``open``). For one thread.

    Each worker answers with its offset, so that samples that an earlier attempt delivered are not sent again.
    Raises ``PermissionError`` with the reason if the coordinator rejects the stream.
    """

    def __init__(self, address: Address, handshake: Header) -> None:
        self._address = address
        self._control, (reply, _) = address.greet(handshake)
        if "error" in reply:
            self._control.close()
            kind = NameInUseError if reply.get("busy") else PermissionError
            raise kind(f"{address.host}:{address.port}: {reply['error']}")
        self.accepted = bool(reply.get("accepted"))
        """Whether training still needs samples of this stream."""
        self.number: int = reply.get("stream", 0)
        self.paired: bool = reply.get("paired", False)
        """Whether the buffers pair time steps, so that the whole stream goes to one worker."""
        self.sent = 0
        """Samples sent so far, including those that an earlier attempt delivered."""
        self.ended = threading.Event()
        """Set when training has ended."""
        self._rejection: str | None = None
        self._key = self._control.reveal(reply.get("key", ""))
        self._endpoints: list[Endpoint] = reply.get("workers", [])
        self._workers: list[Connection | None] = [None] * len(self._endpoints)
        self._offsets = [0] * len(self._endpoints)
        self._flushed: set[int] = set()
        self._lost: set[int] = set()  # workers that the coordinator has reported as dead
        self._replies: queue.SimpleQueue[Header] = queue.SimpleQueue()
        self._watcher = threading.Thread(target=self._watch, name="stream-control", daemon=True)
        self._watcher.start()

    # Connections

    def open(self) -> None:
        """Connect to the workers."""
        for worker in range(len(self._endpoints)):
            self._open(worker)

    def _open(self, worker: int) -> None:
        with self._translating_errors(worker):
            connection = self._worker_address(worker).connect({"role": "samples", "stream": self.number})
            self._workers[worker] = connection
            if self.ended.is_set():  # meanwhile: nothing else would close it
                connection.close()
            self._offsets[worker] = self._receive(connection)["next"]
            self._flushed.discard(worker)

    def _worker_address(self, worker: int) -> Address:
        """Return a worker's address; a loopback address on the coordinator's node is replaced by that node's."""
        host, port = self._endpoints[worker]
        if is_loopback(str(host)) and not is_loopback(self._address.host):
            host = self._address.host
        return Address(str(host), int(port), self._key)

    def _watch(self) -> None:
        """Process the coordinator's messages: lost workers, their replacements, and the end of training."""
        try:
            while "stop" not in (message := self._control.receive()[0]):
                if "worker_lost" in message:  # else TCP may block a send to a failed node for 15 minutes
                    self._lost.add(int(message["worker_lost"]))
                    self._disconnect(int(message["worker_lost"]))
                else:
                    self._replies.put(message)
        except OSError:
            pass  # the coordinator has ended, or this stream is closed
        finally:
            self.ended.set()
            self._replies.put({})
            for worker in range(len(self._workers)):  # unblocks a pending send
                self._disconnect(worker)

    def _disconnect(self, worker: int) -> None:
        connection = self._workers[worker]
        if connection is not None:
            connection.close()

    def reconnect(self, worker: int) -> int:
        """Wait for the replacement of a lost worker; return how many samples of this stream it does not have."""
        self._disconnect(worker)
        if worker in self._lost or not self._try_open(worker):
            self._control.send({"lost": worker, "endpoint": self._endpoints[worker]})
            reply = self._replies.get()
            self._check()
            self._endpoints[worker] = reply["endpoint"]
            self._lost.discard(worker)
            self._open(worker)
        return sum(self._route(number) == worker for number in range(self._offsets[worker], self.sent))

    def _try_open(self, worker: int) -> bool:
        """Connect to the same endpoint again, in case that only the connection broke."""
        try:
            self._open(worker)
        except WorkerDisconnectedError:
            return False
        return True

    # Samples

    @property
    def delivered(self) -> int:
        """How many samples, counted from the first, earlier attempts have delivered."""
        workers = range(len(self._workers))
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
        self._check()
        worker = self._route(self.sent)
        if self.sent >= self._offsets[worker]:
            header = {"sample": self.sent} if step is None else {"sample": self.sent, "step": step}
            with self._translating_errors(worker):
                connection = self._connection(worker)
                connection.send(header, sample)
                if connection.has_message():
                    self._receive(connection)
        self.sent += 1

    def flush(self) -> None:
        """Wait until the workers have received all samples sent."""
        self._check()
        for worker in range(len(self._workers)):
            if worker not in self._flushed:
                with self._translating_errors(worker):
                    self._connection(worker).send({"end": True})
                    self._receive(self._connection(worker))
                self._flushed.add(worker)

    def finish(self) -> None:
        """Flush, and report the number of samples to the coordinator."""
        self.flush()
        self.notify({"finished": self.sent})

    def notify(self, header: Header) -> None:
        """Send a message to the coordinator."""
        self._control.send(header)

    def _route(self, number: int) -> int:
        return route(self.number, number, len(self._workers), whole=self.paired)

    def _connection(self, worker: int) -> Connection:
        connection = self._workers[worker]
        if connection is None:
            raise ConnectionLostError("never connected")
        return connection

    def _receive(self, connection: Connection) -> Header:
        reply = connection.receive()[0]
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
            self.ended.wait(_PAUSE)  # if training has ended the coordinator disconnects, too
            self._check()
            raise WorkerDisconnectedError(worker, error) from error

    def _check(self) -> None:
        if self.ended.is_set():
            raise TrainingEndedError("training has ended; no more samples are accepted")
        if self._rejection is not None:
            raise ValueError(f"a worker rejected a sample: {self._rejection}")

    def close(self) -> None:
        """Close all connections."""
        self._control.close()
        self._watcher.join()
