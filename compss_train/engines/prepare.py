"""What a process does before the first task that it runs for an engine."""

from __future__ import annotations

import ctypes
import gc
import os

import torch

# mallopt's numbers of the parameters, their variables, and the bytes that they are set to.
_KEPT_MEMORY = ((-1, "MALLOC_TRIM_THRESHOLD_", 2**30), (-3, "MALLOC_MMAP_THRESHOLD_", 2**25))


def prepare_process() -> None:
    """Import what every task needs, and keep freed memory for the next batch."""
    gc.disable()  # what modules make stays: looking for garbage in it takes a third of the time of the imports
    import compss_train.metrics
    import compss_train.worker  # noqa: F401

    # The first optimizer of a process makes torch import its compiler, which takes more than half a second.
    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    gc.freeze()  # nor is it looked at again during training
    gc.enable()
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Have glibc keep up to a gigabyte of freed memory, unless the user's variables say otherwise.

    It gives memory back to the system whenever the top of the heap is free, and takes it again page by page for the
    next batch: a small CNN spent a tenth of its time so. Other C libraries are left as they are.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, variable, value in _KEPT_MEMORY:
            if variable not in os.environ:
                libc.mallopt(parameter, value)
