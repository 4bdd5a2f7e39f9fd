"""A stream: the samples of one simulation, or of another program, on their way to the workers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from compss_train._utils.closing import Closable
from compss_train.data.block import Block
from compss_train.engines.machine import is_loopback
from compss_train.exceptions import TrainingEndedError
from compss_train.online.connection import Address, Connection, ConnectionLostError, Header

Sample: TypeAlias = "tuple[Block, ...]"
"""x and y, or x alone."""
Place: TypeAlias = "list[str | int]"
"""Host and port."""

_PAUSE = 0.2
"""Seconds in which somebody who has ended is noticed to have ended."""


class WorkerGoneError(ConnectionLostError):
    """A worker has died, and with it what was sent to it and not saved."""

    def __init__(self, worker: int, error: Exception) -> None:
        super().__init__(f"worker {worker} is gone: {error}")
        self.worker = worker


class BusyNameError(PermissionError):
    """Somebody sends under this name; or did, and the coordinator has not noticed yet that it is gone."""


class Stream(Closable):
    """Connects to the coordinator, and once that has said ``go`` to the workers (``open``). For one thread.

    Each worker says which samples it has of the stream, from an earlier run, and these are not sent again. Raises
    ``PermissionError`` with what the coordinator has against it.
    """

    def __init__(self, address: Address, hello: Header) -> None:
        self._address = address
        self._control = address.connect(hello)
        try:
            told = self._control.receive()[0]
            if "error" in told:
                kind = BusyNameError if told.get("busy") else PermissionError
                raise kind(f"{address.host}:{address.port}: {told['error']}")
        except BaseException:
            self._control.close()
            raise
        self.wanted = bool(told.get("go"))
        """Whether samples of this stream are wanted at all."""
        self.number: int = told.get("stream", 0)
        self.paired: bool = told.get("paired", False)
        """Whether the buffers pair time steps, so that the whole stream goes to one worker."""
        self.sent = 0
        """How many samples were sent, or had been before."""
        self.ended = threading.Event()
        """Set when training has ended."""
        self._refused: str | None = None
        self._key: str = told.get("key", "")
        self._places: list[Place] = told.get("workers", [])
        self._workers: list[Connection | None] = [None] * len(self._places)
        self._next = [0] * len(self._places)
        self._finished: set[int] = set()
        self._left: set[int] = set()  # workers that are known to have died
        self._moved: queue.SimpleQueue[Header] = queue.SimpleQueue()
        self._watcher = threading.Thread(target=self._watch, name="stream-control", daemon=True)
        self._watcher.start()

    def open(self) -> None:
        """Connect to the workers."""
        for worker in range(len(self._places)):
            self._open(worker)

    def _open(self, worker: int) -> None:
        with self._noticing(worker):
            connection = self._reachable(worker).connect({"hello": "samples", "stream": self.number})
            self._workers[worker] = connection
            if self.ended.is_set():  # meanwhile: nobody else would close it
                connection.close()
            self._next[worker] = self._receive(connection)["next"]
            self._finished.discard(worker)

    def _reachable(self, worker: int) -> Address:
        """Return a worker's address; one that is local to the coordinator's node is reached as that was."""
        host, port = self._places[worker]
        if is_loopback(str(host)) and not is_loopback(self._address.host):
            host = self._address.host
        return Address(str(host), int(port), self._key)

    def _watch(self) -> None:
        """Take what the coordinator says: that a worker has left, that it is back, that all is over."""
        try:
            while "stop" not in (told := self._control.receive()[0]):
                if "left" in told:  # a node that is gone without a word lets a send wait for a quarter of an hour
                    self._left.add(int(told["left"]))
                    self._hang_up(int(told["left"]))
                else:
                    self._moved.put(told)
        except OSError:
            pass  # it has ended, or this stream has
        finally:
            self.ended.set()
            self._moved.put({})
            for worker in range(len(self._workers)):  # ends a send that waits
                self._hang_up(worker)

    def _hang_up(self, worker: int) -> None:
        connection = self._workers[worker]
        if connection is not None:
            connection.close()

    @property
    def delivered(self) -> int:
        """How many samples, the first ones, have arrived before."""
        workers = range(len(self._workers))
        turns = {self._turn(number) for number in workers}
        return min((self._first_missing(worker) for worker in workers if worker in turns), default=0)

    def _first_missing(self, worker: int) -> int:
        number = self._next[worker]
        while self._turn(number) != worker:
            number += 1
        return number

    def skip(self, number: int) -> None:
        """Go on after so many samples more that have arrived before."""
        if not 0 <= number <= max(0, self.delivered - self.sent):
            raise ValueError(
                f"skip({number}): of the samples after the first {self.sent}, {max(0, self.delivered - self.sent)} "
                "have arrived before; send the others"
            )
        self.sent += number

    def send(self, sample: Sample, step: int | None) -> None:
        """Send the next sample to the worker whose turn it is; waits while that one's buffer is full."""
        self._check()
        worker = self._turn(self.sent)
        if self.sent >= self._next[worker]:
            header = {"sample": self.sent} if step is None else {"sample": self.sent, "step": step}
            with self._noticing(worker):
                connection = self._connection(worker)
                connection.send(header, sample)
                if connection.has_message():
                    self._receive(connection)
        self.sent += 1

    def _connection(self, worker: int) -> Connection:
        connection = self._workers[worker]
        if connection is None:
            raise ConnectionLostError("it was never reached")
        return connection

    @contextmanager
    def _noticing(self, worker: int) -> Iterator[None]:
        """Say what it means when the connection to a worker breaks."""
        try:
            yield
        except OSError as error:
            self.ended.wait(_PAUSE)  # if training has ended the coordinator is gone, too
            self._check()
            raise WorkerGoneError(worker, error) from error

    def _check(self) -> None:
        if self.ended.is_set():
            raise TrainingEndedError("training has ended: no more samples are wanted")
        if self._refused is not None:
            raise ValueError(f"a worker has refused a sample: {self._refused}")

    def _receive(self, connection: Connection) -> Header:
        answer = connection.receive()[0]
        if "error" in answer:
            self._refused = answer["error"]
            self._check()
        return answer

    def reopen(self, worker: int) -> int:
        """Wait until a worker that died was replaced; return how many samples of this stream it has not."""
        self._hang_up(worker)
        if worker in self._left or not self._is_still_there(worker):
            self._control.send({"lost": worker, "place": self._places[worker]})
            told = self._moved.get()
            self._check()
            self._places[worker] = told["place"]
            self._left.discard(worker)
            self._open(worker)
        return sum(self._turn(number) == worker for number in range(self._next[worker], self.sent))

    def _is_still_there(self, worker: int) -> bool:
        """Connect again, where only the connection broke."""
        try:
            self._open(worker)
        except WorkerGoneError:
            return False
        return True

    def _turn(self, number: int) -> int:
        return worker_of(self.number, number, len(self._workers), whole=self.paired)

    def finish(self) -> None:
        """Wait until the workers hold all that was sent, and say so to the coordinator."""
        self.flush()
        self.tell({"finished": self.sent})

    def flush(self) -> None:
        """Wait until the workers hold all that was sent."""
        self._check()
        for worker in range(len(self._workers)):
            if worker not in self._finished:
                with self._noticing(worker):
                    self._connection(worker).send({"end": True})
                    self._receive(self._connection(worker))
                self._finished.add(worker)

    def tell(self, header: Header) -> None:
        """Say something to the coordinator."""
        self._control.send(header)

    def close(self) -> None:
        """Close all connections."""
        self._control.close()
        self._watcher.join()


def worker_of(stream: int, sample: int, workers: int, *, whole: bool) -> int:
    """Return the worker that gets a sample: in turn, or all of a ``whole`` stream the same one."""
    return (stream if whole else stream + sample) % workers


def needed_by(worker: int, stream: int, samples: int, workers: int, *, whole: bool) -> int:
    """Return one more than the number of the last sample that a worker gets of so many, 0 for none."""
    for sample in range(samples - 1, max(-1, samples - 1 - workers), -1):
        if worker_of(stream, sample, workers, whole=whole) == worker:
            return sample + 1
    return 0
