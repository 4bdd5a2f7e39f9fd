"""This machine: its cores and GPUs, the threads of a task, and the preparation of processes."""

import ctypes
import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from loky import cpu_count

from compss_train.engines.nodes import Node


def cores() -> int:
    """Return the cores that this process may use (affinity and container limits count)."""
    return int(cpu_count())


def this_machine() -> Node:
    """Return this machine as a node: the cores that this process may use, and the GPUs that torch sees."""
    return Node("localhost", cores(), torch.cuda.device_count() if torch.cuda.is_available() else 0)


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` intra-op threads inside the context, and as many as before afterwards.

    Sums over another number of threads round differently. A task gives the same bits on every engine because its
    number of threads is part of its resources.
    """
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Parameters of mallopt: number, environment variable, and value in bytes.
_MALLOC_PARAMETERS = ((-1, "MALLOC_TRIM_THRESHOLD_", 2**30), (-3, "MALLOC_MMAP_THRESHOLD_", 2**25))


def prepare_process(preload: Sequence[str] = ()) -> None:
    """Import the given modules and those that torch imports late, and keep freed memory for the next batch."""
    for module in preload:
        importlib.import_module(module)
    # With the first optimizer of a process torch imports its compiler, which takes more than half a second.
    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Make glibc keep up to 1 GiB of freed memory, unless environment variables of the user set these parameters.

    By default glibc returns memory to the system when the top of the heap is free, and gets it back page by page
    for the next batch: a tenth of the training time of a small CNN. Other C libraries are left as they are.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, variable, value in _MALLOC_PARAMETERS:
            if variable not in os.environ:
                libc.mallopt(parameter, value)
