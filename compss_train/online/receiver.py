"""The worker's side of streams: receives samples and puts them into the buffer."""

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
from compss_train.net.messages import MessageError
from compss_train.online.authentication import ConnectionLostError
from compss_train.online.connection import Connection, Header, Listener, Message

Offsets = dict[int, int]
"""By stream number, one more than the number of the last sample received."""

_BURST_SAMPLES = 64
_BURST_BYTES = 2**20
"""Maximum number of samples that are put at once, and their approximate maximum size."""


class Receiver(Closable):
    """Listens for streams of samples and puts each sample into the buffer exactly once.

    While the buffer is full nothing is read, so that TCP blocks the senders. With ``checkpointing`` it records the
    order of puts for ``snapshot``. ``on_failure`` is called with errors that no sample has caused.
    """

    def __init__(
        self,
        buffer: Buffer,
        host: str,
        *,
        token: str,
        paired: bool,
        offsets: Offsets | None = None,
        checkpointing: bool = False,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        offsets = offsets or {}
        self._buffer, self._paired, self._on_failure = buffer, paired, on_failure
        self._checkpointing = checkpointing
        self._offsets: Offsets = dict(offsets)
        self._saved_offsets: Offsets = dict(offsets)
        self._unsaved_puts: deque[tuple[int, int]] = deque()  # streams and samples in the order of their puts
        self._saved_puts = buffer.samples_put
        self._put_lock = threading.Lock()
        self._count_lock = threading.Lock()
        self._open_streams = 0
        self._ending = False
        self._discarding = threading.Event()
        self._listener = Listener(host, 0, token=token, handler=self._serve, role="samples")

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._listener.address.port

    def start(self) -> None:
        """Start to receive."""
        self._listener.start()

    def _serve(self, connection: Connection, handshake: Header) -> None:
        try:
            self._receive(connection, int(handshake["stream"]))
        except OSError:
            raise
        except Exception as error:
            fatal = isinstance(error, BufferFullError | MemoryError) and not isinstance(error, ReceptionOverError)
            if fatal and self._on_failure is not None:
                self._on_failure(error)  # the next sample would fail in the same way
            connection.send({"error": f"{type(error).__name__}: {error}"})
            connection.drain()

    def _receive(self, connection: Connection, stream: int) -> None:
        with self._counted():
            connection.send({"next": self._offsets.get(stream, 0)})
            for burst in _bursts(connection):
                self._put(stream, burst)
            connection.send({"ended": True})
        while "end" in connection.receive()[0]:  # may be repeated until the sender disconnects
            connection.send({"ended": True})
        raise MessageError("a message after the end of a stream")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count an open stream."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def end_reception(self) -> None:
        """End reception when no stream is open: samples of dead senders may still be in transit."""
        with self._count_lock:
            self._ending = True
        self._count(0)

    def _count(self, change: int) -> None:
        with self._count_lock:
            self._open_streams += change
            if self._ending and not self._open_streams:
                self._buffer.signal_reception_over()

    # Puts

    def _put(self, stream: int, burst: list[Message]) -> None:
        """Put a burst, except for samples received before from an attempt that was thought dead."""
        with self._put_lock:
            offset = self._offsets.get(stream, 0)
            new = [message for message in burst if int(message[0]["sample"]) >= offset]
            if self._discarding.is_set() or not new:
                return
            numbers = [int(header["sample"]) for header, _ in new]
            samples = self._stack(stream, new)
            self._record_puts(stream, numbers)
            put = len(new)
            try:
                self._buffer.put_many(samples)
            except BaseException as error:
                put = getattr(error, "stored", 0)
                if not (self._discarding.is_set() and isinstance(error, ReceptionOverError)):
                    raise
            finally:
                self._remove_puts(len(new) - put)
                if put:
                    self._offsets[stream] = numbers[put - 1] + 1

    def _stack(self, stream: int, messages: list[Message]) -> Any:
        """Return samples in the form that the buffer's ``put_many`` takes."""
        columns = tuple(torch.stack(column) for column in zip(*(arrays for _, arrays in messages), strict=True))
        if not self._paired:
            return columns
        steps = np.array([int(header["step"]) for header, _ in messages])
        return TimeStep(np.full(len(messages), stream), steps, columns)

    def _record_puts(self, stream: int, numbers: list[int]) -> None:
        """Record the order of puts, for ``snapshot``, before they happen."""
        if self._checkpointing:
            self._unsaved_puts.extend((stream, number) for number in numbers)

    def _remove_puts(self, number: int) -> None:
        if self._checkpointing:
            for _ in range(number):
                self._unsaved_puts.pop()

    def snapshot(self) -> tuple[dict[str, Any], Offsets]:
        """Return the buffer's state and the offsets that belong to it, consistent with each other."""
        state = self._buffer.state_dict()
        puts = state["usage"]["put"]
        for _ in range(puts - self._saved_puts):
            stream, number = self._unsaved_puts.popleft()
            self._saved_offsets[stream] = number + 1
        self._saved_puts = puts
        return state, dict(self._saved_offsets)

    def forget(self, streams: Iterable[int]) -> None:
        """Drop the offsets of completed streams; takes no lock, as a put may hold it for long."""
        for stream in streams:
            self._offsets.pop(stream, None)
            self._saved_offsets.pop(stream, None)

    def discard(self) -> None:
        """Discard samples from now on: training has ended."""
        self._discarding.set()
        self._buffer.signal_reception_over()

    def close(self) -> None:
        """Stop receiving."""
        self.discard()  # unblocks a pending put
        self._listener.close()


def _bursts(connection: Connection) -> Iterator[list[Message]]:
    """Group the samples that have arrived and have the same layout, until the end of the stream."""
    burst: list[Message] = []
    while (message := _next_message(connection, burst)) is not None and "end" not in message[0]:
        if burst and _layout(burst[0]) != _layout(message):
            yield burst  # the buffer will reject the other one
            burst = []
        burst.append(message)
        is_full = len(burst) * _size(message) >= _BURST_BYTES or len(burst) == _BURST_SAMPLES
        if is_full or not connection.has_message():
            yield burst
            burst = []
    if burst:
        yield burst
    if message is None:
        raise ConnectionLostError("the sender disconnected before the end of its stream")


def _next_message(connection: Connection, burst: list[Message]) -> Message | None:
    """Return the next message; ``None`` if the sender disconnected but its last burst is still to be put."""
    try:
        return connection.receive()
    except ConnectionLostError:
        if not burst:
            raise
        return None


def _size(message: Message) -> int:
    return sum(array.nbytes for array in message[1])


def _layout(message: Message) -> list[tuple[torch.dtype, torch.Size]]:
    return [(array.dtype, array.shape) for array in message[1]]
