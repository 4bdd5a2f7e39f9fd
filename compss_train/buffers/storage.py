"""Slots: where in a buffer's storage a sample is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.buffers.incoming import Incoming, check_same
from compss_train.buffers.structure import Leaf, leaves, map_leaves
from compss_train.data.block import rows_as_items

Slots: TypeAlias = "NDArray[np.intp]"
"""Numbers of slots, or of places in an order of slots."""

NO_SLOTS: Slots = np.empty(0, np.intp)


class Usage:
    """Counts by slot for the samples held, and one histogram for all that have left."""

    def __init__(self, capacity: int) -> None:
        self._times = np.zeros(capacity, np.int64)
        self._gone = np.zeros(1, np.int64)
        self.samples_put = 0
        self.samples_got = 0

    def got(self, slots: Slots) -> None:
        """Count a get for each of these slots, which may be named more than once."""
        np.add.at(self._times, slots, 1)
        self.samples_got += slots.size

    def leave(self, slots: Slots) -> None:
        """Move what was counted for these slots to the histogram."""
        self._gone = _sum(self._gone, self._times[slots])
        self._times[slots] = 0

    def times_got(self, slots: Slots) -> NDArray[np.int64]:
        """Return the counts of these slots."""
        return self._times[slots]

    def histogram(self, held: Slots) -> NDArray[np.int64]:
        """Return how many samples, held or gone, were got 0, 1, 2, ... times."""
        return _sum(self._gone, self._times[held])

    def state_dict(self) -> dict[str, Any]:
        """Return the counts apart from those of the samples held."""
        return {"gone": self._gone.tolist(), "put": self.samples_put, "got": self.samples_got}

    def load_state_dict(self, state: dict[str, Any], slots: Slots, times: list[int]) -> None:
        """Take over such counts, and those of the slots that are held now."""
        self._times[:] = 0
        self._times[slots] = times
        self._gone = np.array(state["gone"], np.int64)
        self.samples_put, self.samples_got = state["put"], state["got"]


def _sum(histogram: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the histogram with these counts added to it."""
    added = np.bincount(times, minlength=len(histogram))
    added[: len(histogram)] += histogram
    return added


class Storage(ABC):
    """A slot for each sample that the buffer may hold."""

    def __init__(self, template: Any) -> None:
        self.template = template

    def check(self, incoming: Incoming) -> None:
        """Raise ``ValueError`` unless the samples are of the kind, structure and shape of the first one."""
        check_same(incoming.template, self.template)

    @abstractmethod
    def write(self, slots: Slots, incoming: Incoming, start: int) -> None:
        """Copy samples into slots, from number ``start`` on. Other slots may be read meanwhile."""

    @abstractmethod
    def read(self, slots: Slots, *, pinned: bool = False) -> Any:
        """Return a batch of the samples in these slots, which shares nothing with the storage."""

    @abstractmethod
    def forget(self, slots: Slots) -> None:
        """Let go of what is in these slots."""

    @staticmethod
    def of(incoming: Incoming, capacity: int) -> Storage:
        """Return an empty storage for samples like these."""
        if incoming.objects is not None:
            return ObjectStorage(capacity)
        return ColumnStorage(capacity, incoming.template)


class ObjectStorage(Storage):
    """Any Python objects; batches are lists of them."""

    def __init__(self, capacity: int) -> None:
        super().__init__(None)
        self._objects: list[Any] = [None] * capacity

    def write(self, slots: Slots, incoming: Incoming, start: int) -> None:
        """Keep references to the objects."""
        for number, slot in enumerate(slots.tolist(), start):
            self._objects[slot] = (incoming.objects or [])[number]

    def read(self, slots: Slots, *, pinned: bool = False) -> list[Any]:
        """Return the objects themselves."""
        return [self._objects[slot] for slot in slots.tolist()]

    def forget(self, slots: Slots) -> None:
        """Drop the references."""
        for slot in slots.tolist():
            self._objects[slot] = None


class ColumnStorage(Storage):
    """Tensors and arrays of one shape, in preallocated memory with a row a slot; batches come stacked."""

    def __init__(self, capacity: int, template: Any) -> None:
        super().__init__(template)
        self._leaves: list[Leaf] = list(leaves(template))
        self._columns = [torch.empty(capacity, *leaf.shape, dtype=leaf.dtype) for leaf in self._leaves]
        self._items = [rows_as_items(column) for column in self._columns]

    def write(self, slots: Slots, incoming: Incoming, start: int) -> None:
        """Copy the rows, each as one item: a small part of the time of torch's indexed copies."""
        for stored, rows in zip(self._items, incoming.rows, strict=True):
            stored[slots] = rows_as_items(rows[start : start + len(slots)])

    def read(self, slots: Slots, *, pinned: bool = False) -> Any:
        """Gather the rows, in page-locked memory where that is asked for."""
        index = torch.from_numpy(slots)
        gathered = (_gather(column, index, pinned) for column in self._columns)
        return map_leaves(lambda leaf: _as_given(next(gathered), leaf), self.template)

    def forget(self, slots: Slots) -> None:
        """Do nothing: the memory stays for the next samples."""


def _gather(column: torch.Tensor, index: torch.Tensor, pinned: bool) -> torch.Tensor:
    if not pinned:
        return column.index_select(0, index)
    rows = torch.empty(len(index), *column.shape[1:], dtype=column.dtype, pin_memory=True)
    return torch.index_select(column, 0, index, out=rows)


def _as_given(rows: torch.Tensor, leaf: Leaf) -> Any:
    return rows.numpy() if leaf.is_array else rows


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
