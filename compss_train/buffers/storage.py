"""Storage of samples in slots, and the slots' bookkeeping: free slots and usage counts."""

from collections import Counter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import map_leaves, rebuilt
from compss_train.buffers.samples import SampleBatch
from compss_train.data.block import rows_as_items

Slots: TypeAlias = NDArray[np.intp]
"""Numbers of slots, or positions in an order of slots."""

NO_SLOTS: Slots = np.empty(0, np.intp)


class ObjectStorage:
    """Stores references to Python objects in slots; batches are lists."""

    def __init__(self, capacity: int) -> None:
        self._objects: list[Any] = [None] * capacity

    def write(self, slots: Slots, incoming: SampleBatch, which: slice) -> None:
        """Store references to some of the objects."""
        for slot, value in zip(slots.tolist(), incoming.objects[which], strict=True):
            self._objects[slot] = value

    def read(self, slots: Slots, *, pinned: bool = False) -> list[Any]:
        """Return the objects themselves."""
        return [self._objects[slot] for slot in slots.tolist()]

    def clear(self, slots: Slots) -> None:
        """Drop the references."""
        for slot in slots.tolist():
            self._objects[slot] = None


class ColumnStorage:
    """Stores tensors and arrays in preallocated memory with a row per slot; batches are stacked."""

    def __init__(self, capacity: int, like: SampleBatch) -> None:
        self._template, self._leaves = like.template, like.leaves
        self._columns = {
            path: torch.empty(capacity, *leaf.shape, dtype=leaf.dtype) for path, leaf in like.leaves.items()
        }
        self._items = {path: rows_as_items(column) for path, column in self._columns.items()}

    def write(self, slots: Slots, incoming: SampleBatch, which: slice | NDArray[Any]) -> None:
        """Copy some of the rows into slots.

        Each row is copied as one item, which takes a fraction of the time of torch's indexed copies.
        """
        for path, stored in self._items.items():
            stored[slots] = rows_as_items(incoming.rows[path][which])

    def read(self, slots: Slots, *, pinned: bool = False) -> Any:
        """Return a copy of the rows, in page-locked memory if ``pinned``."""
        index, gathered = torch.from_numpy(slots), []
        for path, column in self._columns.items():
            out = None
            if pinned:
                out = torch.empty(len(index), *column.shape[1:], dtype=column.dtype, pin_memory=True)
            rows = torch.index_select(column, 0, index, out=out)
            gathered.append(rows.numpy() if self._leaves[path].is_array else rows)
        return rebuilt(self._template, gathered)

    def clear(self, slots: Slots) -> None:
        """Do nothing: the memory is reused for the next samples."""


class SampleStore:
    """``capacity`` slots, some of them free. Memory is allocated when the first samples show their structure."""

    def __init__(self, capacity: int, pin_memory: bool) -> None:
        self.capacity = capacity
        self._pin_memory = pin_memory
        self._like: SampleBatch | None = None
        """The first samples' structure, which all others must have."""
        self._storage: ObjectStorage | ColumnStorage = ObjectStorage(0)
        self._free_slots: Slots = np.arange(capacity)[::-1].copy()  # a stack
        self.num_free = capacity
        """Number of free slots."""
        self._times_got = np.zeros(capacity, np.int64)  # of the sample in each slot
        self._removed: Counter[int] = Counter()  # how many samples not held any more were got how often
        self.samples_put = self.samples_got = 0

    def check(self, incoming: SampleBatch) -> None:
        """Raise ``ValueError`` unless the samples are like those put before."""
        if self._like is None:
            self._like = SampleBatch(incoming.template, {path: rows[:0] for path, rows in incoming.rows.items()})
            self._storage = (
                ColumnStorage(self.capacity, incoming) if incoming.rows else ObjectStorage(self.capacity)
            )
        incoming.check_like(self._like)

    def put(self, incoming: SampleBatch, start: int, number: int) -> Slots:
        """Copy ``number`` samples from number ``start`` on into free slots, and return these."""
        slots = self._free_slots[self.num_free - number : self.num_free].copy()
        self._storage.write(slots, incoming, slice(start, start + number))
        self.num_free -= number  # at the end, so that an interrupted put takes no slots
        self.samples_put += number
        return slots

    def read(self, slots: Slots, single: bool = False) -> Any:
        """Return the samples in these slots as a batch, or the ``single`` one, in which numbers are arrays."""
        batch = self._storage.read(slots, pinned=self._pin_memory)
        if not single:
            return batch
        return batch[0] if isinstance(batch, list) else map_leaves(lambda rows: rows[0, ...], batch)

    def remove(self, slots: Slots) -> None:
        """Drop the samples in these slots, and count how often they were got."""
        self._storage.clear(slots)
        self._removed.update(self._times_got[slots].tolist())
        self._times_got[slots] = 0
        self._free_slots[self.num_free : self.num_free + len(slots)] = slots
        self.num_free += len(slots)

    # How often samples were got

    def count_gets(self, slots: Slots) -> None:
        """Count a get for each of these slots; a slot may occur more than once."""
        np.add.at(self._times_got, slots, 1)
        self.samples_got += slots.size

    def times_got(self, slots: Slots) -> NDArray[np.int64]:
        """Return how often the samples in these slots were got."""
        return self._times_got[slots]

    def repetitions(self, held: Slots) -> NDArray[np.int64]:
        """Return how many samples, those in these slots and removed ones, were got 0, 1, 2, ... times."""
        times = self._removed + Counter(self._times_got[held].tolist())
        return np.array([times[number] for number in range(max(times, default=0) + 1)], np.int64)

    # Checkpoints

    def state_dict(self, held: Slots) -> dict[str, Any]:
        """Return the samples in these slots, in order, and all counts."""
        return {
            "samples": self._storage.read(held) if len(held) else [],
            "times_got": self._times_got[held].tolist(),
            "usage": {
                "gone": self.repetitions(NO_SLOTS).tolist(),
                "put": self.samples_put,
                "got": self.samples_got,
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> Slots:
        """Replace the contents by those of ``state_dict``; return the samples' slots, in order."""
        held, usage = len(state["times_got"]), state["usage"]
        vars(self).update(vars(SampleStore(self.capacity, self._pin_memory)))
        slots = NO_SLOTS
        if held:
            incoming = SampleBatch.from_batch(state["samples"])
            self.check(incoming)
            slots = self.put(incoming, 0, held)
            self._times_got[slots] = state["times_got"]
        self._removed = Counter(dict(enumerate(usage["gone"])))
        self.samples_put, self.samples_got = usage["put"], usage["got"]
        return slots
