"""A queue of pending calls, ordered by priority and key."""

import heapq
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


def _nothing() -> None:
    pass


@dataclass(eq=False)
class Call:
    """A function to execute for a key."""

    key: str
    run: Callable[[], None] = _nothing
    size: int = 0
    """Bytes of memory that it holds while it waits."""
    taken: bool = False


class CallQueue:
    """Waiting calls. Those of one key are executed in order; the key of the call with the highest priority first.

    ``limit`` is the maximum number of bytes that all calls hold: ``add`` waits while there are more.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._changed = threading.Condition()
        self._by_priority: list[tuple[int, int, Call]] = []  # a heap by priority, then by age
        self._by_key: dict[str, deque[Call]] = {}
        self._added = self._waiting = 0
        self._closed = False

    def add(self, call: Call, priority: int, *, wait: bool = True) -> bool:
        """Add a call when there is space; return False if the queue was closed.

        The thread that executes the calls adds calls without ``wait``, since it would wait for itself.
        """
        with self._changed:
            while wait and not self._closed and self._bytes and self._bytes + call.size > self._limit:
                self._changed.wait()
            if self._closed:
                return False
            heapq.heappush(self._by_priority, (-priority, self._added, call))
            self._added += 1
            self._waiting += 1
            self._bytes += call.size
            self._by_key.setdefault(call.key, deque()).append(call)
            self._changed.notify_all()
            return True

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return self._waiting

    @property
    def has_space(self) -> bool:
        """Whether a small call could be added without waiting."""
        return self._bytes < self._limit

    def take(self, *, wait: bool = True) -> Call | None:
        """Remove and return the next call, waiting for one; ``None`` if the queue is closed and empty.

        Without ``wait``, also ``None`` if no call is waiting.
        """
        with self._changed:
            while not self._waiting:
                if self._closed or not wait:
                    return None
                self._changed.wait()
            while self._by_priority[0][2].taken:
                heapq.heappop(self._by_priority)
            call = self._by_key[self._by_priority[0][2].key].popleft()  # earlier calls of the same key come first
            call.taken = True
            self._waiting -= 1
            return call

    def executed(self, call: Call) -> None:
        """Free the space of a call that was executed."""
        call.run = _nothing  # frees what the function refers to
        with self._changed:
            self._bytes -= call.size
            self._changed.notify_all()

    def close(self) -> None:
        """Accept no more calls; waiting calls can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
