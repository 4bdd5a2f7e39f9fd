"""Backlogs: calls that wait to be executed, the most urgent key first."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


def _nothing() -> None:
    pass


@dataclass(eq=False)
class Call:
    """Something to execute for a key."""

    key: str
    run: Callable[[], None] = _nothing
    size: int = 0
    """Bytes that it holds in memory until then."""
    taken: bool = False


class Backlog:
    """Calls by key. Those of one key are executed in order; the key of the call with the highest priority is first.

    ``limit`` bounds the bytes that calls hold: whoever adds more waits.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._changed = threading.Condition()
        self._urgent: list[tuple[int, int, Call]] = []  # a heap by priority, then by age
        self._by_key: dict[str, deque[Call]] = {}
        self._added = self._waiting = 0
        self._closed = False

    def add(self, call: Call, priority: int, *, wait: bool = True) -> bool:
        """Add a call, waiting for room; return whether there was still somebody to execute it.

        Who executes the calls adds some of its own without ``wait``, as it would wait for itself.
        """
        with self._changed:
            if wait and not self._closed and not self._has_room(call):
                self._changed.wait_for(lambda: self._closed or self._has_room(call))
            if self._closed:
                return False
            heapq.heappush(self._urgent, (-priority, self._added, call))
            self._added += 1
            self._waiting += 1
            self._held += call.size
            self._by_key.setdefault(call.key, deque()).append(call)
            self._changed.notify_all()
            return True

    def _has_room(self, call: Call) -> bool:
        return not self._held or self._held + call.size <= self._limit

    def __len__(self) -> int:
        """Return how many calls wait."""
        return self._waiting

    @property
    def has_room(self) -> bool:
        """Whether a call could be added without waiting, if it is small."""
        return self._held < self._limit

    def take(self, *, wait: bool = True) -> Call | None:
        """Return the call to execute next, waiting for one; ``None`` when the backlog is closed and empty.

        Without ``wait`` it is also ``None`` where there is no call now.
        """
        with self._changed:
            while True:
                while self._urgent and self._urgent[0][2].taken:
                    heapq.heappop(self._urgent)
                if self._urgent:
                    break
                if self._closed or not wait:
                    return None
                self._changed.wait()
            calls = self._by_key[self._urgent[0][2].key]  # of this key all that came before
            call = calls.popleft()
            call.taken = True
            self._waiting -= 1
            return call

    def executed(self, call: Call) -> None:
        """Make room for other calls."""
        call.run = _nothing  # lets go of what it holds
        with self._changed:
            self._held -= call.size
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more calls; those that wait are still given out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
