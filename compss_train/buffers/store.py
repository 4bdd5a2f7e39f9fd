"""Store: a buffer's slots, what is in them, and how often it was got. One thread at a time, but for
``read`` and ``write``."""

from __future__ import annotations

from typing import Any

import numpy as np

from compss_train.buffers.incoming import Incoming
from compss_train.buffers.slots import Slots
from compss_train.buffers.storage import Storage
from compss_train.buffers.usage import Usage


class Store:
    """``capacity`` slots, of which some are free. The memory is taken when the first sample shows what they are."""

    def __init__(self, capacity: int, pin_memory: bool) -> None:
        self.capacity = capacity
        self.usage = Usage(capacity)
        self._pin_memory = pin_memory
        self._storage: Storage | None = None
        self._stack: Slots = np.arange(capacity)[::-1].copy()
        self.free = capacity
        """How many slots are free."""

    def admit(self, incoming: Incoming) -> None:
        """Raise ``ValueError`` unless the samples are like those before them."""
        if self._storage is None:
            self._storage = Storage.of(incoming, self.capacity)
        self._storage.check(incoming)

    def take(self, number: int) -> Slots:
        """Return free slots, which then are not free."""
        self.free -= number
        return self._stack[self.free : self.free + number].copy()

    def give_back(self, slots: Slots) -> None:
        """Make slots free."""
        self._stack[self.free : self.free + len(slots)] = slots
        self.free += len(slots)

    def write(self, slots: Slots, incoming: Incoming, start: int) -> None:
        """Copy samples into slots that nobody else uses, from number ``start`` on."""
        if self._storage is not None:
            self._storage.write(slots, incoming, start)

    def read(self, slots: Slots) -> Any:
        """Return the samples in these slots as a batch, ``None`` before there was any sample."""
        return None if self._storage is None else self._storage.read(slots, pinned=self._pin_memory)

    def release(self, slots: Slots) -> None:
        """Let go of what is in these slots, which nobody reads any more, and make them free."""
        if len(slots) and self._storage is not None:
            self._storage.forget(slots)
            self.give_back(slots)

    def state_dict(self, held: Slots) -> dict[str, Any]:
        """Return the samples in these slots, in order, and all counts."""
        return {
            "samples": self._storage.read(held) if self._storage is not None and len(held) else [],
            "times_got": self.usage.times_got(held).tolist(),
            "usage": self.usage.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> Slots:
        """Become a store with just these samples; return their slots, in order."""
        held = len(state["times_got"])
        self._stack, self.free = np.arange(self.capacity)[::-1].copy(), self.capacity
        self._storage = None
        slots = self.take(held)
        if held:
            incoming = Incoming.many(state["samples"])
            self.admit(incoming)
            self.write(slots, incoming, 0)
        self.usage.load_state_dict(state["usage"], slots, state["times_got"])
        return slots
