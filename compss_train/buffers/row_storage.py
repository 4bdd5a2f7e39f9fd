"""``RowStorage``: large samples in slots, whose rows have memory of their own."""

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import map_leaves, rebuilt
from compss_train.buffers.samples import Leaf, SampleBatch
from compss_train.data.block import Block
from compss_train.data.block_bytes import rows_of_bytes

LARGE_BYTES = 2**18
"""Size from which a row that is handed over is kept, and from which samples have rows."""

_Rows: TypeAlias = tuple[NDArray[np.uint8], ...]
"""The bytes of a sample's leaves."""


class RowStorage:
    """Stores each row of large samples as memory of its own; batches are stacked.

    Rows that a put hands over are kept as they are, without a copy, and freed when they are
    removed. The memory of copies is used again: memory that is new to the process takes as long as
    a copy.
    """

    def __init__(self, capacity: int, like: SampleBatch) -> None:
        self._template = like.template
        self._leaves = like.leaves
        self._samples: list[_Rows] = [()] * capacity
        self._unused: list[_Rows] = []
        """Copies of samples that were removed."""

    def write(self, slots: NDArray[np.intp], incoming: SampleBatch, which: slice) -> None:
        """Store some of the rows: copies, or large ones that are handed over."""
        columns = [rows_of_bytes(rows[which]) for rows in incoming.rows.values()]
        for slot, rows in zip(slots.tolist(), zip(*columns, strict=True), strict=True):
            if incoming.is_handed_over:
                self._samples[slot] = tuple(
                    row if row.nbytes >= LARGE_BYTES else row.copy() for row in rows
                )
            else:
                self._samples[slot] = self._copied(rows)

    def _copied(self, rows: _Rows) -> _Rows:
        """Return a copy of a sample."""
        if not self._unused:
            return tuple(row.copy() for row in rows)
        copies = self._unused.pop()
        for copy, row in zip(copies, rows, strict=True):
            copy[:] = row
        return copies

    def read(self, slots: NDArray[np.intp], *, pinned: bool = False) -> Any:
        """Return a copy of the rows, in page-locked memory if ``pinned``."""
        samples = [self._samples[slot] for slot in slots.tolist()]
        gathered: list[Block] = []
        for leaf, rows in zip(self._leaves.values(), zip(*samples, strict=True), strict=True):
            stacked = _stacked(leaf, rows, pinned=pinned)
            gathered.append(stacked.numpy() if leaf.is_array else stacked)
        return rebuilt(self._template, gathered)

    def read_one(self, slot: int) -> Any:
        """Return a copy of the row; numbers in it are arrays."""
        return map_leaves(lambda rows: rows[0, ...], self.read(np.array([slot], np.intp)))

    def column(self, name: str, slots: NDArray[np.intp]) -> NDArray[Any]:
        """Return what the rows, which are dicts, have under a name."""
        for place, (path, leaf) in enumerate(self._leaves.items()):
            _, _, key = path[-1]
            if key == name:
                rows = tuple(self._samples[slot][place] for slot in slots.tolist())
                return np.asarray(_stacked(leaf, rows, pinned=False).numpy())
        raise KeyError(name)

    def clear(self, slots: NDArray[np.intp]) -> None:
        """Drop the rows; free those that were handed over, unless others use them."""
        for slot in slots.tolist():
            rows = self._samples[slot]
            if rows and all(row.flags.owndata for row in rows):
                self._unused.append(rows)
            self._samples[slot] = ()


def _stacked(leaf: Leaf, rows: _Rows, *, pinned: bool) -> torch.Tensor:
    """Return a tensor of rows that are given by their bytes."""
    shape = (len(rows), *leaf.shape)
    if pinned or not leaf.nbytes or not rows:
        stacked = torch.empty(shape, dtype=leaf.dtype, pin_memory=pinned)
    else:
        # Numpy requests huge pages for large memory, which takes a quarter of the time.
        memory = np.empty(len(rows) * leaf.nbytes, np.uint8)
        stacked = torch.from_numpy(memory).view(leaf.dtype).reshape(shape)
    for place, row in zip(rows_of_bytes(stacked), rows, strict=True):
        place[:] = row
    return stacked
