"""Storage: where a buffer keeps samples, by slot; knows nothing of which slots are held."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from compss_train.buffers.incoming import Incoming, check_same
from compss_train.buffers.slots import Slots
from compss_train.buffers.structure import Leaf, leaves, map_leaves
from compss_train.data.block import rows_as_items


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
