"""First in, first out."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from compss_train._utils.validation import check_count
from compss_train.buffers.base import Buffer
from compss_train.buffers.partition import PartitionedBuffer
from compss_train.buffers.storage import NO_SLOTS, Slots


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


class FIRO(PartitionedBuffer):
    """Gives each sample once, drawn uniformly from those held; a put waits while ``capacity`` are held.

    With ``pseudo_epochs``, for prototypes on data that fit into the buffer, it waits for the end of reception and
    then gives every sample that many times, in passes over all of them, each in another random order.
    """

    def __init__(
        self,
        capacity: int,
        threshold: int,
        *,
        pseudo_epochs: int | None = None,
        seed: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        super().__init__(capacity, threshold, seed=seed, pin_memory=pin_memory)
        self._collects_all = pseudo_epochs is not None
        self._pseudo_epochs = 1 if pseudo_epochs is None else check_count("pseudo_epochs", pseudo_epochs)
        self._passes = self._pseudo_epochs  # still to go

    def _count_unseen(self) -> int:
        return super()._count_unseen() if self._passes == self._pseudo_epochs else 0

    def _stuck(self) -> str | None:
        if not self._collects_all or self._room() or self._in_flight:
            return None
        return (
            f"the buffer is full with {self.capacity} samples, and with pseudo_epochs none leaves before all are "
            "there; give it the capacity for all samples, or leave pseudo_epochs out"
        )

    def _largest(self) -> int:
        return self.capacity if self._collects_all else self.capacity - self.threshold

    def _available(self) -> int:
        if self._settled():
            return self._samples.unseen + (self._passes - 1) * self._samples.held
        return 0 if self._collects_all else max(0, self._samples.held - self.threshold)

    def _draw(self, size: int) -> tuple[Slots, Slots]:
        drawn, leaving = [], []
        while size:
            places = self._random.choice(self._samples.unseen, min(size, self._samples.unseen), replace=False)
            if self._passes == 1:
                leaving.append(self._remove(places))
                drawn.append(leaving[-1])
            else:
                drawn.append(self._samples.at(places))
                self._see(places)
            size -= len(places)
        return np.concatenate(drawn), np.concatenate([NO_SLOTS, *leaving])

    def _see(self, places: Slots) -> None:
        self._samples.see(places)
        if not self._samples.unseen:
            self._samples.unsee()
            self._passes -= 1

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "pseudo_epochs": self._pseudo_epochs if self._collects_all else None}

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "passes": self._passes}

    def _restore(self, slots: Slots, state: dict[str, Any]) -> None:
        super()._restore(slots, state)
        self._passes = state["passes"]
