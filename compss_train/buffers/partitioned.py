"""``PartitionedBuffer``: what buffers that draw single samples at random share, which is how they hold them."""

from __future__ import annotations

from typing import Any

from compss_train.buffers.base import Buffer
from compss_train.buffers.partition import Partition
from compss_train.buffers.slots import Slots


class PartitionedBuffer(Buffer):
    """A buffer whose samples are in a ``Partition``, the unseen ones apart from those that were got."""

    def __init__(self, capacity: int, threshold: int, *, seed: int | None, pin_memory: bool) -> None:
        super().__init__(capacity, threshold=threshold, seed=seed, pin_memory=pin_memory)
        self._samples = Partition(capacity)

    def _held(self) -> Slots:
        return self._samples.all()

    def _count(self) -> int:
        return self._samples.held

    def _count_unseen(self) -> int:
        return self._samples.unseen

    def _add(self, slots: Slots) -> None:
        self._samples.add(slots)

    def _remove(self, places: Slots) -> Slots:
        """Hold what is at these places no longer; return its slots."""
        slots = self._samples.at(places)
        self._samples.remove(places)
        return slots

    def _state(self) -> dict[str, Any]:
        return {"unseen": self._samples.unseen}

    def _restore(self, slots: Slots, state: dict[str, Any]) -> None:
        self._samples = Partition.of(self.capacity, slots, state["unseen"])
