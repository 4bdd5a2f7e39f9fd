"""The worker's side of streams: receives samples and puts them into the buffer."""

import hmac
import logging
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from compss_train._utils import Closable
from compss_train.buffers import Buffer, BufferFullError, ReceptionOverError, TimeStep
from compss_train.buffers.samples import DifferentSampleError
from compss_train.net import (
    Client,
    Header,
    MessageError,
    MessageServer,
    ReceivedArray,
    arrays_in,
    joined,
    map_memory,
    parsing,
    shortened,
    sockets,
)
from compss_train.online.route import samples_ahead
from compss_train.online.routing import Routing, StreamKeys
from compss_train.online.source_messages import number_in, numbers_in

_LOG = logging.getLogger(__name__)
NUMBERS = "simulation and step"
"""The key of the samples' numbers, int64 of shape (n, 2), in a buffer that does not pair.

The keys of their data are x and y.
"""
_TICK = 0.05
"""Seconds after which a wait for messages, or for room in the buffer, gives way to the other."""
_MESSAGES = 256
"""Maximum number of messages received before samples are put."""
_BURST_SAMPLES = 64
"""Number of samples up to which those of several messages are put at once."""
_BURST_BYTES = 2**19
"""Size of these up to which they are."""


@dataclass(slots=True, eq=False)
class _Samples:
    """Samples that have arrived in one message."""

    numbers: range
    """Their numbers in the stream."""
    steps: Sequence[int]
    arrays: list[ReceivedArray]
    """x, and y if there is one, with a first dimension of these samples."""
    is_alone: bool = False
    """Whether it is one sample, which came in a message for one."""
    is_shared: bool = False
    """Whether they lie in memory that their sender uses again."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum([array.size for array in self.arrays])

    @property
    def is_handed_over(self) -> bool:
        """Whether the buffer may keep their memory: nothing else shares it."""
        return self.is_alone and not self.is_shared

    def after(self, count: int) -> "_Samples":
        """Return these without the first ``count`` samples."""
        arrays = [array.rows_from(count) for array in self.arrays]
        return _Samples(self.numbers[count:], self.steps[count:], arrays, is_shared=self.is_shared)


@dataclass(eq=False)
class _Sender:
    """A connection of a stream, its samples that wait, and how many more it may send."""

    stream: int
    next: int
    """The stream's samples below it were here before, or have come over this connection."""
    messages: deque[_Samples] = field(default_factory=deque)
    """Those that wait to be put into the buffer, in the order of their numbers."""
    samples: int = 0
    """How many samples these have."""
    ends: bool = False
    """Whether the end of the stream has arrived, and waits for its answer."""
    credit: int = 0
    """How many more samples it may send."""
    ended: bool = False
    """Whether the stream's last sample is in the buffer."""
    refused: bool = False
    """Whether one of its samples does not fit: others may be on their way, which do not count."""
    gone: bool = False
    """Whether it has disconnected."""
    memory: memoryview | None = None
    """Memory that it shares with this worker."""
    shared: int = 0
    """How many of its messages have come in this memory."""

    @property
    def waiting(self) -> int:
        """How much of it waits: samples, and the end."""
        return self.samples + self.ends

    @property
    def released(self) -> int:
        """How many of its messages in shared memory are not needed any more."""
        return self.shared - sum([samples.is_shared for samples in self.messages])

    def drop(self, count: int) -> None:
        """Forget the first ``count`` samples that wait: they are in the buffer."""
        self.samples -= count
        while count:
            first = self.messages.popleft()
            if count < len(first):
                self.messages.appendleft(first.after(count))
            count -= min(count, len(first))


class Receiver(Closable):
    """Listens for streams of samples and puts each sample into the buffer exactly once.

    A sender may only send as many samples as it has credit for, and gets more when its samples are
    in the buffer: it waits while the buffer is full. ``offsets`` holds by stream number one more
    than the number of the last sample that the buffer has received: they advance by samples that
    come, one after another, and by those that the stream gives up as lost. A stream must have its
    key. ``address`` is as for ``serve``.
    """

    def __init__(
        self,
        buffer: Buffer,
        address: str | None,
        *,
        keys: StreamKeys,
        worker: int,
        routing: Routing,
        offsets: Mapping[int, int] | None = None,
    ) -> None:
        self._buffer = buffer
        self._keys = keys
        self._worker = worker
        self._routing = routing
        self._offsets = dict(offsets or {})
        self.failed: Exception | None = None
        """An error that no sample has caused, such as one that has ended the thread."""
        self.not_finite: tuple[int, int, str] | None = None
        """Simulation and step of the first sample that is not finite, and ``"x"`` or ``"y"``."""
        self.holds_ends = False
        """Whether ends of streams wait for their answers, as a save may lack their last samples.

        Set before ``snapshot`` until all workers go on, it makes complete streams complete in the
        save, too.
        """
        self._putting = threading.Lock()
        """Held while the buffer and the offsets change together."""
        self._turn = threading.Lock()
        """Held by a snapshot that waits for ``_putting``, before which nothing else gets it."""
        self._senders: dict[Client, _Sender] = {}
        self._ahead = 1  # until the size of a sample is known
        """How many samples of a sender may be on their way or wait here."""
        self._ending = threading.Event()
        """Set when reception is to end with the streams that are open."""
        self._discarding = threading.Event()
        """Set when training has ended."""
        self._closed = threading.Event()
        self._server = MessageServer(address, keys.token)
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
        for count in range(_MESSAGES):
            received = self._server.receive(_TICK if is_idle and not count else 0.0)
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
            if sender is None:
                self._greet(client, header)
            else:
                self._receive(client, sender, header, arrays=arrays)
        except Exception as error:
            self._reject(client, error)

    def _greet(self, client: Client, greeting: Header) -> None:
        stream = number_in(greeting, "stream")
        key = str(greeting.get("stream_key")).encode(errors="replace")
        if not hmac.compare_digest(key, self._keys.of(stream).encode()):
            raise PermissionError(
                f"stream {stream} needs the stream_key that the coordinator gave with its number"
            )
        sender = _Sender(stream, self._offsets.get(stream, 0))
        self._senders[client] = sender
        client.send({"next": sender.next, "credit": self._grant(sender)})

    def _receive(
        self, client: Client, sender: _Sender, header: Header, *, arrays: list[ReceivedArray]
    ) -> None:
        if sender.refused:
            return
        if sender.ends:
            raise MessageError("a message after the end of the stream, which was not answered yet")
        if "end" in header:  # may be repeated
            sender.ends = True
            return
        if "lost" in header:
            self._give_up(sender, number_in(header, "lost"))
            return
        if "memory" in header:
            self._map_memory(sender, header["memory"])
            return
        count = number_in(header, "count") if "count" in header else 1
        if sender.ended or sender.credit < count:
            raise MessageError("a sample after the end of the stream, or without credit")
        is_shared = "shared" in header
        if is_shared:
            arrays = self._shared_arrays(sender, header["shared"])
        samples = self._samples(sender, header, arrays, count=count)
        samples.is_shared = is_shared
        self._ahead = samples_ahead(samples.size // max(1, count))
        sender.credit -= count
        known = bisect_left(samples.numbers, sender.next)
        if known == count:
            self._send_credit(client, sender)
            return
        sender.next = samples.numbers[-1] + 1
        sender.messages.append(samples.after(known) if known else samples)
        sender.samples += count - known

    def _samples(
        self, sender: _Sender, header: Header, arrays: list[ReceivedArray], *, count: int
    ) -> _Samples:
        """Return the samples of a message; raise ``MessageError`` if it is malformed."""
        if len(arrays) not in (1, 2):
            raise MessageError(f"a sample of {len(arrays)} arrays; send x, or x and y")
        number = number_in(header, "sample")
        self._check_follows(sender, number)
        numbers = self._routing.numbers(number, count)
        if "count" not in header:
            has_step = self._routing.whole or "step" in header
            step = number_in(header, "step") if has_step else number
            return _Samples(numbers, [step], [array.as_row() for array in arrays], is_alone=True)
        has_steps = self._routing.whole or "steps" in header
        steps = numbers_in(header, "steps") if has_steps else numbers
        lengths = [len(steps), *(array.shape[0] if array.shape else None for array in arrays)]
        if not count or any(length != count for length in lengths):
            raise MessageError(
                f'"count": {count}, but {len(steps)} steps, and arrays of shapes '
                f"{[array.shape for array in arrays]}: their first dimension is that of the samples"
            )
        return _Samples(numbers, steps, arrays)

    def _map_memory(self, sender: _Sender, offer: Any) -> None:
        """Map the memory that a sender offers, if it can be opened."""
        if not self.url.startswith(sockets.PRIVATE):
            raise MessageError('"memory" over TCP; only programs at a socket file share memory')
        if sender.memory is not None:
            raise MessageError('"memory" was offered before; offer it once')
        sender.memory = map_memory(offer)

    def _shared_arrays(self, sender: _Sender, shared: Any) -> list[ReceivedArray]:
        """Return the arrays of a message that lie in shared memory."""
        if sender.memory is None:
            raise MessageError('"shared" without memory that this worker has mapped')
        with parsing():
            start = shared["start"]
            descriptions = shared["arrays"]
        sender.shared += 1
        return arrays_in(sender.memory, start, descriptions)

    def _check_follows(self, sender: _Sender, number: int) -> None:
        """Raise ``MessageError`` for a sample of another worker, and for one after a gap."""
        stream = sender.stream
        receiving_worker = self._routing.worker_of(stream, number)
        if receiving_worker != self._worker:
            raise MessageError(
                f"sample {number} of stream {stream} is for worker {receiving_worker} of "
                f"{self._routing.workers}; this is worker {self._worker}"
            )
        expected = self._routing.next_sample(self._worker, stream, sender.next)
        if expected is None or number > expected:
            raise MessageError(
                f"a gap in stream {stream}: sample {number} came where sample {expected} was "
                f'expected; send all samples in order, or first {{"lost": {number}}} if those '
                "between are lost"
            )

    def _give_up(self, sender: _Sender, end: int) -> None:
        """Expect no samples of a stream below ``end`` any more, as they are lost."""
        if sender.messages:
            raise MessageError('"lost" after a sample; send it before the first one')
        sender.next = max(sender.next, end)
        with self._turn:
            pass
        with self._putting:
            self._offsets[sender.stream] = max(self._offsets.get(sender.stream, 0), end)

    def _grant(self, sender: _Sender) -> int:
        """Give a sender credit for as many samples as may be ahead; return how much that adds.

        Half of these at least, or nothing: each addition is a message.
        """
        added = self._ahead - sender.credit - sender.waiting
        if added < max(1, self._ahead // 2):
            return 0
        sender.credit += added
        return added

    def _send_credit(self, client: Client, sender: _Sender) -> None:
        """Tell a sender how many more samples it may send, and what it may write over."""
        answer = {"credit": self._grant(sender)}
        if sender.memory is not None:
            answer["released"] = sender.released
        if answer["credit"]:
            client.send(answer)

    def _reject(self, client: Client, error: Exception) -> None:
        """Send an error to a sender, disconnect it, and forget it."""
        client.refuse(error)
        self._senders.pop(client, None)

    def end_reception(self) -> None:
        """End reception when no stream is open: samples of dead senders may still be in transit."""
        self._ending.set()

    # Puts

    def _has_turn(self, sender: _Sender) -> bool:
        return bool(sender.messages) or (sender.ends and not self.holds_ends)

    def _put_waiting(self) -> None:
        """Put a burst of each sender while there is room; who had its turn moves to the end."""
        for client, sender in list(self._senders.items()):
            if not self._has_turn(sender):
                if sender.gone and not sender.waiting:
                    del self._senders[client]
            elif self._put_burst(client, sender):
                self._senders[client] = self._senders.pop(client)
            elif client in self._senders and not sender.refused:
                return

    def _put_burst(self, client: Client, sender: _Sender) -> bool:
        """Put the next samples of a sender, or else end its stream.

        Return False if there was no room for any.
        """
        if not sender.messages:
            sender.ends = False
            sender.ended = True
            client.send({"ended": True})
            return True
        try:
            samples = self._put(sender.stream, _next_burst(sender.messages))
        except Exception as error:
            self._put_failed(client, sender, error)
            return False
        sender.drop(samples)
        self._send_credit(client, sender)
        return samples > 0

    def _put_failed(self, client: Client, sender: _Sender, error: Exception) -> None:
        """Refuse the samples of a sender: they do not fit, or none can be put any more."""
        is_full = isinstance(error, BufferFullError | MemoryError)
        if is_full and not isinstance(error, ReceptionOverError):
            self.failed = error  # the next sample would fail in the same way
            self._reject(client, error)
            return
        client.send({"error": shortened(str(error)), "sample": sender.messages[0].numbers[0]})
        sender.ended = True
        sender.refused = True
        sender.messages.clear()
        sender.samples = 0
        sender.ends = False

    def _put(self, stream: int, burst: list[_Samples]) -> int:
        """Put samples, except those that another connection has delivered.

        Return how many are done with.
        """
        numbers = [number for samples in burst for number in samples.numbers]
        known = bisect_left(numbers, self._offsets.get(stream, 0))
        if self._discarding.is_set() or known == len(numbers):
            return len(numbers)
        stacked_samples = self._stack(stream, burst, known)
        is_handed_over = len(burst) == 1 and burst[0].is_handed_over
        stored = len(numbers) - known
        with self._turn:  # a snapshot that waits comes first
            pass
        with self._putting:
            try:
                self._buffer.put_many(stacked_samples, timeout=_TICK, copy=not is_handed_over)
            except BaseException as error:
                stored = getattr(error, "stored", 0)
                if isinstance(error, DifferentSampleError):
                    raise MessageError(
                        f"sample {numbers[known]} has {_described(error.leaves)}, where "
                        f"samples before it have {_described(error.expected)}; all samples of a "
                        "study need one shape and dtype"
                    ) from None
                if isinstance(error, ReceptionOverError):
                    if not self._discarding.is_set():
                        raise
                elif not isinstance(error, BufferFullError) or error.final:
                    raise
            finally:
                if stored:
                    self._offsets[stream] = numbers[known + stored - 1] + 1
        return known + stored

    def _stack(self, stream: int, burst: list[_Samples], known: int) -> Any:
        """Return samples after the first ``known`` ones in the form that ``put_many`` takes."""
        by_array = zip(*(samples.arrays for samples in burst), strict=True)
        columns = {
            name: joined(arrays)[known:] for name, arrays in zip("xy", by_array, strict=False)
        }
        steps = [step for samples in burst for step in samples.steps][known:]
        if self.not_finite is None:
            self._look_for_not_finite(stream, steps, columns)
        simulations_and_steps = np.empty((len(steps), 2), np.int64)
        simulations_and_steps[:, 0] = stream
        simulations_and_steps[:, 1] = steps
        if self._routing.whole:
            simulations, time_steps = simulations_and_steps.T
            return TimeStep(simulations, time_steps, tuple(columns.values()))
        return {NUMBERS: simulations_and_steps, **columns}

    def _look_for_not_finite(
        self, stream: int, steps: Sequence[int], columns: dict[str, torch.Tensor]
    ) -> None:
        """Note the first sample with NaN or infinite values.

        It is not an error: they may stand for what is missing.
        """
        places: list[tuple[int, str]] = []
        for name, column in columns.items():
            if not column.is_floating_point():
                continue
            # Torch would share this among threads, which then wait in a loop for more of it.
            is_known = column.dtype != torch.bfloat16  # to numpy
            is_finite = np.isfinite(column.numpy()) if is_known else column.isfinite()
            if not is_finite.all():
                by_sample = is_finite.reshape(len(column), -1).all(1).tolist()
                places.append((by_sample.index(False), name))
        if places:
            place, name = min(places)
            self.not_finite = (stream, steps[place], name)

    def snapshot(self) -> tuple[dict[str, Any], dict[int, int]]:
        """Return the buffer's state, and the offsets that belong to it."""
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


def _next_burst(waiting: Iterable[_Samples]) -> list[_Samples]:
    """Return the first messages whose samples have the same layout; the buffer refuses others."""
    burst: list[_Samples] = []
    number = 0
    size = 0
    for samples in waiting:
        layout = [array.row_layout for array in samples.arrays]
        number += len(samples)
        size += samples.size
        if not burst:
            first_layout = layout
        elif layout != first_layout or number > _BURST_SAMPLES or size > _BURST_BYTES:
            break
        burst.append(samples)
    return burst


def _described(sample: Any) -> str:
    """Return the shapes of x and y, of the leaves that a buffer knows a sample by."""
    leaves = sample.items() if isinstance(sample, dict) else zip("xy", sample, strict=False)
    return ", ".join(
        f"{name}: {str(leaf).partition(' of ')[2]}" for name, leaf in leaves if name in "xy"
    )
