"""Samples in slots: nested tuples and dicts of tensors and arrays, as puts bring them, and their
storage.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import map_leaves, rebuilt, template_of
from compss_train._utils.validation import check_dense
from compss_train.data.block import Block, as_tensor, check_dtype, concatenate, rows_as_items

Slots: TypeAlias = NDArray[np.intp]
"""Numbers of slots, or positions in an order of slots."""

NO_SLOTS: Slots = np.empty(0, np.intp)

_MANY = 1000
"""Rows from which numpy's memory is faster."""

NO_KEYS = np.empty((0, 2), np.int64)

Path: TypeAlias = tuple[tuple[Any, int, Any], ...]
"""Where a leaf is in nested tuples and dicts: the type and length of each of them, and the index or
key in it.
"""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The dtype and shape of one leaf of a sample, which all samples share."""

    is_array: bool
    """Whether the leaf is a numpy array, and is returned as one, rather than a tensor."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    array_dtype: np.dtype[Any] | None
    """The dtype in numpy, or ``None`` for a dtype that numpy lacks."""

    def __repr__(self) -> str:
        return (
            f"{'array' if self.is_array else 'tensor'} of "
            f"{str(self.dtype).removeprefix('torch.')} {self.shape}"
        )

    @classmethod
    def of(cls, rows: Block) -> Self:
        """Return the leaf that describes each of these rows."""
        none = as_tensor(rows[:0])
        array_dtype = None
        with suppress(TypeError):
            array_dtype = none.numpy().dtype
        return cls(isinstance(rows, np.ndarray), none.dtype, tuple(rows.shape[1:]), array_dtype)

    def rows_of(self, value: Any, *, stacked: bool) -> NDArray[Any] | None:
        """Return a value like this leaf, or ``stacked`` ones, as rows that share its memory; others
        as ``None``.
        """
        if (
            type(value) is not (np.ndarray if self.is_array else torch.Tensor)
            or self.array_dtype is None
        ):
            return None
        try:
            array: NDArray[Any] = value.numpy() if isinstance(value, torch.Tensor) else value
        except (
            RuntimeError,
            TypeError,
        ):  # on another device, not dense, lazily conjugated, or requires gradients
            return None
        rows = array if stacked else array[None]
        is_like = (
            rows.dtype == self.array_dtype
            and rows.shape[1:] == self.shape
            and rows.ndim > len(self.shape)
        )
        return rows if is_like else None


def leaves_by_path(value: Any, path: Path = ()) -> dict[Path, Any]:
    """Return the leaves of nested tuples and dicts by their paths; anything else, such as a list,
    is a leaf.
    """
    if not isinstance(value, tuple | dict):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    inner = (leaves_by_path(item, (*path, (type(value), len(value), name))) for name, item in items)
    return {place: leaf for each in inner for place, leaf in each.items()}


def _stored(leaf: Any) -> Block | None:
    """Return a leaf in its stored form, on the CPU and detached, or ``None`` for what is no array
    or number.
    """
    with suppress(TypeError):
        if isinstance(leaf, torch.Tensor):
            check_dense("a sample", leaf)
            return leaf.detach().cpu().resolve_conj().resolve_neg()
        # Other subclasses of arrays have more than values: masks, units.
        if type(leaf) in (np.ndarray, np.memmap) or isinstance(leaf, np.generic):
            check_dtype(leaf.dtype)
            return np.asarray(leaf)
        if isinstance(leaf, bool | int | float | complex):
            return torch.tensor(leaf)
    return None


def _dense(value: Any) -> dict[Path, Block]:
    """Return the leaves in their stored form; none if one is no array, or if all are numbers."""
    parts = leaves_by_path(value)
    if not any(isinstance(part, torch.Tensor | np.ndarray) for part in parts.values()):
        return {}
    rows = {path: _stored(part) for path, part in parts.items()}
    known = {path: row for path, row in rows.items() if row is not None}
    return known if len(known) == len(rows) else {}


class DifferentSampleError(ValueError):
    """A sample has another structure, shape or dtype than others: both are given by their
    leaves.
    """

    def __init__(self, given: Any, others: Any) -> None:
        super().__init__(given, others)
        self.given = given
        self.others = others

    def __str__(self) -> str:
        return (
            f"a sample of {self.given} among samples of {self.others}: a buffer stacks samples "
            "of one structure, shape and dtype; to store samples that differ, put each of them "
            "in a list"
        )


@dataclass
class SampleBatch:
    """The samples of one put: rows for each leaf of their structure, or a list of any objects."""

    template: Any
    """The tuples and dicts of a sample, with ``None`` for each leaf."""
    rows: Mapping[Path, Block]
    """The rows of each leaf; empty for objects."""
    objects: Sequence[Any] = ()
    keys: NDArray[np.int64] = field(default_factory=lambda: NO_KEYS)
    """Simulation and time step of each sample, for buffers that pair samples."""
    leaves: Mapping[Path, Leaf] = field(default_factory=dict)
    """What all samples share; found in the rows unless it is given."""

    def __post_init__(self) -> None:
        self.leaves = self.leaves or {path: Leaf.of(rows) for path, rows in self.rows.items()}
        self._length = len(next(iter(self.rows.values()), self.objects))

    def __len__(self) -> int:
        return self._length

    @classmethod
    def from_sample(cls, sample: Any, like: "SampleBatch | None" = None) -> Self:
        """Return a batch of one sample, in a third of the time if it is ``like`` earlier ones."""
        if like is not None and (known := like.rows_like(sample, stacked=False)):
            return cls(like.template, known, leaves=like.leaves)
        rows = {path: row[None] for path, row in _dense(sample).items()}
        return cls(template_of(sample), rows) if rows else cls(None, {}, [sample])

    @classmethod
    def from_batch(cls, samples: Any, like: "SampleBatch | None" = None) -> Self:
        """Return a batch of a list of samples, or of stacked samples as a buffer's batches are.

        Stacked samples ``like`` earlier ones take half of the time.
        """
        if like is not None and (known := like.rows_like(samples, stacked=True)):
            return cls(like.template, known, leaves=like.leaves)
        if isinstance(samples, list):
            parts = [cls.from_sample(sample, like) for sample in samples]
            for part in parts:
                part.check_like(parts[0])
            first = parts[0].rows if parts else {}
            rows = {path: concatenate([part.rows[path] for part in parts]) for path in first}
            return (
                cls(parts[0].template, rows, leaves=parts[0].leaves)
                if rows
                else cls(None, {}, samples.copy())
            )
        rows = _dense(samples)
        if not rows:
            raise TypeError(
                f"samples={type(samples).__name__}: give a list of samples, or tensors and "
                "arrays (also in tuples and dicts) whose first dimension is that of the samples"
            )
        if len({row.shape[:1] for row in rows.values()}) > 1 or not all(
            row.ndim for row in rows.values()
        ):
            shapes = ", ".join(str(tuple(row.shape)) for row in rows.values())
            raise ValueError(
                f"stacked samples need the same first dimension in every part, not {shapes}"
            )
        return cls(template_of(samples), rows)

    def rows_like(self, sample: Any, *, stacked: bool) -> dict[Path, Block]:
        """Return the rows of each leaf, or nothing for another structure, shape or dtype, or number
        of rows.
        """
        rows: dict[Path, Block] = {}
        for path, leaf in self.leaves.items():
            value: Any = sample
            for kind, length, name in path:
                if (
                    type(value) is not kind
                    or len(value) != length
                    or (issubclass(kind, dict) and name not in value)
                ):
                    return {}
                value = value[name]
            if (own := leaf.rows_of(value, stacked=stacked)) is None:
                return {}
            rows[path] = own
        return rows if len({len(own) for own in rows.values()}) == 1 else {}

    def check_like(self, other: "SampleBatch") -> None:
        """Raise ``ValueError`` unless samples of both are objects, or of one structure, shape and
        dtype.
        """
        if self.leaves != other.leaves:
            given, others = (
                rebuilt(each.template, each.leaves.values()) if each.leaves else "other objects"
                for each in (self, other)
            )
            raise DifferentSampleError(given, others)


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
        """Return a copy of the row, in which numbers are arrays; in a third of the time of a batch
        of one.
        """
        rows: list[Block] = []
        for path, leaf in self._leaves.items():
            array = self._arrays.get(path)
            row = self._columns[path][slot].clone() if array is None else array[slot, ...].copy()
            if leaf.is_array:
                rows.append(row if isinstance(row, np.ndarray) else row.numpy())
            else:
                rows.append(torch.from_numpy(row) if isinstance(row, np.ndarray) else row)
        return rebuilt(self._template, rows)

    def read(self, slots: Slots, *, pinned: bool = False) -> Any:
        """Return a copy of the rows, in page-locked memory if ``pinned``."""
        index = torch.from_numpy(slots)
        gathered = list[Block]()
        for path, column in self._columns.items():
            is_array = self._leaves[path].is_array
            # numpy takes a few numbers in a tenth of the time, and many rows, in huge pages, in
            # half.
            if (is_array or len(slots) > _MANY) and not pinned and path in self._arrays:
                taken = self._arrays[path].take(slots, 0)
                gathered.append(taken if is_array else torch.from_numpy(taken))
                continue
            rows = torch.empty(len(index), *column.shape[1:], dtype=column.dtype, pin_memory=pinned)
            torch.index_select(column, 0, index, out=rows)
            gathered.append(rows.numpy() if is_array else rows)
        return rebuilt(self._template, gathered)

    def column(self, name: str, slots: Slots) -> NDArray[Any]:
        """Return one array of the rows, which are dicts."""
        rows: NDArray[Any] = next(
            each for path, each in self._arrays.items() if path[-1][2] == name
        )[slots]
        return rows

    def clear(self, slots: Slots) -> None:
        """Do nothing: the memory is reused for the next samples."""


class SampleStore:
    """``capacity`` slots, some of them free. Memory is allocated when the first samples show their
    structure.
    """

    def __init__(self, capacity: int, pin_memory: bool) -> None:
        self.capacity = capacity
        self._pin_memory = pin_memory
        self.like: SampleBatch | None = None
        """The first samples' structure, which all others must have."""
        self._storage: ObjectStorage | ColumnStorage = ObjectStorage(0)
        self._free_slots: Slots = np.arange(capacity)[::-1].copy()  # a stack
        self.num_free = capacity
        """Number of free slots."""
        self.times_got = np.zeros(capacity, np.int64)
        """How often the sample in each slot was got."""
        # How many samples not held any more were got how often.
        self._removed: Counter[int] = Counter()
        self.samples_put = self.samples_got = 0

    def check(self, incoming: SampleBatch) -> None:
        """Raise ``ValueError`` unless the samples are like those put before."""
        if self.like is None:
            none = {path: rows[:0] for path, rows in incoming.rows.items()}
            self.like = SampleBatch(incoming.template, none, leaves=incoming.leaves)
            self._storage = (
                ColumnStorage(self.capacity, incoming)
                if incoming.rows
                else ObjectStorage(self.capacity)
            )
        incoming.check_like(self.like)

    def put(self, incoming: SampleBatch, start: int, number: int) -> Slots:
        """Copy ``number`` samples from number ``start`` on into free slots, and return these."""
        slots = self._free_slots[self.num_free - number : self.num_free].copy()
        self._storage.write(slots, incoming, slice(start, start + number))
        self.num_free -= number  # at the end, so that an interrupted put takes no slots
        self.samples_put += number
        return slots

    def read(self, slots: Slots, single: bool = False) -> Any:
        """Return the samples in these slots as a batch, or the ``single`` one."""
        if single and not self._pin_memory:
            return self._storage.read_one(int(slots[0]))
        batch = self._storage.read(slots, pinned=self._pin_memory)
        if not single:
            return batch
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
        return (
            self._storage.column(name, slots)
            if isinstance(self._storage, ColumnStorage)
            else NO_KEYS
        )

    # How often samples were got

    def count_gets(self, slots: Slots) -> None:
        """Count a get for each of these slots; a slot may occur more than once."""
        if len(slots) == 1:
            self.times_got[slots[0]] += 1
        else:
            np.add.at(self.times_got, slots, 1)
        self.samples_got += slots.size

    def repetitions(self, held: Slots) -> NDArray[np.int64]:
        """Return how many samples, those in these slots and removed ones, were got 0, 1, 2, ...
        times.
        """
        times = self._removed + Counter(self.times_got[held].tolist())
        return np.array([times[number] for number in range(max(times, default=0) + 1)], np.int64)

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
        vars(self).update(vars(SampleStore(self.capacity, self._pin_memory)))
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
