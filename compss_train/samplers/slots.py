"""A slot for each sample in the pools, with the sample's rows in it, or nothing where they could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train.buffers.incoming import Incoming
from compss_train.buffers.storage import ColumnStorage
from compss_train.buffers.structure import leaves, map_leaves
from compss_train.data.block import concatenate
from compss_train.samplers.pools import Numbers

Rows: TypeAlias = Any
"""Some samples: arrays or tensors with a row a sample, in a dict or tuple."""


class SlotStore:
    """Rows by slot. The memory is taken when the first rows show what they are, and serves again after ``begin``:

    to take new memory from the system can cost as much as to read the files.
    """

    def __init__(self) -> None:
        self._capacity = 0
        self._storage: ColumnStorage | None = None
        self._missing: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._any_missing = False

    def begin(self, capacity: int) -> None:
        """Have so many slots with nothing in them."""
        if capacity != self._capacity:
            self._capacity, self._storage = capacity, None
        self._missing = np.zeros(capacity, np.bool_)
        self._any_missing = False

    def put(self, slots: Numbers, piece: Incoming, rows: Numbers) -> None:
        """Copy rows of a piece, given by ascending numbers, into slots."""
        if self._storage is None:
            self._storage = ColumnStorage(self._capacity, piece.template)
        if self._any_missing:
            self._missing[slots] = False
        start = int(rows[0])
        if int(rows[-1]) - start >= len(rows):  # with gaps
            piece, start = Incoming(piece.template, [part[rows] for part in piece.rows]), 0
        self._storage.write(slots, piece, start)

    def miss(self, slots: Numbers) -> None:
        """Note that what belongs in these slots could not be read."""
        self._any_missing = True
        self._missing[slots] = True

    def take(self, slots: Numbers) -> Rows | None:
        """Return a copy of the rows in these slots, less those that could not be read."""
        if self._any_missing:
            slots = slots[~self._missing[slots]]
        return self._storage.read(slots) if self._storage is not None and len(slots) else None


def joined(parts: Sequence[Rows | None]) -> Rows | None:
    """Return the rows of several parts as one, ``None`` where there are none."""
    present = [part for part in parts if part is not None]
    if len(present) <= 1:
        return present[0] if present else None
    columns = iter([concatenate(list(blocks)) for blocks in zip(*map(leaves, present), strict=True)])
    return map_leaves(lambda _: next(columns), present[0])
