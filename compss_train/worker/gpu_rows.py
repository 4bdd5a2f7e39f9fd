"""``RowsOnGpus``: rows of blocks that stay on the GPUs of a process from task to task."""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train.data.block import as_tensor
from compss_train.data.order import RowRange
from compss_train.worker.work import Residency

Columns: TypeAlias = tuple[torch.Tensor, ...]
"""Rows of the columns of x, then of y and of the weights if the data have them."""

_Dense: TypeAlias = np.ndarray[Any, Any] | torch.Tensor


@dataclass
class _Kept:
    """What stays on GPUs for one fit."""

    columns: dict[tuple[torch.device, RowRange], Columns] = field(default_factory=dict)
    due: float = 0.0
    """The time at which they leave unless they are used before."""
    full: bool = False
    """Whether a task had too little memory beside them, so that no others are moved."""


class RowsOnGpus:
    """Rows of blocks on the GPUs of this process, which stay there from task to task of a fit.

    Rows are shuffled there, and later epochs copy none. They are found by what they are: a range of
    rows of a block of a fit, on a device. They leave after the last epoch of the fit, when a task
    has too little memory beside them, and when the fit has begun no pass for some time: one that
    ends early cannot tell the processes, as engines choose one for each task.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._fits: dict[str, _Kept] = {}
        self._timer: threading.Timer | None = None
        self._due = math.inf
        """The time at which the timer ends; none runs at infinity."""

    def moved(
        self, resident: Residency, device: str, held: RowRange | None, blocks: Sequence[_Dense]
    ) -> Columns | None:
        """Return rows on a GPU; ``None`` if it has too little memory for them.

        They stay there if ``held`` says which rows of which block they are.
        """
        # Of "cuda", the GPU that a runtime gives to this task.
        actual = torch.empty(0, device=device).device
        with self._lock:
            kept = self._fits.setdefault(resident.fit, _Kept())
            kept.due = time.monotonic() + resident.idle_seconds
            self._watch()
            present = None if held is None else kept.columns.get((actual, held))
        if present is not None:
            return present
        if kept.full or not _has_room(blocks, device, resident.share):
            return None
        columns = tuple([as_tensor(block).to(actual) for block in blocks])
        if held is not None:
            with self._lock:
                kept.columns[actual, held] = columns
        return columns

    def release(self, fit: str) -> None:
        """Release the rows of a fit, and give their memory back to other processes."""
        with self._lock:
            kept = self._fits.pop(fit, _Kept())
            if not self._fits and self._timer is not None:
                self._timer.cancel()
                self._timer = None
                self._due = math.inf
        devices = {device.type for device, _ in kept.columns}
        del kept
        for kind in devices:
            torch.get_device_module(kind).empty_cache()

    def make_room(self) -> bool:
        """Release all rows, and move no others of these fits.

        Returns whether there may have been any.
        """
        with self._lock:
            released = [kept for kept in self._fits.values() if not kept.full]
            for kept in released:
                kept.columns = {}
                kept.full = True
        return bool(released)

    def _watch(self) -> None:
        """Have a thread release what is due first, as long as there is anything."""
        due = min((kept.due for kept in self._fits.values()), default=math.inf)
        if due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            self._timer = threading.Timer(max(0.0, due - time.monotonic()), self._release_due)
            self._timer.daemon = True
            self._timer.start()

    def _release_due(self) -> None:
        with self._lock:
            now = time.monotonic()
            self._due = math.inf
            due = [fit for fit, kept in self._fits.items() if kept.due <= now]
            for fit in due:
                self.release(fit)
            self._watch()


@cache
def rows_on_gpus() -> RowsOnGpus:
    """Return what this process keeps on GPUs."""
    return RowsOnGpus()


def _has_room(blocks: Sequence[_Dense], device: str, share: float) -> bool:
    """Return whether half of a GPU, and of a worker's ``share`` of it, stays free beside rows."""
    module = torch.get_device_module(device)
    try:
        free, total = module.mem_get_info(device)
    except (AttributeError, RuntimeError):  # of MPS, and of XPUs that cannot tell
        return False
    used = module.memory_allocated(device)
    size = sum(block.nbytes for block in blocks)
    free += module.memory_reserved(device) - used
    leaves_half = free - size >= total / 2
    return bool(leaves_half and used + size <= total * share / 2)
