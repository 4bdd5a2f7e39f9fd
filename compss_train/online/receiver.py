"""The worker's side of streams: receives samples and puts them into the buffer."""

import itertools
import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compss_train._utils import Closable
from compss_train.buffers import Buffer, BufferFullError, ReceptionOverError, TimeStep
from compss_train.buffers.samples import DifferentSampleError
from compss_train.net import (
    Client,
    Header,
    Message,
    MessageError,
    MessageServer,
    ReceivedArray,
    shortened,
    stacked,
)
from compss_train.online.source_messages import number_in

_LOG = logging.getLogger(__name__)
NUMBERS = "simulation and step"
"""The key of the samples' numbers, int64 of shape (n, 2), in a buffer that does not pair; of data
they are x, y.
"""
_TICK = 0.05
"""Seconds after which a wait for messages, or for room in the buffer, is interrupted by the other
one.
"""
_MESSAGES = 256
"""Maximum number of messages received before samples are put."""
_BURST_SAMPLES = 64
_BURST_BYTES = 2**20
"""Maximum number of samples that are put at once, and their approximate maximum size."""
_MAX_AHEAD = 256
_BYTES_AHEAD = 2**22
"""How many samples of a sender may be on their way or wait here, and their approximate size; at
least two.
"""


@dataclass(eq=False)
class _Sender:
    """A connection of a stream, its samples that wait, and how many more it may send."""

    stream: int
    waiting: deque[Message] = field(default_factory=deque)
    credit: int = 0
    ended: bool = False
    """Whether the stream's last sample is in the buffer."""
    refused: bool = False
    """Whether one of its samples does not fit: others may be on their way, which do not count."""
    gone: bool = False
    """Whether it has disconnected."""


class Receiver(Closable):
    """Listens for streams of samples and puts each sample into the buffer exactly once.

    A sender may only send as many samples as it has credit for, and gets more when its samples are
    in the buffer: it waits while the buffer is full. ``offsets`` holds by stream number one more
    than the number of the last sample that the buffer has received. ``address`` is as for
    ``serve``.
    """

    def __init__(
        self,
        buffer: Buffer,
        address: str | None,
        *,
        token: str,
        paired: bool,
        offsets: Mapping[int, int] | None = None,
    ) -> None:
        self._buffer = buffer
        self._paired = paired
        self._offsets = dict(offsets or {})
        self.failed: Exception | None = None
        """An error that no sample has caused, such as one that has ended the thread."""
        self.not_finite: tuple[int, int, str] | None = None
        """Simulation and step of the first sample that has NaN or infinite values, and ``"x"`` or
        ``"y"``.
        """
        self.holds_ends = False
        """Whether ends of streams wait for their answers: a save is being made that may lack their
        last samples.

        Set before ``snapshot`` until all workers go on, it makes complete streams complete in the
        save, too.
        """
        self._putting = threading.Lock()
        self._turn = threading.Lock()
        self._senders: dict[Client, _Sender] = {}
        self._ahead = 1  # until the size of a sample is known
        self._ending = threading.Event()
        self._discarding = threading.Event()
        self._closed = threading.Event()
        self._server = MessageServer(address, token)
        self.url = self._server.address.url
        """Where it listens."""
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._server:
            try:
                while not self._closed.is_set():
                    self._receive_and_put()
            except BaseException as error:  # senders notice when their connections are closed
                _LOG.critical(
                    "the thread that receives samples at %s has died", self.url, exc_info=error
                )
                self.failed = RuntimeError(
                    f"the thread that receives samples has died: {type(error).__name__}: {error}"
                )
                self.failed.__cause__ = error

    def _receive_and_put(self) -> None:
        is_idle = not any(map(self._has_turn, self._senders.values()))
        for number in range(_MESSAGES):
            received = self._server.receive(_TICK if is_idle and not number else 0.0)
            if received is None:
                break
            self._handle(*received)
        self._put_waiting()
        if self._ending.is_set() and all(sender.ended for sender in self._senders.values()):
            self._ending.clear()
            self._buffer.signal_reception_over()

    def _handle(self, client: Client, header: Header | None, arrays: list[ReceivedArray]) -> None:
        sender = self._senders.get(client)
        if header is None:
            if sender is not None:
                sender.gone = True
            return
        try:
            self._receive(client, sender, header, arrays)
        except Exception as error:
            self._reject(client, error)

    def _receive(
        self, client: Client, sender: _Sender | None, header: Header, arrays: list[ReceivedArray]
    ) -> None:
        if sender is None:
            sender = self._senders[client] = _Sender(number_in(header, "stream"))
            client.send(
                {"next": self._offsets.get(sender.stream, 0), "credit": self._grant(sender)}
            )
        elif sender.refused:
            return
        elif sender.waiting and "end" in sender.waiting[-1][0]:
            raise MessageError("a message after the end of the stream, which was not answered yet")
        elif "end" in header:  # may be repeated
            sender.waiting.append((header, []))
        elif sender.ended or not sender.credit:
            raise MessageError("a sample after the end of the stream, or without credit")
        else:
            if len(arrays) not in (1, 2):
                raise MessageError(f"a sample of {len(arrays)} arrays; send x, or x and y")
            header["sample"] = number_in(header, "sample")
            has_step = self._paired or "step" in header
            header["step"] = number_in(header, "step") if has_step else header["sample"]
            sender.credit -= 1
            sender.waiting.append((header, arrays))
            self._ahead = max(2, min(_MAX_AHEAD, _BYTES_AHEAD // max(1, _size(arrays))))

    def _grant(self, sender: _Sender) -> int:
        """Give a sender credit for as many samples as may be ahead; return how many more these
        are.
        """
        more = max(0, self._ahead - sender.credit - len(sender.waiting))
        sender.credit += more
        return more

    def _reject(self, client: Client, error: Exception) -> None:
        """Send an error to a sender, disconnect it, and forget it."""
        client.refuse(error)
        self._senders.pop(client, None)

    def end_reception(self) -> None:
        """End reception when no stream is open: samples of dead senders may still be in transit."""
        self._ending.set()

    # Puts

    def _has_turn(self, sender: _Sender) -> bool:
        return bool(sender.waiting) and not (self.holds_ends and "end" in sender.waiting[0][0])

    def _put_waiting(self) -> None:
        """Put a burst of each sender while there is room; a sender that had its turn moves to the
        end.
        """
        for client, sender in list(self._senders.items()):
            if not self._has_turn(sender):
                if sender.gone and not sender.waiting:
                    del self._senders[client]
            elif self._put_burst(client, sender):
                self._senders[client] = self._senders.pop(client)
            elif client in self._senders and not sender.refused:
                return

    def _put_burst(self, client: Client, sender: _Sender) -> bool:
        """Put the next samples of a sender; return whether there was room for any, or its stream
        has ended.
        """
        if "end" in sender.waiting[0][0]:
            sender.waiting.popleft()
            sender.ended = True
            client.send({"ended": True})
            return True
        try:
            put = self._put(sender.stream, _next_burst(sender.waiting))
        except Exception as error:
            fatal = isinstance(error, BufferFullError | MemoryError) and not isinstance(
                error, ReceptionOverError
            )
            if fatal:
                self.failed = error  # the next sample would fail in the same way
                self._reject(client, error)
            else:
                client.send(
                    {"error": shortened(str(error)), "sample": sender.waiting[0][0]["sample"]}
                )
                sender.ended = sender.refused = True
                sender.waiting.clear()
            return False
        for _ in range(put):
            sender.waiting.popleft()
        if more := self._grant(sender):
            client.send({"credit": more})
        return put > 0

    def _put(self, stream: int, burst: list[Message]) -> int:
        """Put samples, except those that an earlier connection has delivered; return how many are
        done with.
        """
        offset = self._offsets.get(stream, 0)
        new = [message for message in burst if message[0]["sample"] >= offset]
        if self._discarding.is_set() or not new:
            return len(burst)
        samples = self._stack(stream, new)
        put = len(new)
        with self._turn:  # a snapshot that waits comes first
            pass
        with self._putting:
            try:
                self._buffer.put_many(samples, timeout=_TICK)
            except BaseException as error:
                put = getattr(error, "stored", 0)
                if isinstance(error, DifferentSampleError):
                    raise MessageError(
                        f"sample {new[0][0]['sample']} has {_described(error.leaves)}, where "
                        f"samples before it have {_described(error.expected)}; all samples of a "
                        "study need one shape and dtype"
                    ) from None
                if isinstance(error, ReceptionOverError):
                    if not self._discarding.is_set():
                        raise
                elif not isinstance(error, BufferFullError) or error.final:
                    raise
            finally:
                if put:
                    self._offsets[stream] = new[put - 1][0]["sample"] + 1
        return len(burst) - len(new) + put

    def _stack(self, stream: int, messages: list[Message]) -> Any:
        """Return samples in the form that the buffer's ``put_many`` takes."""
        columns = tuple(
            stacked(column) for column in zip(*(arrays for _, arrays in messages), strict=True)
        )
        steps = np.array([header["step"] for header, _ in messages], np.int64)
        simulations = np.full_like(steps, stream)
        for name, column in zip("xy", columns, strict=False) if self.not_finite is None else ():
            # Not an error: it may stand for what is missing. The sum of finite values may be
            # infinite.
            if column.is_floating_point() and not column.sum().isfinite():
                finite = column.isfinite().reshape(len(column), -1).all(1).tolist()
                if False in finite:
                    self.not_finite = stream, int(steps[finite.index(False)]), name
        if self._paired:
            return TimeStep(simulations, steps, columns)
        return {
            NUMBERS: np.stack([simulations, steps], 1),
            **dict(zip("xy", columns, strict=False)),
        }

    def snapshot(self) -> tuple[dict[str, Any], dict[int, int]]:
        """Return the buffer's state and the offsets that belong to it, consistent with each
        other.
        """
        with self._turn, self._putting:
            return self._buffer.state_dict(), dict(self._offsets)

    def forget(self, streams: Iterable[int]) -> None:
        """Drop the offsets of completed streams."""
        for stream in streams:
            self._offsets.pop(stream, None)

    def discard(self) -> None:
        """Discard samples from now on: training has ended."""
        self._discarding.set()
        self._buffer.signal_reception_over()

    def close(self) -> None:
        """Stop receiving."""
        self.discard()  # unblocks a pending put
        self._closed.set()
        self._thread.join()


def _next_burst(waiting: Iterable[Message]) -> list[Message]:
    """Return the first samples that have the same layout; the buffer will reject others."""
    burst: list[Message] = []
    for message in itertools.islice(waiting, _BURST_SAMPLES):
        layout = [array.layout for array in message[1]]
        if not burst:
            first = layout
            room = _BURST_BYTES
        room -= _size(message[1])
        if "end" in message[0] or layout != first or (burst and room < 0):
            break
        burst.append(message)
    return burst


def _described(sample: Any) -> str:
    """Return the shapes of x and y, of the leaves that a buffer knows a sample by."""
    parts = sample.items() if isinstance(sample, dict) else zip("xy", sample, strict=False)
    return ", ".join(
        f"{name}: {str(leaf).partition(' of ')[2]}" for name, leaf in parts if name in "xy"
    )


def _size(arrays: list[ReceivedArray]) -> int:
    return sum([array.size for array in arrays])
