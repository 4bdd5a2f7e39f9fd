"""A stream: the client that sends the samples of a simulation, or of a program, to the workers.

Samples go to the workers in turn (``Routing``). Those of arrays need no torch. Small ones that
follow each other within milliseconds travel together (``GatheredSamples``).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import zmq

from compss_train._utils import Closable, validation
from compss_train.data.values import check_parts, signed, tensor_of
from compss_train.engines.nodes import is_loopback
from compss_train.exceptions import TrainingEndedError
from compss_train.net import Address, ConnectionLostError, Header, sockets
from compss_train.online.deferred_call import DeferredCall
from compss_train.online.gathered_samples import GatheredSamples, PackedSample
from compss_train.online.route import Route
from compss_train.online.routing import Routing
from compss_train.online.source_messages import (
    Finished,
    Progress,
    SamplesLost,
    SenderMessage,
    SimulationMessage,
    header_of,
)

if TYPE_CHECKING:
    from compss_train.data.block import Block

Sample: TypeAlias = "tuple[Block, ...]"
"""x and y, or x alone."""

UNREACHABLE_SECONDS = 60.0
"""How long a stream tries to connect to a worker that is not known to have died.

A failed node is noticed late.
"""
_CONNECT_SECONDS = 5.0
"""How long an attempt to connect to a worker may take.

The end of training is noticed between two attempts.
"""
_PAUSE = 0.2
"""Seconds within which the end of training is noticed after a connection to a worker was lost."""
_TICK = 0.1
"""Seconds between checks for messages of the coordinator."""
_GATHERING_SECONDS = 0.005
"""How long a sample may wait for others with which it is sent, and how soon they must follow."""


def as_sample(parts: Sequence[Any]) -> Sample:
    """Return x and y as arrays or tensors.

    Raises ``TypeError`` or ``ValueError`` for what no tensor can hold.
    """
    check_parts("a part of a sample", parts)
    return tuple(signed(_array_or_tensor(part)) for part in parts)


def _array_or_tensor(part: Any) -> Block:
    """Return a part of a sample; only what is not of numpy needs torch, which makes a tensor."""
    if isinstance(part, np.ndarray | np.generic):
        return np.asanyarray(part)
    return tensor_of(part)


class NameInUseError(PermissionError):
    """Another client sends under this name, or its end was not noticed yet."""


class FitLostError(TrainingEndedError):
    """The coordinator has ended without a word: the fit has failed, or may be started again."""


class Stream(Closable):
    """Connects to the coordinator, and after its acceptance to the workers (``open``).

    Each worker answers with its offset, so that samples that an earlier attempt delivered are not
    sent again. A connection that breaks is made again, to the worker or its replacement; if that
    lacks samples of this stream, ``on_loss`` is called with a description. For one thread; others
    may call ``update`` and ``notify``.

    A thread sends what was gathered if no other sample follows soon.

    Raises ``PermissionError`` with the reason if the coordinator rejects the stream,
    ``TrainingEndedError`` after the end of training, ``FitLostError`` if that came without a word,
    ``ValueError`` for a sample that a worker has rejected, and ``ConnectionLostError`` for a worker
    that cannot be reached.
    """

    def __init__(self, address: Address, greeting: Header, on_loss: Callable[[str], None]) -> None:
        self._address = address
        self._on_loss = on_loss
        self._context = zmq.Context()
        self.sent = 0
        """Samples sent or gathered so far, including those that an earlier attempt delivered."""
        self.ended = threading.Event()
        """Set when training has ended."""
        self._is_lost = False
        """Whether the coordinator has ended without a word."""
        self._failed: Exception | None = None
        """Why no more samples can be sent."""
        self.rejected = ""
        """Why a worker has rejected a sample, if that was the sample's fault."""
        self._lock = threading.Lock()
        """For the connection to the coordinator."""
        self._updated = 0.0
        """When messages of the coordinator were last processed."""
        self._routes: dict[int, Route] = {}
        """By worker, the connection to it."""
        self._offsets: dict[int, int] = {}
        """By worker, its offset as of its last connection."""
        self._gathered: list[GatheredSamples] = []
        """By worker, the samples that are to be sent to it together."""
        self._last = -math.inf
        """When the last sample was sent or gathered."""
        self._sending = threading.RLock()
        """Held while samples are gathered or sent, and connections to workers are used."""
        self._gathered_sending = DeferredCall(
            self.send_gathered, _GATHERING_SECONDS, name="gathered samples"
        )
        try:
            self._control = address.connect(greeting, self._context)
            reply, _ = self._control.receive() or ({}, [])
            if "error" in reply:
                kind = NameInUseError if reply.get("busy") else PermissionError
                raise kind(f"{address.url}: {reply['error']}")
        except BaseException:
            self.close()
            raise
        self.accepted = bool(reply.get("accepted"))
        """Whether training still needs samples of this stream."""
        self.number: int = reply.get("stream", 0)
        self.paired: bool = reply.get("paired", False)
        """Whether the buffers pair time steps, so that the whole stream goes to one worker."""
        self._progress_seconds: float | None = reply.get("progress")
        """How often to say that it makes progress, if the coordinator wants to know."""
        self._progressed = time.monotonic()
        """When it has said so."""
        self._key = reply.get("key", "")
        self._greeting = {"stream": self.number, "stream_key": reply.get("stream_key", "")}
        """What it says to a worker first."""
        self.urls: list[str | None] = reply.get("workers", [])
        """Where the workers listen; ``None`` for those that have died."""
        self._routing = Routing(len(self.urls), whole=self.paired)
        self._gathered = [GatheredSamples(self._routing.stride) for _ in self.urls]

    # Connections

    def open(self) -> None:
        """Connect to the workers, when all of them have started."""
        for worker in range(len(self.urls)):
            self._open(worker)

    def _open(self, worker: int) -> None:
        """Connect to a worker, or to its replacement as soon as its address is known."""
        tried: str | None = None
        while True:
            url = self.urls[worker]
            if url is not None:
                if url != tried:
                    tried = url
                    deadline = time.monotonic() + UNREACHABLE_SECONDS
                try:
                    self._connect(worker, url)
                    return
                except OSError as error:
                    self._disconnect(worker)
                    if time.monotonic() > deadline:
                        self._failed = ConnectionLostError(
                            f"worker {worker} cannot be reached at {url}: {error}"
                        )
            self.update(_TICK)
            self._check()

    def _connect(self, worker: int, url: str) -> None:
        address = Address(self._reachable(url), self._key)
        connection = address.connect(self._greeting, self._context, _CONNECT_SECONDS)
        self._routes[worker] = Route(connection, url)
        self._offsets[worker] = self._receive(worker)["next"]

    def _reachable(self, url: str) -> str:
        """Return a worker's address as this node reaches it.

        A loopback address on the coordinator's node is replaced by that node's.
        """
        coordinator = urlsplit(self._address.url).hostname
        worker = urlsplit(url).hostname
        if not worker or not coordinator:
            return url
        if is_loopback(worker) and not is_loopback(coordinator):
            return url.replace(worker, coordinator, 1)
        return url

    def update(self, timeout: float = 0.0) -> None:
        """Process the coordinator's messages: where the workers listen, and the end of training."""
        with self._lock:
            self._updated = time.monotonic()
            try:
                self._say_progress()
                while not self.ended.is_set():
                    message = self._control.receive(timeout)
                    if message is None:
                        return
                    header, _ = message
                    self.urls = header.get("workers", self.urls)
                    timeout = 0.0
                    if "stop" in header:
                        self.ended.set()
            except OSError:  # the coordinator has ended
                self._is_lost = True
                self.ended.set()

    def _say_progress(self) -> None:
        seconds = self._progress_seconds
        if seconds is not None and self._updated - self._progressed >= seconds:
            self._progressed = self._updated
            self._control.send(header_of(Progress(self.sent)))

    def _disconnect(self, worker: int) -> None:
        if worker in self._routes:
            self._routes.pop(worker).close()

    def _with_worker(self, worker: int, action: Callable[[int], None]) -> None:
        """Call ``action`` for a worker, again over another connection whenever one is lost."""
        while True:
            try:
                action(worker)
                return
            except OSError as error:
                self._disconnect(worker)
                self.send_gathered()  # to the others
                self.update(_PAUSE)  # if training has ended, the coordinator also disconnects
                self._check()
                self._open(worker)
                lost_samples = self._lacks(worker, self._sent_to(worker))
                if lost_samples:
                    self._on_loss(
                        f"worker {worker} disconnected: {error}; {lost_samples} samples of this "
                        "stream are lost with it"
                    )
                    self._give_up(worker)
                    self._notify_lost(lost_samples)

    # Samples

    @property
    def delivered(self) -> int:
        """How many samples, counted from the first, earlier attempts have delivered."""
        missing = [
            self._routing.next_sample(worker, self.number, offset)
            for worker, offset in self._offsets.items()
        ]
        return min((sample for sample in missing if sample is not None), default=0)

    def skip(self, number: int) -> None:
        """Skip the next ``number`` samples, which must have been delivered before."""
        delivered = max(0, self.delivered - self.sent)
        if not 0 <= number <= delivered:
            raise ValueError(
                f"skip({number}): after the first {self.sent} samples, {delivered} were delivered "
                "before and may be skipped; send the others"
            )
        self.sent += number

    def go_on(self, sent: int) -> int:
        """Continue after the first ``sent`` samples; return how many of them no worker has.

        For a new stream, which has gathered nothing.
        """
        self.sent = sent
        lost_samples = 0
        for worker in self._routes:
            lost_samples += self._lacks(worker, sent)
            self._give_up(worker)
        self._notify_lost(lost_samples)
        return lost_samples

    def send(self, sample: Sample, step: int | None) -> None:
        """Send the next sample to its worker; blocks while that worker's buffer is full.

        Its arrays may change afterwards. A sample for which an error is raised does not count.
        """
        with self._sending:
            if time.monotonic() - self._updated > _TICK:
                self.update()
            self._check()
            worker = self._worker_of(self.sent)
            if self.sent >= self._offsets[worker]:
                if step is not None:
                    step = validation.check_count("step", step, least=0)
                packed = PackedSample.of(self.sent, step, sample)
                if packed.is_small:
                    self._with_worker(worker, partial(self._make_room, packed))
                    self._gather(worker, packed)
                    return
                self._with_worker(worker, partial(self._put, packed))
            self.sent += 1

    def _put(self, packed: PackedSample, worker: int) -> None:
        """Send a sample by itself, after those that were gathered."""
        self._hand_over(worker)
        self._await_credit(worker)
        self._route(worker).send(packed.message())

    def _make_room(self, packed: PackedSample, worker: int) -> None:
        """Send what was gathered for a worker, if a sample cannot be added to it."""
        gathered = self._gathered[worker]
        has_credit = len(gathered) < self._route(worker).credit
        if not has_credit or not gathered.suits(packed):
            self._hand_over(worker)
            self._await_credit(worker)

    def _gather(self, worker: int, packed: PackedSample) -> None:
        """Add a sample to those gathered for a worker; send them unless others may follow."""
        now = time.monotonic()
        follows_soon = now - self._last < _GATHERING_SECONDS
        self._last = now
        gathered = self._gathered[worker]
        gathered.add(packed)
        self.sent += 1
        if not follows_soon or gathered.is_full:
            with suppress(OSError):  # the next action notices
                self._send_what_it_accepts(worker)
        else:
            self._gathered_sending.ask()

    def _hand_over(self, worker: int) -> None:
        """Send all samples that were gathered for a worker; waits while its buffer is full."""
        while self._gathered[worker]:
            self._await_credit(worker)
            self._send_what_it_accepts(worker)

    def _send_what_it_accepts(self, worker: int) -> None:
        """Send as many of the samples gathered for a worker as it accepts now."""
        gathered = self._gathered[worker]
        route = self._route(worker)
        count = min(len(gathered), route.credit)
        if count:
            route.send(gathered.message(count))
            gathered.drop(count)

    def send_gathered(self) -> None:
        """Send the samples that were gathered, as far as workers accept them now."""
        with self._sending:
            self._gathered_sending.withdraw()
            for worker in list(self._routes):
                with suppress(OSError):  # the next action notices
                    self._send_what_it_accepts(worker)

    def _await_credit(self, worker: int) -> None:
        """Wait until a worker accepts a sample."""
        if not self._route(worker).credit:
            self.send_gathered()  # to the others
        while not self._route(worker).credit:
            self._receive(worker)

    def flush(self) -> None:
        """Wait until the workers have received all samples sent."""
        with self._sending:
            self._check()
            self.send_gathered()
            for worker in range(len(self.urls)):
                self._with_worker(worker, self._flush)

    def _flush(self, worker: int) -> None:
        self._hand_over(worker)
        self._route(worker).connection.send({"end": True})
        while "ended" not in self._receive(worker):
            pass

    def finish(self, steps: int | None = None) -> None:
        """Flush, and report the number of samples to the coordinator; of a simulation its steps."""
        self.flush()
        self.notify(Finished(self.sent, steps))

    def notify(self, message: SimulationMessage | SenderMessage) -> None:
        """Send a message to the coordinator."""
        with self._lock:
            self._control.send(header_of(message))

    def _worker_of(self, sample: int) -> int:
        return self._routing.worker_of(self.number, sample)

    def _lacks(self, worker: int, sent: int) -> int:
        """Return how many of the first ``sent`` samples a worker lacks."""
        missing = range(self._offsets[worker], sent)
        return self._routing.count(worker, self.number, missing)

    def _sent_to(self, worker: int) -> int:
        """Return the number below which a worker was sent all samples that are for it."""
        gathered = self._gathered[worker]
        return gathered.first if gathered else self.sent

    def _give_up(self, worker: int) -> None:
        """Tell a worker, if it lacks samples that were sent, not to expect them any more."""
        end = self._sent_to(worker)
        if self._lacks(worker, end):
            with suppress(OSError):  # the next action notices
                self._routes[worker].connection.send({"lost": end})
            self._offsets[worker] = end

    def _notify_lost(self, samples: int) -> None:
        if samples:
            with suppress(OSError):
                self.notify(SamplesLost(samples))

    def _route(self, worker: int) -> Route:
        route = self._routes.get(worker)
        if route is None or route.url != self.urls[worker]:
            raise ConnectionLostError("the coordinator has lost it")
        return route

    def _receive(self, worker: int) -> Header:
        """Wait for a worker's next message, while it is not lost and training has not ended."""
        while (message := self._route(worker).connection.receive(_TICK)) is None:
            self.update()
            self._check()
        header, _ = message
        self._routes[worker].note(header)
        if "error" in header:
            self.rejected = header["error"] if "sample" in header else ""
            self._failed = ValueError(f"a worker rejected a sample: {header['error']}")
            self._check()
        return header

    def _check(self) -> None:
        if self._is_lost:
            raise FitLostError(
                f"the fit at {self._address.url} has failed, or was stopped or killed; no more "
                "samples are accepted"
            )
        if self.ended.is_set():
            raise TrainingEndedError("training has ended; no more samples are accepted")
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Close all connections once everything sent has been transmitted."""
        self._gathered_sending.close()
        with self._lock, suppress(AttributeError):
            self._control.close()
        for worker in list(self._routes):
            self._disconnect(worker)
        sockets.end(self._context, sockets.LINGER_MILLISECONDS)
