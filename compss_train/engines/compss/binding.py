"""What COMPSs has bound a task to: the threads, cores and GPU that it may use."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from compss_train.engines.machine import intra_op_threads


@contextmanager
def bound(cpus: int, gpu: bool) -> Iterator[None]:
    """Use ``cpus`` intra-op threads on the cores, and the GPU if there is to be one, that COMPSs bound."""
    if cpus > 1:
        _move_threads()
    if gpu:
        _choose_gpu()
    with intra_op_threads(cpus):
        yield


def _move_threads() -> None:
    """Move all threads of this process to the task's cores.

    COMPSs moves the main thread only. The helpers that torch started for an earlier task would stay on that task's
    cores, which are another's now.
    """
    cores = {int(core) for core in os.environ.get("COMPSS_BINDED_CPUS", "").split(",") if core}
    if cores:
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # a thread that has just ended
                os.sched_setaffinity(int(thread), cores)


def _choose_gpu() -> None:
    """Make the GPU that COMPSs bound the current one.

    COMPSs sets CUDA_VISIBLE_DEVICES, which CUDA reads once a process, and its processes serve many tasks. So a
    process of ours lets CUDA see all devices and chooses among them task by task.
    """
    devices = os.environ.get("COMPSS_BINDED_GPUS")
    if devices is None:  # without the runtime nothing is bound: the user's choice stands
        return
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        _initialize(devices)
    torch.cuda.set_device(visible_index(devices, torch.cuda.device_count()))


def _initialize(devices: str) -> None:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"COMPSs bound GPU {devices} of {socket.gethostname()} to this task, but torch sees none there; "
                "install a CUDA build of torch on the nodes, or use num_gpu=0"
            )
        torch.cuda.init()  # type: ignore[no-untyped-call]
    finally:  # COMPSs removes it after the task, and its process would not survive that it is gone
        os.environ["CUDA_VISIBLE_DEVICES"] = devices


def visible_index(bound_gpus: str, visible: int) -> int:
    """Return the index of the first bound GPU among those that this process sees.

    Where it sees fewer, because something else initialised CUDA in it first, there is no choice but the last.
    """
    return min(int(bound_gpus.split(",")[0]), visible - 1)
