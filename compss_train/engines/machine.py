"""What the engines that run on this machine alone have in common: its cores, threads and GPUs."""

from __future__ import annotations

import ctypes
import gc
import importlib
import ipaddress
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from loky import cpu_count

from compss_train.engines.base import Engine

LOOPBACK = "127.0.0.1"
"""The address at which this machine reaches itself."""


def cores() -> int:
    """Return the cores that this process may use (affinity and container limits count)."""
    return int(cpu_count())


def place(worker: int, num_gpu: int) -> str:
    """Return the device of a worker: round-robin over the GPUs, the CPU where there are none."""
    return f"cuda:{worker % num_gpu}" if num_gpu else "cpu"


def is_loopback(host: str) -> bool:
    """Tell whether an address, or a name, is this machine's for itself alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads within one operation, and as many as before afterwards.

    Sums split over another number of threads round differently; a task's results are the same bits on every
    engine because its number of threads is part of its resources.
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


class ThisMachineEngine(Engine):
    """Shares this machine's cores and devices among the workers."""

    @classmethod
    def thread_share(cls, num_workers: int) -> int:
        """Return each worker's share of the cores, at least one."""
        return max(1, cores() // num_workers)

    @classmethod
    def device(cls, worker: int, num_gpu: int) -> str:
        """Spread the workers round-robin over the first ``num_gpu`` devices."""
        return place(worker, num_gpu)

    @classmethod
    def check_gpus(cls, num_gpu: int, num_nodes: int) -> None:
        """Raise ``ValueError`` where this machine has fewer GPUs than asked for; ``num_nodes`` is not used."""
        available = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if num_gpu > available:
            raise ValueError(
                f"num_gpu={num_gpu}, but torch sees {available} GPUs on this machine; "
                f"use num_gpu={available}"
                + ("" if available else " to train on the CPU, or install a CUDA build of torch")
            )


# mallopt's numbers of the parameters, their variables, and the bytes that they are set to.
_KEPT_MEMORY = ((-1, "MALLOC_TRIM_THRESHOLD_", 2**30), (-3, "MALLOC_MMAP_THRESHOLD_", 2**25))


def prepare_process(preload: Sequence[str] = ()) -> None:
    """Import these modules and what torch imports late, and keep freed memory for the next batch."""
    gc.disable()  # what modules make stays: looking for garbage in it takes a third of the time of the imports
    for module in preload:
        importlib.import_module(module)
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
