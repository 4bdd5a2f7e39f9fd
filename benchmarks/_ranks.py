"""Processes of a peer that begin together, and their process group."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from _common import threads_of_children
from torch import distributed

START_LIMIT = 300  # seconds until all processes of a peer must be ready, or something is wrong

_barrier: Barrier | None = None


def run_ranks(function: Callable[[Any], Any], ranks: Sequence[Any], threads: int = 1) -> list[Any]:
    """Return ``function(rank)`` for each rank, each in a new process; the function calls ``meet``."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(len(ranks))
    with (
        threads_of_children(threads),
        ProcessPoolExecutor(len(ranks), context, initializer=_set_barrier, initargs=(start,)) as executor,
    ):
        return list(executor.map(function, ranks))


def _set_barrier(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent has ended: waiting for the others, it would outlive a killed benchmark."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def meet() -> None:
    """Wait until all ranks are here."""
    if _barrier is not None:
        _barrier.wait(START_LIMIT)


def join_group(folder: str, number: int, ranks: int) -> None:
    """Be the rank ``number`` of a process group that meets in the folder, until the process ends.

    The group is not destroyed before: its destructor can wait for its own thread, which waits for Python's lock.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # host names need not resolve in a container
    meeting = f"file://{Path(folder, 'store')}"
    distributed.init_process_group("gloo", init_method=meeting, rank=number, world_size=ranks)
