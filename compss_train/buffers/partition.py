"""Partition: the held slots of a buffer in two sections, those not yet got and those seen already.

Everything a buffer does to its samples at random is a choice of places in one array: any held sample, an unseen
one, or one to evict. All of it takes time by the number of samples chosen, not by the number held.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compss_train.buffers.base import Buffer
from compss_train.buffers.storage import Slots


class Partition:
    """Slots, the unseen ones first (places 0 to ``unseen``), then the seen ones (up to ``held``), in any order."""

    def __init__(self, capacity: int) -> None:
        self._order: Slots = np.empty(capacity, np.intp)
        self._marks: Slots = np.empty(capacity, np.intp)
        self.unseen = 0
        self.held = 0

    @classmethod
    def of(cls, capacity: int, slots: Slots, unseen: int) -> Partition:
        """Return a partition that holds these slots, the first ``unseen`` of them unseen."""
        made = cls(capacity)
        made._order[: len(slots)] = slots
        made.unseen, made.held = unseen, len(slots)
        return made

    @property
    def seen(self) -> int:
        """How many held samples were got before."""
        return self.held - self.unseen

    def at(self, places: Slots) -> Slots:
        """Return the slots at these places."""
        slots: Slots = self._order[places]
        return slots

    def all(self) -> Slots:
        """Return all held slots, the unseen ones first."""
        return self._order[: self.held].copy()

    def add(self, slots: Slots) -> None:
        """Hold these slots, unseen."""
        stop = self.unseen + len(slots)
        displaced = self._order[self.unseen : min(stop, self.held)].copy()
        self._order[self.unseen : stop] = slots
        self.unseen, self.held = stop, self.held + len(slots)
        self._order[self.held - len(displaced) : self.held] = displaced

    def see(self, places: Slots) -> None:
        """Count the slots at these places as seen; a place may be named more than once."""
        new = places[places < self.unseen]
        if len(new):
            new = self._distinct(new)
            self._move_last(new, self.unseen)
            self.unseen -= len(new)

    def unsee(self) -> None:
        """Count all slots as unseen again."""
        self.unseen = self.held

    def remove(self, places: Slots) -> None:
        """Hold the slots at these places, each named once, no longer."""
        is_unseen = places < self.unseen
        unseen = places[is_unseen]
        if len(unseen):
            self._move_last(unseen, self.unseen)
            self.unseen -= len(unseen)
        if self.unseen + len(unseen) < self.held:  # there are seen ones behind
            moved = np.arange(self.unseen, self.unseen + len(unseen))
            self._move_last(np.concatenate([moved, places[~is_unseen]]), self.held)
        self.held -= len(places)

    def _distinct(self, places: Slots) -> Slots:
        """Return each of these places once; cheaper than sorting them."""
        numbers = np.arange(len(places))
        self._marks[places] = numbers
        distinct: Slots = places[self._marks[places] == numbers]
        return distinct

    def _move_last(self, places: Slots, stop: int) -> None:
        """Exchange slots so that those at these places come last before ``stop``."""
        start = stop - len(places)
        is_hole = places < start
        leaving = np.ones(len(places), bool)
        leaving[places[~is_hole] - start] = False
        holes, tail = places[is_hole], start + leaving.nonzero()[0]
        self._order[holes], self._order[tail] = self._order[tail], self._order[holes]


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
