"""Threads, cores and the GPU that COMPSs has bound a task to."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from compss_train.engines.machine import intra_op_threads


@contextmanager
def bound_resources(cpus: int, gpu: bool) -> Iterator[None]:
    """Use ``cpus`` intra-op threads on the bound cores, and the bound GPU if ``gpu`` is true."""
    if cpus > 1:
        _set_affinity()
    if gpu:
        _select_gpu()
    with intra_op_threads(cpus):
        yield


def _set_affinity() -> None:
    """Move all threads of this process to the task's cores.

    COMPSs moves the main thread only. The threads that torch started for an earlier task would stay on that task's
    cores, which may belong to another task now.
    """
    cores = {int(core) for core in os.environ.get("COMPSS_BINDED_CPUS", "").split(",") if core}
    if cores:
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # the thread has just ended
                os.sched_setaffinity(int(thread), cores)


def _select_gpu() -> None:
    """Make the GPU that COMPSs bound the current device.

    COMPSs sets CUDA_VISIBLE_DEVICES, which CUDA reads once per process, but its processes serve many tasks. So here
    CUDA sees all devices and each task selects its own.
    """
    devices = os.environ.get("COMPSS_BINDED_GPUS")
    if devices is None:  # the runtime binds nothing: the user's CUDA_VISIBLE_DEVICES applies
        return
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        _initialize(devices)
    torch.cuda.set_device(visible_index(devices, torch.cuda.device_count()))


def _initialize(devices: str) -> None:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"COMPSs bound GPU {devices} of {socket.gethostname()} to this task, but torch sees no GPU there; "
                "install a CUDA build of torch on the nodes, or use num_gpu=0"
            )
        torch.cuda.init()  # type: ignore[no-untyped-call]
    finally:  # COMPSs deletes the variable after the task, and its process would fail without it
        os.environ["CUDA_VISIBLE_DEVICES"] = devices


def visible_index(bound_gpus: str, visible: int) -> int:
    """Return the index of the first bound GPU among the devices that this process sees.

    If the process sees fewer devices, because CUDA was initialized earlier with fewer, this is the last one.
    """
    return min(int(bound_gpus.split(",")[0]), visible - 1)
