"""Base of the engines that run on this machine alone: cores, threads, GPUs and the preparation of processes."""

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
"""The loopback address."""


def cores() -> int:
    """Return the cores that this process may use (affinity and container limits count)."""
    return int(cpu_count())


def place(worker: int, num_gpu: int) -> str:
    """Return the device of a worker: round-robin over the GPUs, or the CPU without GPUs."""
    return f"cuda:{worker % num_gpu}" if num_gpu else "cpu"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is the loopback interface's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name
        return host == "localhost"


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


class SingleMachineEngine(Engine):
    """Share this machine's cores and devices among the workers."""

    @classmethod
    def default_workers(cls, threads: int) -> int:
        """Return how many tasks the physical cores are enough for, at least 1."""
        return max(1, int(cpu_count(only_physical_cores=True)) // threads)

    @classmethod
    def thread_share(cls, num_workers: int) -> int:
        """Return each worker's share of the cores, at least 1."""
        return max(1, cores() // num_workers)

    @classmethod
    def device(cls, worker: int, num_gpu: int) -> str:
        """Assign the workers round-robin to the first ``num_gpu`` devices."""
        return place(worker, num_gpu)

    @classmethod
    def check_gpus(cls, num_gpu: int, num_nodes: int) -> None:
        """Raise ``ValueError`` if this machine has fewer than ``num_gpu`` GPUs; ``num_nodes`` is not used."""
        available = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if num_gpu > available:
            raise ValueError(
                f"num_gpu={num_gpu}, but torch sees {available} GPUs on this machine; "
                f"use num_gpu={available}"
                + ("" if available else " to train on the CPU, or install a CUDA build of torch")
            )


# Parameters of mallopt: number, environment variable, and value in bytes.
_MALLOC_PARAMETERS = ((-1, "MALLOC_TRIM_THRESHOLD_", 2**30), (-3, "MALLOC_MMAP_THRESHOLD_", 2**25))


def prepare_process(preload: Sequence[str] = ()) -> None:
    """Import the given modules and those that torch imports late, and keep freed memory for the next batch."""
    gc.disable()  # objects of modules are permanent: searching them for garbage takes a third of the import time
    for module in preload:
        importlib.import_module(module)
    # With the first optimizer of a process torch imports its compiler, which takes more than half a second.
    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    gc.freeze()  # exclude them from garbage collection during training, too
    gc.enable()
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
