"""Queues that return each sample once: ``FIFO`` and ``FIRO``; ``PartitionedBuffer``, the base of random buffers."""

from collections import deque
from typing import Any

import numpy as np

from compss_train._utils.validation import check_count
from compss_train.buffers.base import Buffer
from compss_train.buffers.partition import SlotPartition, choose_distinct
from compss_train.buffers.storage import NO_SLOTS, Slots


class FIFO(Buffer):
    """Returns each sample once, in the order of the puts; a put waits while ``capacity`` samples are held."""

    def __init__(self, capacity: int, *, seed: int | None = None, pin_memory: bool = False) -> None:
        super().__init__(capacity, seed=seed, pin_memory=pin_memory)
        self._queue: deque[int] = deque()

    def _held_slots(self) -> Slots:
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


class PartitionedBuffer(Buffer):
    """A buffer that keeps its unseen samples apart from those that were got before, in a ``SlotPartition``."""

    def __init__(self, capacity: int, threshold: int, *, seed: int | None, pin_memory: bool) -> None:
        super().__init__(capacity, threshold=threshold, seed=seed, pin_memory=pin_memory)
        self._samples = SlotPartition(capacity)

    def _held_slots(self) -> Slots:
        return self._samples.all()

    def _count(self) -> int:
        return self._samples.held

    def _count_unseen(self) -> int:
        return self._samples.unseen

    def _add(self, slots: Slots) -> None:
        self._samples.add(slots)

    def _remove(self, positions: Slots) -> Slots:
        """Remove the samples at these positions; return their slots."""
        slots = self._samples.at(positions)
        self._samples.remove(positions)
        return slots

    def _extra_state(self) -> dict[str, Any]:
        return {"unseen": self._samples.unseen}

    def _restore(self, slots: Slots, state: dict[str, Any]) -> None:
        self._samples = SlotPartition.of(self.capacity, slots, state["unseen"])


class FIRO(PartitionedBuffer):
    """Returns each sample once, drawn uniformly from those held; a put waits while ``capacity`` samples are held.

    With ``passes`` above 1, for prototypes with data that fit into the buffer, gets wait for the end of
    reception. Then every sample is returned that many times, in passes over all samples, each in a new random
    order. With 1 (default), each sample is returned once, as it comes.
    """

    def __init__(
        self,
        capacity: int,
        threshold: int,
        *,
        passes: int = 1,
        seed: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        super().__init__(capacity, threshold, seed=seed, pin_memory=pin_memory)
        self.passes = check_count("passes", passes)
        self._collects_all = passes > 1
        self._remaining_passes = passes

    def _count_unseen(self) -> int:
        return super()._count_unseen() if self._remaining_passes == self.passes else 0

    def _deadlock_reason(self) -> str | None:
        if not self._collects_all or self._room() or self._in_flight:
            return None
        return (
            f"the buffer is full with {self.capacity} samples, and with several passes samples stay until all "
            "have been put; use a capacity for all samples, or passes=1"
        )

    def _available(self) -> int:
        if self._all_received():
            return self._samples.unseen + (self._remaining_passes - 1) * self._samples.held
        return self._samples.held if self._allows_gets() and not self._collects_all else 0

    def _draw(self, size: int) -> tuple[Slots, Slots]:
        drawn = []
        while size and self._remaining_passes > 1:
            positions = self._choose(size)
            drawn.append(self._samples.at(positions))
            self._mark_seen(positions)
            size -= len(positions)
        removed = self._remove(self._choose(size)) if size else NO_SLOTS
        return np.concatenate([*drawn, removed]) if drawn else removed, removed

    def _choose(self, size: int) -> Slots:
        """Choose samples that this pass has not returned yet, as far as there are any; return their positions."""
        return choose_distinct(self._random, self._samples.unseen, min(size, self._samples.unseen))

    def _mark_seen(self, positions: Slots) -> None:
        self._samples.mark_seen(positions)
        if not self._samples.unseen:
            self._samples.mark_all_unseen()
            self._remaining_passes -= 1

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "passes": self.passes}

    def _extra_state(self) -> dict[str, Any]:
        return {**super()._extra_state(), "remaining_passes": self._remaining_passes}

    def _restore(self, slots: Slots, state: dict[str, Any]) -> None:
        super()._restore(slots, state)
        self._remaining_passes = state["remaining_passes"]
