"""``Buffer``: what all buffers share: threads that wait, samples in a store, the end of reception, checkpoints."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.validation import check_count, check_seed
from compss_train.buffers.incoming import Incoming
from compss_train.buffers.storage import NO_SLOTS, Slots, Store
from compss_train.buffers.structure import first
from compss_train.exceptions import BufferDrainedError, BufferFullError, ReceptionOverError

UNLIMITED = 2**62
"""Samples that can be got where gets leave samples in place."""


class Buffer(ABC):
    """A bounded store of samples between threads that put them and threads that get them.

    Parameters
    ----------
    capacity:
        The most samples that are held, at least 1. Tensors and arrays of one shape, also in tuples and dicts, are
        copied into memory for that many, and come back on the CPU and detached; numbers beside them become tensors.
        Of any other object, a list too, a reference is kept.
    threshold:
        Until reception is over, samples are got only while more than this many are held.
    seed:
        Of the random draws; ``None`` (default) for other ones every time. Where puts and gets come in a fixed
        order, the same seed gives the same draws.
    pin_memory:
        Give tensors in page-locked memory, from which they get to a GPU fast, where there is one.

    Waiting is that of ``queue.Queue``: with ``block=False``, or after ``timeout`` seconds, a put raises
    ``queue.Full`` and a get ``queue.Empty``. When reception is over, whoever waits goes on at once: puts raise
    ``ReceptionOverError`` (a ``queue.Full``); gets remove what they return, whatever the threshold, and raise
    ``BufferDrainedError`` (a ``queue.Empty``) when nothing is left.

    Source: the buffers of Melissa (Meyer et al., "High Throughput Training of Deep Surrogates from Large Ensemble
    Runs", arXiv 2309.16743).
    """

    def __init__(
        self, capacity: int, *, threshold: int = 0, seed: int | None = None, pin_memory: bool = False
    ) -> None:
        self.capacity = check_count("capacity", capacity)
        self.threshold = check_count("threshold", threshold, least=0)
        if threshold >= capacity:
            raise ValueError(
                f"threshold={threshold}, capacity={capacity}: more samples than the threshold must be held before "
                "one is got, so it must be below the capacity"
            )
        self._random = np.random.default_rng(None if seed is None else check_seed(seed))
        self._store = Store(capacity, pin_memory and torch.cuda.is_available())
        # Samples are copied outside the lock, which would be held nearly all the time otherwise.
        self._in_flight = 0  # samples that have a slot and are being written to it
        self._reads: list[threading.Lock] = []  # one, held, for each get that is copying samples
        self._over = False
        # Re-entrant, for whatever the garbage collector runs meanwhile.
        self._lock = threading.RLock()
        self._room_made = threading.Condition(self._lock)
        self._samples_came = threading.Condition(self._lock)

    # What kinds of buffers differ in; all of it is called with the lock held.

    @abstractmethod
    def _held(self) -> Slots:
        """Return the slots that are held, in an order from which ``_restore`` can go on."""

    @abstractmethod
    def _available(self) -> int:
        """Return how many samples could be got now."""

    @abstractmethod
    def _draw(self, size: int) -> tuple[Slots, Slots]:
        """Choose samples to get; return their slots, and the slots that are held no longer."""

    @abstractmethod
    def _add(self, slots: Slots) -> None:
        """Hold what has been written to these slots."""

    @abstractmethod
    def _restore(self, slots: Slots, state: dict[str, Any]) -> None:
        """Hold these slots, as ``_held`` gave them, and what ``_state`` gave."""

    def _state(self) -> dict[str, Any]:
        """Return what a kind of buffer knows besides its samples, for a checkpoint."""
        return {}

    def _count(self) -> int:
        return len(self._held())

    def _count_unseen(self) -> int:
        return self._count()

    def _room(self) -> int:
        """Return how many samples could be put now."""
        return self._store.free

    def _reserve(self, incoming: Incoming, start: int, number: int) -> Slots:
        """Return slots for some of the samples, evicting others where that is the way."""
        return self._store.take(number)

    def _evict(self, slots: Slots) -> None:
        """Make slots free whose samples a get may still be copying; they are not forgotten but overwritten."""
        self._store.usage.leave(slots)
        self._store.give_back(slots)

    def _stuck(self) -> str | None:
        """Return why a put that finds no room would wait forever, or ``None``."""
        return None

    def _largest(self) -> int:
        """Return the size of the largest batch that can ever be had."""
        return self.capacity

    def _read(self, slots: Slots) -> Any:
        """Return the samples in the slots that were drawn; called without the lock."""
        return self._store.read(slots)

    # Putting

    def put(self, sample: Any, block: bool = True, timeout: float | None = None) -> None:
        """Store one sample, waiting for room.

        Raises ``queue.Full`` where there is none in time, ``ReceptionOverError`` after the end of reception, and
        ``ValueError`` for a sample of another structure, shape or dtype than the first one.
        """
        self._put(self._incoming_one(sample), deadline(block, timeout))

    def put_many(self, samples: Any, block: bool = True, timeout: float | None = None) -> None:
        """Store a list of samples, or stacked ones whose first dimension counts them, as they find room.

        A list is one of samples: give ``tuple(batch)`` of the lists [x, y] that torch's ``DataLoader`` makes.
        Raises as ``put`` does; ``error.stored`` then tells how many were stored before, the first ones.
        """
        self._put(self._incoming_many(samples), deadline(block, timeout))

    def _incoming_one(self, sample: Any) -> Incoming:
        return Incoming.one(sample)

    def _incoming_many(self, samples: Any) -> Incoming:
        return Incoming.many(samples)

    def _put(self, incoming: Incoming, until: float | None) -> None:
        stored = 0
        while stored < len(incoming):
            stored += self._put_some(incoming, stored, until)

    def _put_some(self, incoming: Incoming, start: int, until: float | None) -> int:
        """Store as many samples as there is room for, from number ``start`` on, waiting for room for one."""
        slots, written = NO_SLOTS, False
        try:
            with self._lock:
                self._await_room(incoming, start, until)
                number = min(self._room(), len(incoming) - start)
                copying = self._reads.copy() if number > self._store.free else []
                slots = self._reserve(incoming, start, number)
                self._in_flight += len(slots)
            _wait_for(copying)  # of what is evicted
            self._store.write(slots, incoming, start)
            written = True
        finally:  # a writer that is interrupted must not leave others waiting for its samples
            if len(slots):
                self._settle(slots, written)
        return len(slots)

    def _await_room(self, incoming: Incoming, stored: int, until: float | None) -> None:
        self._store.admit(incoming)
        wait(self._room_made, lambda: self._over or self._room() > 0 or self._stuck() is not None, until)
        self._store.admit(incoming)  # once more: another state may have been loaded meanwhile
        if self._over:
            raise ReceptionOverError("nothing can be put any more: reception is over", stored)
        if not self._room():
            reason = self._stuck() or f"a {type(self).__name__} of {self.capacity} samples had no room in time"
            raise BufferFullError(reason, stored)

    def _settle(self, slots: Slots, written: bool) -> None:
        """Hold what was written, or give the slots up."""
        with self._lock:
            self._in_flight -= len(slots)
            if written:
                self._add(slots)
                self._store.usage.samples_put += len(slots)
            else:
                self._abandon(slots)
            self._samples_came.notify_all()
            self._room_made.notify_all()  # a new sample may be the partner for which others were kept

    def _abandon(self, slots: Slots) -> None:
        self._store.give_back(slots)

    # Getting

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return one sample, waiting until one can be had.

        Raises ``queue.Empty`` where none can in time, ``BufferDrainedError`` when none will come any more.
        """
        return first(self._get(1, deadline(block, timeout)))

    def get_batch(self, size: int, block: bool = True, timeout: float | None = None) -> Any:
        """Return what ``size`` gets would return, as one step: stacked tensors or arrays, or a list of objects.

        Waits until all of them can be had; when reception is over, the last batch may be smaller. Raises as
        ``get`` does, and ``ValueError`` for more samples than could ever be had at once.
        """
        if check_count("size", size) > self._largest():
            raise ValueError(
                f"size={size}: a {type(self).__name__} with capacity {self.capacity} and threshold {self.threshold}"
                f" has {self._largest()} samples at once at most; take smaller batches or a larger capacity"
            )
        return self._get(size, deadline(block, timeout))

    def _get(self, size: int, until: float | None) -> Any:
        leaving, copying = NO_SLOTS, list[threading.Lock]()
        with self._reading() as read:
            try:
                with self._lock:
                    slots, leaving = self._draw(self._await_samples(size, until))
                    self._store.usage.got(slots)
                    self._store.usage.leave(leaving)
                    copying = self._reads.copy() if len(leaving) else []
                    self._reads.append(read)
                    self._room_made.notify_all()
                return self._read(slots)
            finally:
                if len(leaving):
                    _wait_for(copying)  # of samples that were drawn before, too
                    self._free(leaving)

    @contextmanager
    def _reading(self) -> Iterator[threading.Lock]:
        """Give the lock that others wait for while this get copies, held until it has given its slots back."""
        read = threading.Lock()
        with read:
            try:
                yield read
            finally:
                if read in self._reads:
                    self._reads.remove(read)

    def _await_samples(self, size: int, until: float | None) -> int:
        """Wait until ``size`` samples can be got, or fewer are the last ones; return how many."""
        wait(self._samples_came, lambda: self._available() >= size or self._settled(), until)
        available = self._available()
        if self._settled() and not available:
            raise BufferDrainedError("nothing is left to get: reception is over")
        if available < size and not self._settled():
            raise queue.Empty(f"{size} samples could not be had in time, {available} can be had now")
        return min(size, available)

    def _free(self, slots: Slots) -> None:
        with self._lock:
            self._store.release(slots)
            self._room_made.notify_all()

    # The end of reception

    def signal_reception_over(self) -> None:
        """Say that nothing more will be put; from now on each get removes what it returns."""
        with self._lock:
            self._over = True
            self._room_made.notify_all()
            self._samples_came.notify_all()

    @property
    def reception_over(self) -> bool:
        """Whether ``signal_reception_over`` was called."""
        return self._over

    def _settled(self) -> bool:
        """Tell whether all samples that will ever come are held."""
        return self._over and not self._in_flight

    # What it holds

    def __len__(self) -> int:
        with self._lock:
            return self._count()

    def is_ready(self) -> bool:
        """Tell whether one sample could be got at once."""
        with self._lock:
            return self._available() > 0

    @property
    def unseen(self) -> int:
        """How many of the samples held were never got."""
        with self._lock:
            return self._count_unseen()

    @property
    def samples_put(self) -> int:
        """How many samples were put so far."""
        return self._store.usage.samples_put

    @property
    def samples_got(self) -> int:
        """How many samples were got so far, each repetition counted."""
        return self._store.usage.samples_got

    def repetitions(self) -> NDArray[np.int64]:
        """Return a histogram: at index n, how many of the samples put so far were got n times."""
        with self._lock:
            return self._store.usage.histogram(self._held())

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return what a buffer made with the same arguments needs to go on with the same draws.

        A sample whose put has not returned yet is not in it. Samples are in it as batches are; what else is in it
        are numbers, strings, lists and dicts.
        """
        with self._lock:
            return {
                **self._identity(),
                "over": self._over,
                "random": self._random.bit_generator.state,
                **self._store.state_dict(self._held()),
                **self._state(),
            }

    def _identity(self) -> dict[str, Any]:
        """Return what a buffer must share with the one whose state it takes over."""
        return {"kind": type(self).__name__, "capacity": self.capacity, "threshold": self.threshold}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the buffer whose ``state_dict`` this is, in place of what is held now.

        Raises ``ValueError`` for the state of a buffer of another kind, capacity or threshold, ``RuntimeError``
        while a put or get goes on.
        """
        for name, own in self._identity().items():
            if state.get(name) != own:
                raise ValueError(f"this is the state of a buffer with {name} {state.get(name)}, not {own}")
        with self._lock:
            if self._in_flight or self._reads:
                raise RuntimeError("another thread puts or gets samples; let it end before load_state_dict")
            self._restore(self._store.load_state_dict(state), state)
            self._over = state["over"]
            self._random.bit_generator.state = state["random"]
            self._room_made.notify_all()
            self._samples_came.notify_all()


def _wait_for(copying: list[threading.Lock]) -> None:
    """Wait until these gets have copied their samples."""
    for read in copying:
        with read:
            pass


def deadline(block: bool, timeout: float | None) -> float | None:
    """Return the time of ``time.monotonic`` at which to give up, ``None`` for never."""
    if not block:
        return 0.0
    if timeout is None:
        return None
    if timeout < 0:
        raise ValueError(f"timeout={timeout!r}: give seconds from 0, or None to wait without end")
    return time.monotonic() + timeout


def wait(condition: threading.Condition, reached: Callable[[], bool], until: float | None) -> None:
    """Return when ``reached`` is true or the time ``until`` has come; ``condition``'s lock is held."""
    if not reached():
        condition.wait_for(reached, None if until is None else max(0.0, until - time.monotonic()))
