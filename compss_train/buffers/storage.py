"""``SampleStore``: samples in slots, as rows of memory or as references to objects."""

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import map_leaves, rebuilt
from compss_train.buffers.row_storage import LARGE_BYTES, RowStorage
from compss_train.buffers.samples import NO_KEYS, SampleBatch
from compss_train.data.block import Block
from compss_train.data.block_bytes import rows_as_items

Slots: TypeAlias = NDArray[np.intp]
"""Numbers of slots, or positions in an order of slots."""

NO_SLOTS: Slots = np.empty(0, np.intp)

_SLOT_BYTES = 32
"""What a buffer holds for each slot besides the sample: its numbers and counts."""
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The file with the limit of a container's memory in bytes, or "max"."""


def check_fits(capacity: int, sample_bytes: int = 0) -> None:
    """Raise ``MemoryError`` if this machine's memory does not hold ``capacity`` samples."""
    needed = capacity * (sample_bytes + _SLOT_BYTES)
    available = _machine_bytes()
    if needed > available:
        sizes = f" of {sample_bytes:,} bytes" if sample_bytes else ", whatever their size,"
        raise MemoryError(
            f"capacity={capacity}: so many samples{sizes} need {needed / 2**30:,.1f} GiB, and this "
            f"machine has {available / 2**30:,.1f} GiB; give "
            f"capacity={available // (sample_bytes + _SLOT_BYTES)} at most"
        )


def _machine_bytes() -> int:
    """Return the memory of this machine, or of its container."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # another system, or no limit
        return min(physical, int(_CONTAINER_LIMIT.read_text(encoding="ascii")))
    return physical


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

    def read_one(self, slot: int) -> Any:
        """Return the object itself."""
        return self._objects[slot]

    def clear(self, slots: Slots) -> None:
        """Drop the references."""
        for slot in slots.tolist():
            self._objects[slot] = None


class ColumnStorage:
    """Stores tensors and arrays in preallocated memory with a row per slot; batches are stacked."""

    def __init__(self, capacity: int, like: SampleBatch) -> None:
        self._template = like.template
        self._leaves = like.leaves
        self._columns = {
            path: torch.empty(capacity, *leaf.shape, dtype=leaf.dtype)
            for path, leaf in like.leaves.items()
        }
        self._items = {path: rows_as_items(column) for path, column in self._columns.items()}
        self._arrays = {  # an empty array would become a tensor of other strides
            path: column.numpy()
            for path, column in self._columns.items()
            if column.numel() and self._leaves[path].array_dtype is not None
        }

    def write(self, slots: Slots, incoming: SampleBatch, which: slice | NDArray[Any]) -> None:
        """Copy some of the rows into slots.

        Each row is copied as one item, which takes a fraction of the time of torch's indexed
        copies.
        """
        for path, stored in self._items.items():
            stored[slots] = rows_as_items(incoming.rows[path][which])

    def read_one(self, slot: int) -> Any:
        """Return a copy of the row, in a third of the time of a batch of one.

        Numbers in it are arrays.
        """
        rows: list[Block] = []
        for path, leaf in self._leaves.items():
            array = self._arrays.get(path)
            if array is None:
                row = self._columns[path][slot].clone()
                rows.append(row.numpy() if leaf.is_array else row)
            else:
                copied = array[slot, ...].copy()
                rows.append(copied if leaf.is_array else torch.from_numpy(copied))
        return rebuilt(self._template, rows)

    def read(self, slots: Slots, *, pinned: bool = False) -> Any:
        """Return a copy of the rows, in page-locked memory if ``pinned``."""
        index = torch.from_numpy(slots)
        gathered = list[Block]()
        for path, column in self._columns.items():
            is_array = self._leaves[path].is_array
            # Torch needs up to four times as long, and shares large rows among threads, which then
            # wait in a loop for more of them.
            if path in self._arrays and not pinned:
                taken = self._arrays[path].take(slots, 0)
                gathered.append(taken if is_array else torch.from_numpy(taken))
                continue
            rows = torch.empty(len(index), *column.shape[1:], dtype=column.dtype, pin_memory=pinned)
            torch.index_select(column, 0, index, out=rows)
            gathered.append(rows.numpy() if is_array else rows)
        return rebuilt(self._template, gathered)

    def column(self, name: str, slots: Slots) -> NDArray[Any]:
        """Return what the rows, which are dicts, have under a name."""
        for path, array in self._arrays.items():
            _, _, key = path[-1]
            if key == name:
                rows: NDArray[Any] = array[slots]
                return rows
        raise KeyError(name)

    def clear(self, slots: Slots) -> None:
        """Do nothing: the memory is reused for the next samples."""


class SampleStore:
    """``capacity`` slots, some of them free.

    Memory is allocated when the first samples show their structure, and not at all if they are
    large and handed over.
    """

    def __init__(self, capacity: int, *, pin_memory: bool) -> None:
        self.capacity = capacity
        self._pin_memory = pin_memory
        self.like: SampleBatch | None = None
        """The first samples' structure, which all others must have."""
        self._storage: ObjectStorage | ColumnStorage | RowStorage = ObjectStorage(0)
        self._free_slots: Slots = np.empty(capacity, np.intp)
        """A stack; its first ``num_free`` slots are free."""
        self._unwritten = capacity
        """How many of these were never taken: memory that is not written takes no space."""
        self.num_free = capacity
        """Number of free slots."""
        self.times_got = np.zeros(capacity, np.int64)
        """How often the sample in each slot was got."""
        self._removed: Counter[int] = Counter()
        """How many samples that are not held any more were got how often."""
        self.samples_put = 0
        self.samples_got = 0

    def check(self, incoming: SampleBatch) -> None:
        """Raise ``ValueError`` unless the samples are like those put before.

        Raises ``MemoryError`` if samples of this size do not fit into memory.
        """
        if self.like is None:
            check_fits(self.capacity, incoming.sample_bytes)
            self.like = SampleBatch(incoming.template, {}, leaves=incoming.leaves)
            self._storage = self._make_storage(incoming)
        incoming.check_like(self.like)

    def _make_storage(self, incoming: SampleBatch) -> ObjectStorage | ColumnStorage | RowStorage:
        if not incoming.rows:
            return ObjectStorage(self.capacity)
        # To copy samples into rows takes longer, by the allocation, than into columns.
        largest = max(leaf.nbytes for leaf in incoming.leaves.values())
        if incoming.is_handed_over and largest >= LARGE_BYTES:
            return RowStorage(self.capacity, incoming)
        return ColumnStorage(self.capacity, incoming)

    def put(self, incoming: SampleBatch, start: int, number: int) -> Slots:
        """Store ``number`` samples from number ``start`` on in free slots, and return these."""
        first = self.num_free - number
        if first < self._unwritten:
            fresh = np.arange(first, self._unwritten)
            self._free_slots[fresh] = self.capacity - 1 - fresh
            self._unwritten = first
        slots = self._free_slots[first : self.num_free].copy()
        self._storage.write(slots, incoming, slice(start, start + number))
        self.num_free -= number  # at the end, so that an interrupted put takes no slots
        self.samples_put += number
        return slots

    def read(self, slots: Slots) -> Any:
        """Return the samples in these slots as a batch."""
        return self._storage.read(slots, pinned=self._pin_memory)

    def read_one(self, slot: int) -> Any:
        """Return the sample in a slot."""
        if not self._pin_memory:
            return self._storage.read_one(slot)
        batch = self.read(np.array([slot], np.intp))
        return batch[0] if isinstance(batch, list) else map_leaves(lambda rows: rows[0, ...], batch)

    def remove(self, slots: Slots) -> None:
        """Drop the samples in these slots, and count how often they were got."""
        self._storage.clear(slots)
        self._removed.update(self.times_got[slots].tolist())
        self.times_got[slots] = 0
        self._free_slots[self.num_free : self.num_free + len(slots)] = slots
        self.num_free += len(slots)

    def column(self, name: str, slots: Slots) -> NDArray[Any]:
        """Return what the samples in these slots, dicts, have under a name."""
        if isinstance(self._storage, ObjectStorage):
            return NO_KEYS
        return self._storage.column(name, slots)

    # How often samples were got

    def count_gets(self, slots: Slots) -> None:
        """Count a get for each of these slots; a slot may occur more than once."""
        if len(slots) == 1:
            self.times_got[slots[0]] += 1
        else:
            np.add.at(self.times_got, slots, 1)
        self.samples_got += slots.size

    def repetitions(self, held: Slots) -> NDArray[np.int64]:
        """Return how many samples were got 0, 1, 2, ... times.

        They are those in the slots ``held``, and those that were removed.
        """
        counts = self._removed + Counter(self.times_got[held].tolist())
        most = max(counts, default=0)
        return np.array([counts[times] for times in range(most + 1)], np.int64)

    # Checkpoints

    def state_dict(self, held: Slots) -> dict[str, Any]:
        """Return the samples in these slots, in order, and all counts."""
        return {
            "samples": self._storage.read(held) if len(held) else [],
            "times_got": self.times_got[held].tolist(),
            "usage": {
                "gone": self.repetitions(NO_SLOTS).tolist(),
                "put": self.samples_put,
                "got": self.samples_got,
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> Slots:
        """Replace the contents by those of ``state_dict``; return the samples' slots, in order."""
        held = len(state["times_got"])
        usage = state["usage"]
        vars(self).update(vars(SampleStore(self.capacity, pin_memory=self._pin_memory)))
        slots = NO_SLOTS
        if held:
            incoming = SampleBatch.from_batch(state["samples"])
            self.check(incoming)
            slots = self.put(incoming, 0, held)
            self.times_got[slots] = state["times_got"]
        self._removed = Counter(dict(enumerate(usage["gone"])))
        self.samples_put = usage["put"]
        self.samples_got = usage["got"]
        return slots
