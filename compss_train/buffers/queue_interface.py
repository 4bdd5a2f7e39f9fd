"""``QueueInterface``: how a buffer's threads wait, and the methods that it shares with ``queue.Queue``."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from compss_train._utils.validation import check_count


class QueueInterface(ABC):
    """The methods of ``queue.Queue``, with the same meaning; they count samples.

    A task is a sample that a get will return or has returned, as in a ``Queue``: each put adds one. If samples are
    returned several times, each further get adds one, so that one rule holds for all buffers: one task is done for
    each sample of each get. A batch has a task for each of its samples, a pair of time steps has two.
    """

    capacity: int

    def __init__(self) -> None:
        # Re-entrant, because the garbage collector can run code that uses the buffer while the lock is held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._tasks_done = 0

    def _wait(self, predicate: Callable[[], bool], until: float | None = None) -> None:
        """Wait until ``predicate`` is true or ``time.monotonic`` reaches ``until``; with the lock held."""
        if predicate():
            return
        self._waiting += 1
        try:
            self._changed.wait_for(predicate, None if until is None else max(0.0, until - time.monotonic()))
        finally:
            self._waiting -= 1

    def _notify(self) -> None:
        """Let all waiting threads check their predicates; with the lock held."""
        if self._waiting:  # to notify none takes a fraction of the time of notify_all
            self._changed.notify_all()

    @abstractmethod
    def put(self, sample: Any, block: bool = True, timeout: float | None = None) -> None:
        """Store one sample."""

    @abstractmethod
    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return one sample."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples held."""

    @abstractmethod
    def _count_tasks(self) -> int:
        """Return the number of samples got, with repetitions, and of those that are still to be got first."""

    def put_nowait(self, sample: Any) -> None:
        """Store one sample if there is room: ``put`` with ``block=False``."""
        self.put(sample, block=False)

    def get_nowait(self) -> Any:
        """Return one sample if one is available: ``get`` with ``block=False``."""
        return self.get(block=False)

    @property
    def maxsize(self) -> int:
        """The maximum number of samples held: the capacity, which is at least 1 and never unlimited."""
        return self.capacity

    def qsize(self) -> int:
        """Return the number of samples held, as ``len`` does."""
        return len(self)

    def empty(self) -> bool:
        """Return whether no sample is held; if not, a get may still wait, for the threshold or a partner."""
        return not len(self)

    def full(self) -> bool:
        """Return whether the capacity is reached; a put may still evict a sample of a reservoir."""
        return len(self) >= self.capacity

    @property
    def unfinished_tasks(self) -> int:
        """Number of samples that are to be got, or were got and not reported by ``task_done``."""
        with self._lock:
            # Samples reported before they were got may turn out never to be returned, at the end of reception.
            return max(0, self._count_tasks() - self._tasks_done)

    def task_done(self, number: int = 1) -> None:
        """Report that ``number`` samples (default 1) that gets have returned were processed.

        Raises ``ValueError`` for more than there are unfinished tasks.
        """
        check_count("number", number)
        with self._lock:
            if number > (unfinished := self.unfinished_tasks):
                raise ValueError(
                    f"task_done() called too many times: number={number}, and {unfinished} unfinished tasks are "
                    "left; call it once for each sample that a get returned"
                )
            self._tasks_done += number
            self._notify()

    def join(self) -> None:
        """Wait until every sample put was got, and ``task_done`` was called for each sample of each get.

        When reception is over, samples that will never be returned (time steps without a partner) do not count.
        """
        with self._lock:
            self._wait(lambda: self.unfinished_tasks == 0)


def deadline(block: bool, timeout: float | None) -> float | None:
    """Return the value of ``time.monotonic`` at which waiting ends, or ``None`` for never."""
    if not block:
        return 0.0
    if timeout is None:
        return None
    if timeout < 0:
        raise ValueError(f"timeout={timeout!r}: give at least 0 seconds, or None to wait without limit")
    return time.monotonic() + timeout
