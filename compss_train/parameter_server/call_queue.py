"""Calls of a parameter server that wait to be executed."""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from compss_train.parameter_server.interface import Key


@dataclass(eq=False)
class _Waiting:
    """A call that waits to be executed."""

    key: Key
    size: int
    """Bytes of memory that it holds."""
    run: Callable[[], None] | None
    """``None`` once it was taken."""


class CallQueue:
    """Waiting calls: those of one key in order, and first the key of the most urgent call."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes that waiting calls hold."""
        self._by_priority: list[tuple[int, int, _Waiting]] = []
        """A heap by priority, then by age."""
        self._by_key: defaultdict[Key, deque[_Waiting]] = defaultdict(deque)
        self._added = 0
        """How many calls were added."""

    def add(self, key: Key, run: Callable[[], None], *, priority: int, size: int) -> None:
        """Add a call that ``run`` executes, and that holds ``size`` bytes."""
        call = _Waiting(key, size, run)
        heapq.heappush(self._by_priority, (-priority, self._added, call))
        self._by_key[key].append(call)
        self._added += 1
        self.size += size

    def take(self) -> Callable[[], None] | None:
        """Remove the next call and return its function; ``None`` if no call waits."""
        while self._by_priority:
            _, _, most_urgent = self._by_priority[0]
            if most_urgent.run is not None:
                # Earlier calls of the same key come first.
                call = self._by_key[most_urgent.key].popleft()
                run = call.run
                call.run = None
                self.size -= call.size
                return run
            heapq.heappop(self._by_priority)
        return None
