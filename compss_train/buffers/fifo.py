"""First in, first out."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from compss_train.buffers.base import Buffer
from compss_train.buffers.slots import Slots


class FIFO(Buffer):
    """Gives each sample once, in the order in which they were put; a put waits while ``capacity`` are held."""

    def __init__(self, capacity: int, *, seed: int | None = None, pin_memory: bool = False) -> None:
        super().__init__(capacity, seed=seed, pin_memory=pin_memory)
        self._queue: deque[int] = deque()

    def _held(self) -> Slots:
        return np.array(self._queue, np.intp)

    def _count(self) -> int:
        return len(self._queue)

    def _available(self) -> int:
        return len(self._queue)

    def _add(self, slots: Slots) -> None:
        self._queue.extend(slots.tolist())

    def _draw(self, size: int) -> tuple[Slots, Slots]:
        slots = np.array([self._queue.popleft() for _ in range(size)], np.intp)
        return slots, slots

    def _restore(self, slots: Slots, state: dict[str, Any]) -> None:
        self._queue = deque(slots.tolist())
