"""A worker process of its own for a task of another engine, which replaces no processes and watches none.

The process is kept for the next task. If it dies, or reports nothing for too long, a new one runs the task again:
so that COMPSs, which would lose the task, does not notice.
"""

from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing.util import Finalize
from typing import Any

import torch

from compss_train.engines.base import Resources
from compss_train.engines.local.engine import LocalEngine

_TASKS = ("compss_train.training.worker",)
"""What the tasks of a fit import; the start of a process does not count as silence."""


@cache
def child_engine(threads: int = 1, preload: Sequence[str] = ()) -> LocalEngine:
    """Return the engine of this process's child, which has so many threads; the same one for every task."""
    engine = LocalEngine(1, threads, preload)
    # COMPSs's worker processes are children of multiprocessing, which at exit wait for children of their own.
    Finalize(None, engine.shutdown, kwargs={"kill": True}, exitpriority=0)
    return engine


def run_watched(function: Callable[..., Any], timeout: float, *args: Any) -> Any:
    """Return ``function(*args)`` as a child process computes it, with as many threads as this one.

    A child that has reported nothing for ``timeout`` seconds is ended, and another one runs the function again.
    """
    threads = torch.get_num_threads()
    engine = child_engine(threads, _TASKS)
    published = [engine.publish(argument) for argument in args]
    result = engine.submit(function, *published, resources=Resources(cpus=threads))
    try:
        with engine.watched(timeout):
            return engine.fetch([result])[0]
    finally:
        engine.delete([result, *published])
