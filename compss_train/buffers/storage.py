"""Storage of samples in slots, and the slots' bookkeeping: free slots, usage counts, unseen and seen slots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.buffers.samples import Leaf, SampleBatch, check_same_structure, leaves, map_leaves
from compss_train.data.block import rows_as_items

Slots: TypeAlias = NDArray[np.intp]
"""Numbers of slots, or positions in an order of slots."""

NO_SLOTS: Slots = np.empty(0, np.intp)


class UsageCounts:
    """How often samples were got: counts by slot for the samples held, and one histogram for removed samples."""

    def __init__(self, capacity: int) -> None:
        self._times = np.zeros(capacity, np.int64)
        self._removed = np.zeros(1, np.int64)
        self.samples_put = 0
        self.samples_got = 0

    def count_gets(self, slots: Slots) -> None:
        """Count a get for each of these slots; a slot may occur more than once."""
        np.add.at(self._times, slots, 1)
        self.samples_got += slots.size

    def remove(self, slots: Slots) -> None:
        """Move the counts of these slots to the histogram of removed samples."""
        self._removed = _add_to_histogram(self._removed, self._times[slots])
        self._times[slots] = 0

    def times_got(self, slots: Slots) -> NDArray[np.int64]:
        """Return the counts of these slots."""
        return self._times[slots]

    def histogram(self, held: Slots) -> NDArray[np.int64]:
        """Return how many samples, held or removed, were got 0, 1, 2, ... times."""
        return _add_to_histogram(self._removed, self._times[held])

    def state_dict(self) -> dict[str, Any]:
        """Return all counts except those of the samples held."""
        return {"gone": self._removed.tolist(), "put": self.samples_put, "got": self.samples_got}

    def load_state_dict(self, state: dict[str, Any], slots: Slots, times: list[int]) -> None:
        """Restore the counts of ``state_dict``, and ``times``, those of the samples held in ``slots``."""
        self._times[:] = 0
        self._times[slots] = times
        self._removed = np.array(state["gone"], np.int64)
        self.samples_put, self.samples_got = state["put"], state["got"]


def _add_to_histogram(histogram: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    added = np.bincount(times, minlength=len(histogram))
    added[: len(histogram)] += histogram
    return added


class Storage(ABC):
    """A slot for each sample that the buffer can hold."""

    def __init__(self, template: Any) -> None:
        self.template = template

    def check(self, incoming: SampleBatch) -> None:
        """Raise ``ValueError`` unless the samples have the structure, shape and dtype of the first one."""
        check_same_structure(incoming.template, self.template)

    @abstractmethod
    def write(self, slots: Slots, incoming: SampleBatch, start: int) -> None:
        """Copy samples from number ``start`` on into slots. Other slots may be read at the same time."""

    @abstractmethod
    def read(self, slots: Slots, *, pinned: bool = False) -> Any:
        """Return a batch of the samples in these slots that shares no memory with the storage."""

    @abstractmethod
    def clear(self, slots: Slots) -> None:
        """Drop the contents of these slots."""

    @staticmethod
    def of(incoming: SampleBatch, capacity: int) -> Storage:
        """Return an empty storage for samples of this structure, shape and dtype."""
        if incoming.objects is not None:
            return ObjectStorage(capacity)
        return ColumnStorage(capacity, incoming.template)


class ObjectStorage(Storage):
    """Stores references to Python objects; batches are lists."""

    def __init__(self, capacity: int) -> None:
        super().__init__(None)
        self._objects: list[Any] = [None] * capacity

    def write(self, slots: Slots, incoming: SampleBatch, start: int) -> None:
        """Store references to the objects."""
        for number, slot in enumerate(slots.tolist(), start):
            self._objects[slot] = (incoming.objects or [])[number]

    def read(self, slots: Slots, *, pinned: bool = False) -> list[Any]:
        """Return the objects themselves."""
        return [self._objects[slot] for slot in slots.tolist()]

    def clear(self, slots: Slots) -> None:
        """Drop the references."""
        for slot in slots.tolist():
            self._objects[slot] = None


class ColumnStorage(Storage):
    """Stores tensors and arrays in preallocated memory with a row per slot; batches are stacked."""

    def __init__(self, capacity: int, template: Any) -> None:
        super().__init__(template)
        self._leaves: list[Leaf] = list(leaves(template))
        self._columns = [torch.empty(capacity, *leaf.shape, dtype=leaf.dtype) for leaf in self._leaves]
        self._items = [rows_as_items(column) for column in self._columns]

    def write(self, slots: Slots, incoming: SampleBatch, start: int) -> None:
        """Copy the rows, each as one item, which takes a fraction of the time of torch's indexed copies."""
        for stored, rows in zip(self._items, incoming.rows, strict=True):
            stored[slots] = rows_as_items(rows[start : start + len(slots)])

    def read(self, slots: Slots, *, pinned: bool = False) -> Any:
        """Gather the rows, in page-locked memory if ``pinned``."""
        index = torch.from_numpy(slots)
        gathered = (_gather(column, index, pinned) for column in self._columns)
        return map_leaves(lambda leaf: _as_stored_type(next(gathered), leaf), self.template)

    def clear(self, slots: Slots) -> None:
        """Do nothing: the memory is reused for the next samples."""


def _gather(column: torch.Tensor, index: torch.Tensor, pinned: bool) -> torch.Tensor:
    if not pinned:
        return column.index_select(0, index)
    rows = torch.empty(len(index), *column.shape[1:], dtype=column.dtype, pin_memory=True)
    return torch.index_select(column, 0, index, out=rows)


def _as_stored_type(rows: torch.Tensor, leaf: Leaf) -> Any:
    return rows.numpy() if leaf.is_array else rows


class SampleStore:
    """``capacity`` slots, some of them free. Memory is allocated when the first samples show their structure."""

    def __init__(self, capacity: int, pin_memory: bool) -> None:
        self.capacity = capacity
        self.usage = UsageCounts(capacity)
        self._pin_memory = pin_memory
        self._storage: Storage | None = None
        self._free_slots: Slots = np.arange(capacity)[::-1].copy()  # a stack
        self.num_free = capacity
        """Number of free slots."""

    def check(self, incoming: SampleBatch) -> None:
        """Raise ``ValueError`` unless the samples are like those put before."""
        if self._storage is None:
            self._storage = Storage.of(incoming, self.capacity)
        self._storage.check(incoming)

    def allocate(self, number: int) -> Slots:
        """Return ``number`` free slots, which are then in use."""
        self.num_free -= number
        return self._free_slots[self.num_free : self.num_free + number].copy()

    def free(self, slots: Slots) -> None:
        """Make slots free."""
        self._free_slots[self.num_free : self.num_free + len(slots)] = slots
        self.num_free += len(slots)

    def write(self, slots: Slots, incoming: SampleBatch, start: int) -> None:
        """Copy samples from number ``start`` on into slots that no other thread uses."""
        if self._storage is not None:
            self._storage.write(slots, incoming, start)

    def read(self, slots: Slots) -> Any:
        """Return the samples in these slots as a batch; ``None`` before the first put."""
        return None if self._storage is None else self._storage.read(slots, pinned=self._pin_memory)

    def release(self, slots: Slots) -> None:
        """Drop the contents of these slots, which no thread reads, and make them free."""
        if len(slots) and self._storage is not None:
            self._storage.clear(slots)
            self.free(slots)

    def state_dict(self, held: Slots) -> dict[str, Any]:
        """Return the samples in these slots, in order, and all counts."""
        return {
            "samples": self._storage.read(held) if self._storage is not None and len(held) else [],
            "times_got": self.usage.times_got(held).tolist(),
            "usage": self.usage.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> Slots:
        """Replace the contents by those of ``state_dict``; return the samples' slots, in order."""
        held = len(state["times_got"])
        self._free_slots, self.num_free = np.arange(self.capacity)[::-1].copy(), self.capacity
        self._storage = None
        slots = self.allocate(held)
        if held:
            incoming = SampleBatch.from_batch(state["samples"])
            self.check(incoming)
            self.write(slots, incoming, 0)
        self.usage.load_state_dict(state["usage"], slots, state["times_got"])
        return slots


class SlotPartition:
    """The held slots in an array: unseen slots first (up to ``unseen``), then seen slots (up to ``held``).

    The order within both sections is arbitrary. Random choices (any held sample, an unseen one, one to evict) are
    choices of positions in this array. All operations take time proportional to the number of chosen samples.
    """

    def __init__(self, capacity: int) -> None:
        self._order: Slots = np.empty(capacity, np.intp)
        self._marks: Slots = np.empty(capacity, np.intp)
        self.unseen = 0
        self.held = 0

    @classmethod
    def of(cls, capacity: int, slots: Slots, unseen: int) -> SlotPartition:
        """Return a partition that holds these slots, the first ``unseen`` of them unseen."""
        partition = cls(capacity)
        partition._order[: len(slots)] = slots
        partition.unseen, partition.held = unseen, len(slots)
        return partition

    @property
    def seen(self) -> int:
        """Number of held samples that were got before."""
        return self.held - self.unseen

    def at(self, positions: Slots) -> Slots:
        """Return the slots at these positions."""
        slots: Slots = self._order[positions]
        return slots

    def all(self) -> Slots:
        """Return all held slots, the unseen ones first."""
        return self._order[: self.held].copy()

    def add(self, slots: Slots) -> None:
        """Add these slots as unseen."""
        stop = self.unseen + len(slots)
        displaced = self._order[self.unseen : min(stop, self.held)].copy()
        self._order[self.unseen : stop] = slots
        self.unseen, self.held = stop, self.held + len(slots)
        self._order[self.held - len(displaced) : self.held] = displaced

    def mark_seen(self, positions: Slots) -> None:
        """Mark the slots at these positions as seen; a position may occur more than once."""
        new = positions[positions < self.unseen]
        if len(new):
            new = self._distinct(new)
            self._move_last(new, self.unseen)
            self.unseen -= len(new)

    def mark_all_unseen(self) -> None:
        """Mark all slots as unseen."""
        self.unseen = self.held

    def remove(self, positions: Slots) -> None:
        """Remove the slots at these positions, each given once."""
        is_unseen = positions < self.unseen
        unseen = positions[is_unseen]
        if len(unseen):
            self._move_last(unseen, self.unseen)
            self.unseen -= len(unseen)
        if self.unseen + len(unseen) < self.held:  # seen slots follow
            moved = np.arange(self.unseen, self.unseen + len(unseen))
            self._move_last(np.concatenate([moved, positions[~is_unseen]]), self.held)
        self.held -= len(positions)

    def _distinct(self, positions: Slots) -> Slots:
        """Return each of these positions once; cheaper than sorting them."""
        numbers = np.arange(len(positions))
        self._marks[positions] = numbers
        distinct: Slots = positions[self._marks[positions] == numbers]
        return distinct

    def _move_last(self, positions: Slots, stop: int) -> None:
        """Swap slots so that those at these positions come last before ``stop``."""
        start = stop - len(positions)
        is_hole = positions < start
        moves_out = np.ones(len(positions), bool)
        moves_out[positions[~is_hole] - start] = False
        holes, tail = positions[is_hole], start + moves_out.nonzero()[0]
        self._order[holes], self._order[tail] = self._order[tail], self._order[holes]
