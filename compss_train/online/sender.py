"""Sending samples into an online fit: from its simulations, and from any other program."""

from __future__ import annotations

import queue
import re
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train.data.block import Block
from compss_train.exceptions import TrainingEndedError
from compss_train.online.connection import Address, Connection, ConnectionLostError, Header
from compss_train.online.dealing import worker_of
from compss_train.parameter_server.base import Closable

Sample: TypeAlias = "tuple[Block, ...]"
"""x and y, or x alone."""

_RETRY_SECONDS = 0.2


class WorkerGoneError(ConnectionLostError):
    """A worker has died, and with it what was sent to it and not saved."""

    def __init__(self, worker: int, error: Exception) -> None:
        super().__init__(f"worker {worker} is gone: {error}")
        self.worker = worker


class Stream(Closable):
    """The samples of one simulation on their way to the workers.

    Each worker says which samples it has of the stream, from an earlier run, and these are not sent again.
    """

    def __init__(self, address: Address, hello: Header) -> None:
        self._control = address.connect(hello)
        told = self._control.receive()[0]
        if "error" in told:
            self._control.close()
            raise PermissionError(f"{address.host}:{address.port}: {told['error']}")
        self.wanted: bool = told["go"]
        """Whether samples of this stream are wanted at all."""
        self.number: int = told.get("stream", 0)
        self.sent = 0
        """How many samples were sent, or had been."""
        self.paired: bool = told.get("paired", False)
        """Whether the buffers pair time steps, so that the whole stream goes to one worker."""
        self._token = address.token
        self._ended = threading.Event()
        self._moved: queue.SimpleQueue[Header] = queue.SimpleQueue()
        self._places: list[tuple[str, int]] = told.get("workers", [])
        self._workers: list[Connection] = []
        self._next: list[int] = []
        self._watcher = threading.Thread(target=self._watch, name="stream-control", daemon=True)
        self._watcher.start()

    def open(self) -> None:
        """Connect to the workers."""
        for worker, place in enumerate(self._places):
            self._open(worker, *place)

    @property
    def ended(self) -> threading.Event:
        """Set when training has ended."""
        return self._ended

    @property
    def delivered(self) -> int:
        """How many samples every worker has already: a solver that starts again need not compute them."""
        return min(self._next, default=0)

    def _open(self, worker: int, host: str, port: int) -> None:
        try:
            connection = Address(host, port, self._token).connect({"hello": "samples", "stream": self.number})
            upto = connection.receive()[0]["next"]
        except OSError as error:
            raise self._gone(worker, error) from error
        if worker == len(self._workers):
            self._workers.append(connection)
            self._next.append(upto)
        else:
            self._workers[worker], self._next[worker] = connection, upto

    def _watch(self) -> None:
        """Take what the coordinator says: that a worker is back, or that it is over."""
        try:
            while "stop" not in (told := self._control.receive()[0]):
                self._moved.put(told)
        except OSError:
            pass  # it has ended, or this stream has
        finally:
            self._ended.set()
            self._moved.put({})
            for connection in self._workers:  # ends a send that waits
                connection.close()

    def send(self, sample: Sample, step: int | None) -> None:
        """Send the next sample to the worker whose turn it is; waits while that one's buffer is full."""
        self.check()
        worker = self._turn(self.sent)
        if self.sent >= self._next[worker]:
            header = {"sample": self.sent} if step is None else {"sample": self.sent, "step": step}
            with self._noticing(worker) as connection:
                connection.send(header, sample)
                if connection.has_message():
                    self._receive(connection)
        self.sent += 1

    @contextmanager
    def _noticing(self, worker: int) -> Iterator[Connection]:
        """Say what it means when the connection to a worker breaks."""
        try:
            yield self._workers[worker]
        except ConnectionLostError as error:
            raise self._gone(worker, error) from error

    def check(self) -> None:
        """Raise ``TrainingEndedError`` where training has ended."""
        if self._ended.is_set():
            raise TrainingEndedError("training has ended: no more samples are wanted")

    def _receive(self, connection: Connection) -> Header:
        answer = connection.receive()[0]
        if "error" in answer:
            raise ValueError(f"a worker has refused a sample: {answer['error']}")
        return answer

    def _gone(self, worker: int, error: Exception) -> Exception:
        """Return what is to be raised when the connection to a worker breaks."""
        self._ended.wait(_RETRY_SECONDS)  # if training has ended the coordinator is gone, too
        if self._ended.is_set():
            return TrainingEndedError("training has ended: no more samples are wanted")
        return WorkerGoneError(worker, error)

    def reopen(self, worker: int) -> int:
        """Wait until a worker that died was replaced; return how many samples of this stream it has not."""
        self._workers[worker].close()
        self._control.send({"lost": worker})
        told = self._moved.get()
        self.check()
        self._open(worker, *told["place"])
        return sum(self._turn(number) == worker for number in range(self._next[worker], self.sent))

    def _turn(self, number: int) -> int:
        return worker_of(self.number, number, len(self._workers), whole=self.paired)

    def finish(self) -> None:
        """Wait until the workers hold all that was sent, and say so to the coordinator."""
        for worker in range(len(self._workers)):
            with self._noticing(worker) as connection:
                connection.send({"end": True})
                self._receive(connection)
        self.tell({"finished": self.sent})

    def tell(self, header: Header) -> None:
        """Say something to the coordinator."""
        self._control.send(header)

    def close(self) -> None:
        """Close all connections."""
        self._control.close()
        self._watcher.join()
        for connection in self._workers:
            connection.close()


class SampleSender(Closable):
    """Sends samples from any program into a ``fit_online`` that was given an ``address``.

    Parameters
    ----------
    address:
        That address, ``"tcp://host:port"``.
    token:
        The token that ``fit_online`` was given.
    name:
        Of this stream of samples. A program that starts again under the same name and sends the same samples sends
        none of them twice. ``None`` is a new stream.
    timeout:
        Seconds to wait for a fit that has not begun yet, 60 by default.

    Use it as a context: leaving it says that all samples have been sent, leaving it by an exception that the
    program has failed. ``send`` waits while the buffers are full. Where a worker has died, samples that it had not
    saved are lost, with a warning. Raises ``ConnectionRefusedError`` where there is no fit, ``PermissionError`` for
    a wrong token, and ``TrainingEndedError`` when the fit wants no more.
    """

    def __init__(self, address: str, token: str, name: str | None = None, *, timeout: float = 60.0) -> None:
        host, port = host_and_port(address)
        self._stream = _patiently(Address(host, port, token), {"hello": "sender", "name": name}, timeout)
        self._closed = False

    @property
    def delivered(self) -> int:
        """How many samples of this name had arrived before: the first so many that are sent are not sent again."""
        return self._stream.delivered

    def send(self, x: Any, y: Any = None, *, step: int | None = None) -> None:
        """Send a sample: arrays, tensors or numbers; ``step``, its time step, is for paired buffers."""
        sample = as_sample((x,) if y is None else (x, y))
        self._until_done(lambda: self._stream.send(sample, step))

    def _until_done(self, act: Callable[[], None]) -> None:
        """Do something, again with every worker that takes the place of one that died meanwhile."""
        while True:
            try:
                act()
                return
            except WorkerGoneError as error:
                if lost := self._stream.reopen(error.worker):
                    warnings.warn(f"{error}, and with it {lost} samples of this stream", stacklevel=3)

    def close(self) -> None:
        """Wait until all samples have arrived, and say that they were all; may be called again."""
        if not self._closed:
            self._closed = True
            self._until_done(self._stream.finish)
            self._stream.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        elif not self._closed:
            self._closed = True
            if not self._stream.ended.is_set():
                self._stream.tell({"failed": "".join(traceback.format_exception(error))})
            self._stream.close()


def _patiently(address: Address, hello: Header, timeout: float) -> Stream:
    until = time.monotonic() + timeout
    while True:
        try:
            stream = Stream(address, hello)
            stream.open()
            return stream
        except (ConnectionRefusedError, WorkerGoneError) as error:
            if time.monotonic() > until:
                raise ConnectionRefusedError(
                    f"nobody listens at tcp://{address.host}:{address.port}; start fit_online(..., address=) first"
                ) from error
            time.sleep(_RETRY_SECONDS)


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of ``"tcp://host:port"``; raise ``ValueError`` for anything else."""
    match = re.fullmatch(r"tcp://([^:/*]+):(\d+)", address) if isinstance(address, str) else None
    if match is None or int(match[2]) >= 2**16:
        raise ValueError(f"address={address!r}: give tcp://HOST:PORT, with the host as others reach it")
    return match[1], int(match[2])


def as_sample(parts: Sequence[Any]) -> Sample:
    """Return x and y as arrays or tensors."""
    return tuple(part if isinstance(part, np.ndarray | torch.Tensor) else torch.as_tensor(part) for part in parts)
