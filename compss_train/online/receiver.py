"""The worker's side of streams: puts what comes into the buffer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from compss_train._utils.closing import Closable
from compss_train.buffers import Buffer, BufferFullError, ReceptionOverError
from compss_train.buffers.paired import TimeStep
from compss_train.online.connection import Connection, ConnectionLostError, Header, Listener, Message
from compss_train.parameter_server.messages import WireError

Received = dict[int, int]
"""By the number of a stream, one more than the last sample that was received of it."""


_BURST = 64
_BURST_BYTES = 2**20
"""The most samples that are put together, and about the most bytes."""


class Receiver(Closable):
    """Listens for streams of samples and puts each sample into the buffer, once.

    While the buffer is full nothing more is read, so that TCP lets the senders wait.
    """

    def __init__(
        self,
        buffer: Buffer,
        host: str,
        token: str,
        *,
        paired: bool,
        received: Received | None = None,
        saving: bool = False,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        received = received or {}
        self._buffer, self._paired, self._saving, self._failed = buffer, paired, saving, failed
        self._next: Received = dict(received)
        self._saved: Received = dict(received)
        self._since_saved: deque[tuple[int, int]] = deque()  # streams and samples in the order of their puts
        self._saved_puts = buffer.samples_put
        self._putting = threading.Lock()
        self._counting = threading.Lock()
        self._streams = 0
        self._over = False
        self._discarding = threading.Event()
        self._listener = Listener(host, 0, token, self._serve, "samples")

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._listener.address.port

    def start(self) -> None:
        """Begin to receive."""
        self._listener.start()

    def _serve(self, connection: Connection, hello: Header) -> None:
        try:
            self._receive(connection, int(hello["stream"]))
        except OSError:
            raise
        except Exception as error:
            stuck = isinstance(error, BufferFullError | MemoryError) and not isinstance(error, ReceptionOverError)
            if stuck and self._failed is not None:
                self._failed(error)  # no sample's fault, so that the next one would fare no better
            connection.send({"error": f"{type(error).__name__}: {error}"})
            connection.drain()

    def _receive(self, connection: Connection, stream: int) -> None:
        with self._outstanding():
            connection.send({"next": self._next.get(stream, 0)})
            for burst in _bursts(connection):
                self._put(stream, burst)
            connection.send({"ended": True})
        while "end" in connection.receive()[0]:  # it may say so more than once, until it leaves
            connection.send({"ended": True})
        raise WireError("something else has come after the end of a stream")

    @contextmanager
    def _outstanding(self) -> Iterator[None]:
        """Count a stream whose end is still to come."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def over(self) -> None:
        """End reception once no stream is outstanding: what dead ones had sent may still be on its way."""
        with self._counting:
            self._over = True
        self._count(0)

    def _count(self, change: int) -> None:
        with self._counting:
            self._streams += change
            if self._over and not self._streams:
                self._buffer.signal_reception_over()

    def _put(self, stream: int, burst: list[Message]) -> None:
        """Put what has come together, but for what has come before, from a run that was thought dead."""
        with self._putting:
            upto = self._next.get(stream, 0)
            new = [message for message in burst if int(message[0]["sample"]) >= upto]
            if self._discarding.is_set() or not new:
                return
            numbers = [int(header["sample"]) for header, _ in new]
            samples = self._stacked(stream, new)
            self._note(stream, numbers)
            put = len(new)
            try:
                self._buffer.put_many(samples)
            except BaseException as error:
                put = getattr(error, "stored", 0)
                if not (self._discarding.is_set() and isinstance(error, ReceptionOverError)):
                    raise
            finally:
                self._unnote(len(new) - put)
                if put:
                    self._next[stream] = numbers[put - 1] + 1

    def _note(self, stream: int, numbers: list[int]) -> None:
        """Note in which order samples are put, for ``snapshot``; before they are."""
        if self._saving:
            self._since_saved.extend((stream, number) for number in numbers)

    def _unnote(self, number: int) -> None:
        if self._saving:
            for _ in range(number):
                self._since_saved.pop()

    def _stacked(self, stream: int, messages: list[Message]) -> Any:
        """Return samples in the form in which the buffer takes many."""
        columns = tuple(torch.stack(column) for column in zip(*(arrays for _, arrays in messages), strict=True))
        if not self._paired:
            return columns
        steps = np.array([int(header["step"]) for header, _ in messages])
        return TimeStep(np.full(len(messages), stream), steps, columns)

    def snapshot(self) -> tuple[dict[str, Any], Received]:
        """Return the buffer's state, and what had been received for it to be that: both of the same moment."""
        state = self._buffer.state_dict()
        puts = state["usage"]["put"]
        for _ in range(puts - self._saved_puts):
            stream, number = self._since_saved.popleft()
            self._saved[stream] = number + 1
        self._saved_puts = puts
        return state, dict(self._saved)

    def forget(self, streams: Iterable[int]) -> None:
        """Forget streams of which nothing will come any more; waits for no lock, as a put may have it for long."""
        for stream in streams:
            self._next.pop(stream, None)
            self._saved.pop(stream, None)

    def discard(self) -> None:
        """Take what still comes, and forget it: no more is trained on."""
        self._discarding.set()
        self._buffer.signal_reception_over()

    def close(self) -> None:
        """Receive nothing more."""
        self.discard()  # a put that waits ends
        self._listener.close()


def _bursts(connection: Connection) -> Iterator[list[Message]]:
    """Iterate over what has come, as many samples of one kind as are there each time, until the stream's end."""
    burst: list[Message] = []
    while (message := _next_message(connection, burst)) is not None and "end" not in message[0]:
        if burst and _kinds(burst[0]) != _kinds(message):
            yield burst  # the buffer will refuse the other one
            burst = []
        burst.append(message)
        if len(burst) * _size(message) >= _BURST_BYTES or len(burst) == _BURST or not connection.has_message():
            yield burst
            burst = []
    if burst:
        yield burst
    if message is None:
        raise ConnectionLostError("the sender has left before the end of its stream")


def _next_message(connection: Connection, burst: list[Message]) -> Message | None:
    """Return the next message; ``None`` where the sender has left, but what it sent before is still to be put."""
    try:
        return connection.receive()
    except ConnectionLostError:
        if not burst:
            raise
        return None


def _size(message: Message) -> int:
    return sum(array.nbytes for array in message[1])


def _kinds(message: Message) -> list[tuple[torch.dtype, torch.Size]]:
    return [(array.dtype, array.shape) for array in message[1]]
