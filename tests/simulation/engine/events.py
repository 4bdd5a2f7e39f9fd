"""``Events``: a virtual clock, and what is to happen in virtual time."""

import heapq
import itertools
import math
import random
from collections.abc import Callable
from typing import ClassVar


class Events:
    """A virtual clock and a heap of events; the order of those of one time is drawn from ``seed``.

    Nothing waits: the clock is put forward to the next event. All that is drawn during a simulation
    should come from ``draw``, so that the seed repeats it. ``concurrent`` says whether tasks may
    wait for each other.
    """

    concurrent: ClassVar[bool] = False
    pace: ClassVar[float] = 1.0
    """How long tasks take, relative to other simulations."""

    def __init__(self, seed: int = 0) -> None:
        self.wall = 0.0
        """By how much the time of the day is ahead of ``clock``, in seconds."""
        self.draw = random.Random(seed)
        self.happened = 0
        """Number of events that have happened."""
        self._heap: list[tuple[float, float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.now = 0.0
        """The virtual time in seconds without that of jumps, in which what is to happen keeps its
        order.
        """
        self._ahead = 0.0

    def clock(self) -> float:
        """Return the virtual time in seconds, as programs read it."""
        return self.now + self._ahead

    def run(self, action: Callable[[], None]) -> None:
        """Run a task; a subclass may let it wait for others."""
        action()

    def jump(self, seconds: float) -> None:
        """Put the clock forward, as when a machine was suspended: what is to happen takes as long
        as before.
        """
        self._ahead += seconds

    def set_back(self, seconds: float) -> None:
        """Set the time of the day back, as an administrator or a time server may; ``clock`` goes
        on.
        """
        self.wall -= seconds

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` in so many seconds."""
        heapq.heappush(
            self._heap, (self.now + seconds, self.draw.random(), next(self._numbers), action)
        )

    def next(self) -> float:
        """Return the time of the next event; infinite if there is none."""
        return self._heap[0][0] + self._ahead if self._heap else math.inf

    def step(self) -> bool:
        """Let the next event happen; return ``False`` if there is none."""
        if not self._heap:
            return False
        time, _, _, action = heapq.heappop(self._heap)
        self.now = max(self.now, time)
        self.happened += 1
        action()
        return True

    def pass_until(self, time: float) -> None:
        """Put the clock forward to ``time``, before which there is no event."""
        self.now = max(self.now, min(time, self.next()) - self._ahead)

    def clear(self) -> None:
        """Forget what was to happen: the processes that would have done it have ended."""
        self._heap.clear()
