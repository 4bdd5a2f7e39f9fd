"""Storage of samples in slots, and the slots' bookkeeping: free slots and usage counts."""

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.buffers.samples import Leaf, SampleBatch, check_same_structure, leaves, map_leaves
from compss_train.data.block import rows_as_items

Slots: TypeAlias = NDArray[np.intp]
"""Numbers of slots, or positions in an order of slots."""

NO_SLOTS: Slots = np.empty(0, np.intp)
NO_COUNTS = np.empty(0, np.int64)
_MOST_UNCOUNTED = 1000


class ObjectStorage:
    """Stores references to Python objects in slots; batches are lists."""

    template = None

    def __init__(self, capacity: int) -> None:
        self._objects: list[Any] = [None] * capacity

    def write(self, slots: Slots, incoming: SampleBatch, start: int) -> None:
        """Store references to the objects from number ``start`` on."""
        for number, slot in enumerate(slots.tolist(), start):
            self._objects[slot] = incoming.objects[number]

    def read(self, slots: Slots, *, single: bool = False, pinned: bool = False) -> Any:
        """Return the objects themselves, or the single one."""
        return self._objects[slots[0]] if single else [self._objects[slot] for slot in slots.tolist()]

    def clear(self, slots: Slots) -> None:
        """Drop the references."""
        for slot in slots.tolist():
            self._objects[slot] = None


class ColumnStorage:
    """Stores tensors and arrays in preallocated memory with a row per slot; batches are stacked."""

    def __init__(self, capacity: int, template: Any) -> None:
        self.template = template
        parts: list[Leaf] = list(leaves(template))
        self._columns = [torch.empty(capacity, *leaf.shape, dtype=leaf.dtype) for leaf in parts]
        self._arrays = [  # an empty array would become a tensor of other strides
            None if leaf.array_dtype is None or not column.numel() else column.numpy()
            for leaf, column in zip(parts, self._columns, strict=True)
        ]
        self._items = [rows_as_items(column) for column in self._columns]

    def write(self, slots: Slots, incoming: SampleBatch, start: int) -> None:
        """Copy rows from number ``start`` on into slots. Other slots may be read at the same time.

        Each row is copied as one item, which takes a fraction of the time of torch's indexed copies.
        """
        for stored, rows in zip(self._items, incoming.rows, strict=True):
            stored[slots] = rows_as_items(rows[start : start + len(slots)])

    def read(self, slots: Slots, *, single: bool = False, pinned: bool = False) -> Any:
        """Return a copy of the rows, in page-locked memory if ``pinned``, or of the single one.

        Leaves without dimensions are returned as arrays.
        """
        if single:
            slot = int(slots[0])
            rows = [  # copying by numpy takes a third of the time
                column[slot].clone() if array is None else torch.from_numpy(array[slot, ...].copy())
                for column, array in zip(self._columns, self._arrays, strict=True)
            ]
            parts = iter([row.pin_memory() for row in rows] if pinned else rows)
        else:
            index, gathered = torch.from_numpy(slots), []
            for column in self._columns:
                if pinned:
                    out = torch.empty(len(index), *column.shape[1:], dtype=column.dtype, pin_memory=True)
                    gathered.append(torch.index_select(column, 0, index, out=out))
                else:
                    gathered.append(column.index_select(0, index))
            parts = iter(gathered)
        return map_leaves(lambda leaf: next(parts).numpy() if leaf.is_array else next(parts), self.template)

    def clear(self, slots: Slots) -> None:
        """Do nothing: the memory is reused for the next samples."""


class SampleStore:
    """``capacity`` slots, some of them free. Memory is allocated when the first samples show their structure."""

    def __init__(self, capacity: int, pin_memory: bool) -> None:
        self.capacity = capacity
        self._pin_memory = pin_memory
        self._storage: ObjectStorage | ColumnStorage | None = None
        self._free_slots: Slots = np.arange(capacity)[::-1].copy()  # a stack
        self.num_free = capacity
        """Number of free slots."""
        self._times_got = np.zeros(capacity, np.int64)  # of the sample in each slot
        self._removed = np.zeros(1, np.int64)  # of samples not held any more, a histogram
        self._uncounted: list[NDArray[np.int64]] = []  # counts that are not in the histogram yet
        self.samples_put = self.samples_got = 0

    @property
    def template(self) -> Any:
        """The structure of the samples; ``None`` for objects, and before the first put."""
        return None if self._storage is None else self._storage.template

    def check(self, incoming: SampleBatch) -> None:
        """Raise ``ValueError`` unless the samples are like those put before."""
        if self._storage is None:
            are_objects = incoming.template is None
            self._storage = (
                ObjectStorage(self.capacity) if are_objects else ColumnStorage(self.capacity, incoming.template)
            )
        if incoming.template is not self._storage.template:
            check_same_structure(incoming.template, self._storage.template)

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

    def read(self, slots: Slots, single: bool = False) -> Any:
        """Return the samples in these slots as a batch, or the ``single`` one; ``None`` before the first put."""
        return None if self._storage is None else self._storage.read(slots, single=single, pinned=self._pin_memory)

    def release(self, slots: Slots) -> None:
        """Drop the contents of these slots, which no thread reads, and make them free."""
        if len(slots) and self._storage is not None:
            self._storage.clear(slots)
            self.free(slots)

    # How often samples were got

    def count_gets(self, slots: Slots) -> None:
        """Count a get for each of these slots; a slot may occur more than once."""
        if slots.size == 1:
            self._times_got[slots[0]] += 1  # in a fifth of the time
        else:
            np.add.at(self._times_got, slots, 1)
        self.samples_got += slots.size

    def count_removals(self, slots: Slots) -> None:
        """Count the samples in these slots as removed."""
        if len(slots):
            self._uncounted.append(self._times_got[slots])
            self._times_got[slots] = 0
            if len(self._uncounted) == _MOST_UNCOUNTED:  # many take little more time than one
                self.repetitions(NO_SLOTS)

    def times_got(self, slots: Slots) -> NDArray[np.int64]:
        """Return how often the samples in these slots were got."""
        return self._times_got[slots]

    def repetitions(self, held: Slots) -> NDArray[np.int64]:
        """Return how many samples, those in these slots and removed ones, were got 0, 1, 2, ... times."""
        self._removed = _add_to_histogram(self._removed, np.concatenate([NO_COUNTS, *self._uncounted]))
        self._uncounted.clear()
        return _add_to_histogram(self._removed, self._times_got[held])

    # Checkpoints

    def state_dict(self, held: Slots) -> dict[str, Any]:
        """Return the samples in these slots, in order, and all counts."""
        removed = self.repetitions(NO_SLOTS)
        return {
            "samples": self._storage.read(held) if self._storage is not None and len(held) else [],
            "times_got": self._times_got[held].tolist(),
            "usage": {"gone": removed.tolist(), "put": self.samples_put, "got": self.samples_got},
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
        self._times_got[:] = 0
        self._times_got[slots] = state["times_got"]
        self._removed = np.array(state["usage"]["gone"], np.int64)
        self._uncounted.clear()
        self.samples_put, self.samples_got = state["usage"]["put"], state["usage"]["got"]
        return slots


def _add_to_histogram(histogram: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    added = np.bincount(times, minlength=len(histogram))
    added[: len(histogram)] += histogram
    return added
