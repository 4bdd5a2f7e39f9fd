"""The worker's side of streams: receives samples and puts them into the buffer."""

import hmac
import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from compss_train._utils import Closable
from compss_train.buffers import Buffer, BufferFullError, ReceptionOverError
from compss_train.net import (
    Client,
    Header,
    MessageError,
    MessageServer,
    ReceivedArray,
    shortened,
    sockets,
)
from compss_train.online.arrived_samples import ArrivedSamples, count_in, first_burst
from compss_train.online.intake import Intake
from compss_train.online.received_stream import ReceivedStream
from compss_train.online.route import samples_ahead
from compss_train.online.routing import Routing, StreamKeys
from compss_train.online.source_messages import number_in

_LOG = logging.getLogger(__name__)
_TICK = 0.05
"""Seconds after which a wait for messages, or for room in the buffer, gives way to the other."""
_MESSAGES = 256
"""Maximum number of messages received before samples are put."""


class Receiver(Closable):
    """Listens for streams of samples and puts each sample into the buffer exactly once.

    A sender may only send as many samples as it has credit for, and gets more when its samples are
    in the buffer: it waits while the buffer is full. ``offsets`` holds by stream number one more
    than the number of the last sample that the buffer has received. A stream must have its key.
    ``address`` is as for ``serve``.
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
        self._intake = Intake(buffer, offsets or {}, is_paired=routing.whole)
        self._keys = keys
        self._worker = worker
        self._routing = routing
        self.failed: Exception | None = None
        """An error that no sample has caused, such as one that has ended the thread."""
        self.holds_ends = False
        """Whether ends of streams wait for their answers, as a save may lack their last samples.

        Set before ``snapshot`` until all workers go on, it makes complete streams complete in the
        save, too.
        """
        self._streams: dict[Client, ReceivedStream] = {}
        self._ahead = 1  # until the size of a sample is known
        """How many samples of a sender may be on their way or wait here."""
        self._ending = threading.Event()
        """Set when reception is to end with the streams that are open."""
        self._closed = threading.Event()
        self._server = MessageServer(address, keys.token)
        self.url = self._server.address.url
        """Where it listens."""
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)
        self._thread.start()

    @property
    def not_finite(self) -> tuple[int, int, str] | None:
        """Simulation and step of the first sample that is not finite, and ``"x"`` or ``"y"``."""
        return self._intake.not_finite

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
        is_idle = not any(map(self._has_turn, self._streams.values()))
        for count in range(_MESSAGES):
            received = self._server.receive(_TICK if is_idle and not count else 0.0)
            if received is None:
                break
            self._handle(*received)
        self._put_waiting()
        if self._ending.is_set() and all(stream.ended for stream in self._streams.values()):
            self._ending.clear()
            self._intake.end()

    # Messages

    def _handle(self, client: Client, header: Header | None, arrays: list[ReceivedArray]) -> None:
        stream = self._streams.get(client)
        if header is None:
            if stream is not None:
                stream.gone = True
            return
        try:
            if stream is None:
                self._greet(client, header)
            else:
                self._receive(client, stream, header, arrays=arrays)
        except Exception as error:
            self._reject(client, error)

    def _greet(self, client: Client, greeting: Header) -> None:
        number = number_in(greeting, "stream")
        key = str(greeting.get("stream_key")).encode(errors="replace")
        if not hmac.compare_digest(key, self._keys.of(number).encode()):
            raise PermissionError(
                f"stream {number} needs the stream_key that the coordinator gave with its number"
            )
        stream = ReceivedStream(number, self._intake.offset(number))
        self._streams[client] = stream
        client.send({"next": stream.next, "credit": stream.grant(self._ahead)})

    def _receive(
        self, client: Client, stream: ReceivedStream, header: Header, *, arrays: list[ReceivedArray]
    ) -> None:
        if stream.refused:
            return
        if stream.ends:
            raise MessageError("a message after the end of the stream, which was not answered yet")
        if "end" in header:  # may be repeated
            stream.ends = True
            return
        if "lost" in header:
            end = number_in(header, "lost")
            stream.give_up(end)
            self._intake.give_up(stream.stream, end)
            return
        if "memory" in header:
            if not self.url.startswith(sockets.PRIVATE):
                raise MessageError('"memory" over TCP; only programs at a socket file share memory')
            stream.map_memory(header["memory"])
            return
        count = count_in(header)
        if stream.ended or stream.credit < count:
            raise MessageError("a sample after the end of the stream, or without credit")
        is_shared = "shared" in header
        if is_shared:
            arrays = stream.shared_arrays(header["shared"])
        samples = ArrivedSamples.of(header, arrays, self._routing, is_shared=is_shared)
        self._check_follows(stream, samples.numbers[0])
        self._ahead = samples_ahead(samples.size // count)
        if not stream.take(samples):
            self._send_credit(client, stream)

    def _check_follows(self, stream: ReceivedStream, sample: int) -> None:
        """Raise ``MessageError`` for a sample of another worker, and for one after a gap."""
        number = stream.stream
        receiving_worker = self._routing.worker_of(number, sample)
        if receiving_worker != self._worker:
            raise MessageError(
                f"sample {sample} of stream {number} is for worker {receiving_worker} of "
                f"{self._routing.workers}; this is worker {self._worker}"
            )
        expected = self._routing.next_sample(self._worker, number, stream.next)
        if expected is None or sample > expected:
            raise MessageError(
                f"a gap in stream {number}: sample {sample} came where sample {expected} was "
                f'expected; send all samples in order, or first {{"lost": {sample}}} if those '
                "between are lost"
            )

    def _send_credit(self, client: Client, stream: ReceivedStream) -> None:
        """Tell a sender how many more samples it may send, and what it may write over."""
        credit = stream.grant(self._ahead)
        if credit:
            client.send({"credit": credit, **stream.released})

    def _reject(self, client: Client, error: Exception) -> None:
        """Send an error to a sender, disconnect it, and forget it."""
        client.refuse(error)
        self._streams.pop(client, None)

    # Puts

    def _has_turn(self, stream: ReceivedStream) -> bool:
        return bool(stream.messages) or (stream.ends and not self.holds_ends)

    def _put_waiting(self) -> None:
        """Put a burst of each sender while there is room; who had its turn moves to the end."""
        for client, stream in list(self._streams.items()):
            if not self._has_turn(stream):
                if stream.gone and not stream.waiting:
                    del self._streams[client]
            elif self._put_burst(client, stream):
                self._streams[client] = self._streams.pop(client)
            elif client in self._streams and not stream.refused:
                return

    def _put_burst(self, client: Client, stream: ReceivedStream) -> bool:
        """Put the next samples of a sender, or else end its stream.

        Return False if there was no room for any.
        """
        if not stream.messages:
            stream.ends = False
            stream.ended = True
            client.send({"ended": True})
            return True
        try:
            samples = self._intake.put(stream.stream, first_burst(stream.messages), _TICK)
        except Exception as error:
            self._put_failed(client, stream, error)
            return False
        stream.drop(samples)
        self._send_credit(client, stream)
        return samples > 0

    def _put_failed(self, client: Client, stream: ReceivedStream, error: Exception) -> None:
        """Refuse the samples of a sender: they do not fit, or none can be put any more."""
        is_full = isinstance(error, BufferFullError | MemoryError)
        if is_full and not isinstance(error, ReceptionOverError):
            self.failed = error  # the next sample would fail in the same way
            self._reject(client, error)
            return
        client.send({"error": shortened(str(error)), "sample": stream.messages[0].numbers[0]})
        stream.refuse()

    # What the worker asks for

    def snapshot(self) -> tuple[dict[str, Any], dict[int, int]]:
        """Return the buffer's state, and the offsets that belong to it."""
        return self._intake.snapshot()

    def forget(self, streams: Iterable[int]) -> None:
        """Drop the offsets of completed streams."""
        self._intake.forget(streams)

    def end_reception(self) -> None:
        """End reception when no stream is open: samples of dead senders may still be in transit."""
        self._ending.set()

    def discard(self) -> None:
        """Discard samples from now on: training has ended."""
        self._intake.discard()

    def close(self) -> None:
        """Stop receiving."""
        self.discard()  # unblocks a pending put
        self._closed.set()
        self._thread.join()
