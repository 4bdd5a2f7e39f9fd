"""``Buffer``, the base class of all buffers: threads that wait, stored samples, checkpoints."""

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.validation import check_count, check_seed
from compss_train.buffers.samples import SampleBatch
from compss_train.buffers.storage import SampleStore, Slots, check_fits
from compss_train.exceptions import BufferDrainedError, BufferFullError, ReceptionOverError

UNLIMITED = 2**62
"""Number of available samples if gets leave the samples in the buffer."""


class Buffer(ABC):
    """A bounded store of samples between threads that put them and threads that get them.

    Parameters
    ----------
    capacity:
        The maximum number of samples held, at least 1. Tensors and arrays of one shape, also in
        tuples and dicts, are copied into memory for that many samples, and returned detached on the
        CPU; numbers next to them become tensors. Any other object, including a list, is kept by
        reference.
    threshold:
        Number of samples that the buffer must hold before a get, until reception is over; at most
        the capacity. 0 and 1 both allow gets whenever a sample is held.
    seed:
        Seed of the random draws; ``None`` (default) for different draws every time. If puts and
        gets come in a fixed order, the same seed gives the same draws.
    pin_memory:
        Whether to return tensors in page-locked memory, which is copied to a GPU faster; no effect
        without a GPU.

    Gets and puts wait as in ``queue.Queue``: with ``block=False``, or after ``timeout`` seconds, a
    put raises ``queue.Full`` and a get ``queue.Empty``. The end of reception wakes all waiting
    threads: puts raise ``ReceptionOverError`` (a ``queue.Full``); gets ignore the threshold, remove
    the samples that they return, and raise ``BufferDrainedError`` (a ``queue.Empty``) when no
    sample is left.

    Source: the buffers of Melissa (Meyer et al., "High Throughput Training of Deep Surrogates from
    Large Ensemble Runs", arXiv 2309.16743).
    """

    _repeats = False
    """Whether a batch may repeat a sample, so that it can be larger than the capacity."""
    max_repeats: int | None = None
    """How many samples a reservoir may return for each one put, until reception is over.

    ``None`` for any number.
    """

    def __init__(
        self,
        capacity: int,
        *,
        threshold: int = 0,
        seed: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        # Re-entrant: the garbage collector can run code that uses the buffer under the lock.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.waiting = 0
        """Number of threads that wait for samples or for room."""
        self.waited = 0.0
        """Seconds that gets have waited."""
        self.capacity = check_count("capacity", capacity)
        self.threshold = check_count("threshold", threshold, least=0)
        if threshold > capacity:
            raise ValueError(
                f"threshold={threshold}, capacity={capacity}: a get waits for that many samples; "
                "give a threshold of at most the capacity"
            )
        check_fits(self.capacity)
        self._random = np.random.default_rng(None if seed is None else check_seed(seed))
        pin_memory = pin_memory and torch.accelerator.is_available()
        self._store = SampleStore(capacity, pin_memory=pin_memory)
        self.reception_over = False
        """Whether ``signal_reception_over`` was called."""

    # The methods that kinds of buffers implement or override; all are called with the lock held.

    @abstractmethod
    def _held_slots(self) -> Slots:
        """Return the slots of the samples held, in the order that ``_restore`` needs."""

    @abstractmethod
    def _available(self) -> int:
        """Return the number of samples that gets can return without waiting."""

    @abstractmethod
    def _draw(self, size: int) -> tuple[Slots, Slots]:
        """Choose samples to get; return their slots, and the slots of samples that are removed."""

    @abstractmethod
    def _add(self, slots: Slots, incoming: SampleBatch, start: int) -> None:
        """Add the samples from number ``start`` on, which are in these slots."""

    @abstractmethod
    def _restore(self, slots: Slots, state: dict[str, Any]) -> None:
        """Hold these slots, in the order of ``_held_slots``, and restore ``_extra_state``."""

    def _extra_state(self) -> dict[str, Any]:
        """Return the state of this kind of buffer besides its samples, for checkpoints."""
        return {}

    def _count(self) -> int:
        return len(self._held_slots())

    def _count_unseen(self) -> int:
        return self._count()

    def _allows_gets(self) -> bool:
        """Return whether the threshold is reached."""
        return self.reception_over or self._count() >= self.threshold

    def _repeatable(self, samples: int = 1) -> int:
        """Return how often a reservoir may return this number of samples."""
        if self.max_repeats is None or not self._room():  # only gets make room
            return UNLIMITED
        return max(0, self.max_repeats * self.samples_put - self.samples_got) // samples

    def _room(self) -> int:
        """Return the number of samples that can be put without waiting."""
        return self._store.num_free

    def _evict(self, number: int) -> None:  # noqa: B027 (only reservoirs do)
        """Make room for ``number`` samples, which is at most ``_room``."""

    def _check(self, incoming: SampleBatch, start: int) -> None:
        """Raise ``ValueError`` unless the samples from number ``start`` on can be stored."""
        self._store.check(incoming)

    def _deadlock_reason(self) -> str | None:
        """Return why a put without room would wait forever, or ``None``."""
        return None

    def _read(self, slots: Slots) -> Any:
        """Return a batch of the samples in the drawn slots."""
        return self._store.read(slots)

    def _read_one(self, slots: Slots) -> Any:
        """Return the sample in the drawn slot."""
        return self._store.read_one(int(slots[0]))

    def _wait(self, predicate: Callable[[], bool], until: float | None = None) -> float:
        """Wait until ``predicate`` is true or ``time.monotonic`` reaches ``until``.

        Called with the lock held; returns the seconds.
        """
        if predicate():
            return 0.0
        self.waiting += 1
        began = time.monotonic()
        try:
            self._changed.wait_for(predicate, None if until is None else max(0.0, until - began))
        finally:
            self.waiting -= 1
        return time.monotonic() - began

    def _notify(self) -> None:
        """Let all waiting threads check their predicates; with the lock held."""
        if self.waiting:  # to notify none takes a fraction of the time of notify_all
            self._changed.notify_all()

    # Putting

    def put(self, sample: Any, block: bool = True, timeout: float | None = None) -> None:
        """Store one sample, waiting for room.

        Raises ``queue.Full`` if there is no room in time, ``ReceptionOverError`` after the end of
        reception, and ``ValueError`` for a sample whose structure, shape or dtype differs from that
        of the first one.
        """
        self._put(self._incoming(sample, single=True), deadline(timeout, block=block))

    def put_many(
        self, samples: Any, block: bool = True, timeout: float | None = None, *, copy: bool = True
    ) -> None:
        """Store a list of samples, or stacked samples with a first dimension of samples.

        Samples are stored as room becomes available. A list is always a list of samples: pass
        ``tuple(batch)`` for a batch ``[x, y]`` of torch's ``DataLoader``. Raises the errors of
        ``put``; ``error.stored`` is then the number of leading samples that were stored.

        Without ``copy`` the buffer may keep the memory of samples of 256 kB or more, to which
        nobody may write any more, as long as it holds one of them.
        """
        incoming = self._incoming(samples, single=False)
        incoming.is_handed_over = not copy
        self._put(incoming, deadline(timeout, block=block))

    def _incoming(self, samples: Any, *, single: bool) -> SampleBatch:
        """Return one sample or several in the form in which they are stored."""
        like = self._store.like
        if single:
            return SampleBatch.from_sample(samples, like)
        return SampleBatch.from_batch(samples, like)

    def _put(self, incoming: SampleBatch, until: float | None) -> None:
        stored = 0
        while stored < len(incoming):
            with self._lock:
                room = self._await_room(incoming, stored, until)
                number = min(room, len(incoming) - stored)
                if number > self._store.num_free:
                    self._evict(number)
                slots = self._store.put(incoming, stored, number)
                self._add(slots, incoming, stored)
                self._notify()
            stored += number

    def _await_room(self, incoming: SampleBatch, stored: int, until: float | None) -> int:
        """Wait until samples can be put without waiting; return their number."""
        self._wait(
            lambda: self.reception_over or self._room() > 0 or self._deadlock_reason() is not None,
            until,
        )
        self._check(incoming, stored)
        room = self._room()
        if self.reception_over:
            raise ReceptionOverError("no samples can be put: reception is over", stored)
        if not room:
            reason = self._deadlock_reason()
            if reason is not None:
                raise BufferFullError(reason, stored, final=True)
            raise BufferFullError(
                f"a {type(self).__name__} of {self.capacity} samples had no room in time",
                stored,
                final=False,
            )
        return room

    # Getting

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return one sample, waiting until one is available.

        Raises ``queue.Empty`` if none is available in time, ``BufferDrainedError`` if none will be.
        """
        return self._get(1, self._read_one, deadline(timeout, block=block))

    def get_batch(self, size: int, block: bool = True, timeout: float | None = None) -> Any:
        """Return ``size`` samples in one step: stacked tensors or arrays, or a list of objects.

        Waits until the threshold is reached and all samples of the batch are available; when
        reception is over, the last batch may be smaller. Raises the errors of ``get``, and
        ``ValueError`` for a size that can never be available.
        """
        if check_count("size", size) > self.capacity and not self._repeats:
            raise ValueError(
                f"size={size}: a {type(self).__name__} with capacity {self.capacity} returns at "
                f"most {self.capacity} samples at once; use smaller batches or more capacity"
            )
        return self._get(size, self._read, deadline(timeout, block=block))

    def _get(self, size: int, read: Callable[[Slots], Any], until: float | None) -> Any:
        """Draw ``size`` samples, or the last ones, and return what is read in their slots."""
        with self._lock:
            number = self._await_samples(size, until)
            slots, removed = self._draw(number)
            self._store.count_gets(slots)
            samples = read(slots)
            self._store.remove(removed)
            self._notify()
            return samples

    def _await_samples(self, size: int, until: float | None) -> int:
        """Wait until ``size`` samples, or the last ones, are available; return their number."""
        self.waited += self._wait(lambda: self._available() >= size or self.reception_over, until)
        available = self._available()
        if available < size and not self.reception_over:
            raise queue.Empty(
                f"{size} samples were not available in time; {available} are available now: "
                f"{self._count()} are held, and the threshold is {self.threshold}"
            )
        if not available:
            raise BufferDrainedError("no samples are left: reception is over")
        return min(size, available)

    # The end of reception

    def signal_reception_over(self) -> None:
        """Signal that no more samples will be put.

        From now on each get removes the samples that it returns.
        """
        with self._lock:
            self.reception_over = True
            self._notify()

    # Contents and counts

    def __len__(self) -> int:
        with self._lock:
            return self._count()

    def is_ready(self) -> bool:
        """Return whether a sample is available without waiting."""
        with self._lock:
            return self._available() > 0

    @property
    def unseen(self) -> int:
        """Number of held samples that have never been returned."""
        with self._lock:
            return self._count_unseen()

    @property
    def samples_put(self) -> int:
        """Number of samples put so far."""
        return self._store.samples_put

    @property
    def samples_got(self) -> int:
        """Number of samples returned so far, including repetitions."""
        return self._store.samples_got

    def repetitions(self) -> NDArray[np.int64]:
        """Return at index n how many of the samples put so far were returned n times."""
        with self._lock:
            return self._store.repetitions(self._held_slots())

    def seen_counts(self) -> NDArray[np.int64]:
        """Return how often each held sample was returned.

        They are in the order of ``state_dict()["samples"]``: in a ``FIFO``, of the puts.
        ``repetitions`` also counts samples that are no longer held.
        """
        with self._lock:
            return self._store.times_got[self._held_slots()]

    def keys(self, name: str) -> NDArray[np.int64]:
        """Return simulation and step of each sample held, shape (n, 2).

        Samples that are dicts have them under ``name``.
        """
        with self._lock:
            return self._store.column(name, self._held_slots())

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a buffer made with the same arguments goes on.

        It makes the same draws. Samples are stored as in batches; everything else consists of
        numbers, strings, lists and dicts.
        """
        with self._lock:
            return {
                **self._identity(),
                "over": self.reception_over,
                "random": self._random.bit_generator.state,
                **self._store.state_dict(self._held_slots()),
                **self._extra_state(),
            }

    def _identity(self) -> dict[str, Any]:
        """Return the properties in which a buffer must agree with a state that it loads."""
        return {"kind": type(self).__name__, "capacity": self.capacity, "threshold": self.threshold}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace this buffer's contents with those of ``state_dict``.

        Raises ``ValueError`` for the state of a buffer of another kind, capacity or threshold.
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise ValueError(
                    f"this is the state of a buffer with {name} {state.get(name)}, not {value}"
                )
        with self._lock:
            self._restore(self._store.load_state_dict(state), state)
            self.reception_over = state["over"]
            self._random.bit_generator.state = state["random"]
            self._notify()


def deadline(timeout: float | None, *, block: bool) -> float | None:
    """Return the value of ``time.monotonic`` at which waiting ends, or ``None`` for never."""
    if not block:
        return 0.0
    if timeout is None:
        return None
    if timeout < 0:
        raise ValueError(
            f"timeout={timeout!r}: give at least 0 seconds, or None to wait without limit"
        )
    return time.monotonic() + timeout
