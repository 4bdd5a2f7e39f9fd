"""A worker process of its own for a task of another engine, which replaces no processes and watches none.

If the process dies, or reports nothing for too long, a new one runs the task again: so that COMPSs, which would
lose the task, does not notice.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from multiprocessing.util import Finalize
from typing import Any

import torch

from compss_train.engines.base import Resources
from compss_train.engines.local.engine import LocalEngine

_TASKS = ("compss_train.worker",)
"""What the tasks of a fit import; the start of a process does not count as silence."""


def run_in_child(function: Callable[..., Any], timeout: float | None, gpu: bool, *args: Any) -> Any:
    """Return ``function(*args)`` as a child process computes it, with as many threads as this one.

    A child that dies, or with a ``timeout`` has reported nothing for that many seconds, is replaced by another one,
    which runs the function again. A child without a ``gpu`` is kept for the next task; one with a GPU sees the
    devices that it was started with.
    """
    threads = torch.get_num_threads()
    if not gpu:
        return _run(_kept_child(threads), function, timeout, args)
    with LocalEngine(1, threads, _TASKS) as engine:
        return _run(engine, function, timeout, args)


@lru_cache(maxsize=1)
def _kept_child(threads: int) -> LocalEngine:
    engine = LocalEngine(1, threads, _TASKS)
    # COMPSs's worker processes are children of multiprocessing, which at exit wait for children of their own.
    Finalize(None, engine.end_processes, exitpriority=0)
    return engine


def _run(engine: LocalEngine, function: Callable[..., Any], timeout: float | None, args: tuple[Any, ...]) -> Any:
    published = [engine.publish(argument) for argument in args]
    result = engine.submit(function, *published, resources=Resources(cpus=engine.threads))
    try:
        with nullcontext() if timeout is None else engine.watched(timeout):
            return engine.fetch([result])[0]
    finally:
        engine.delete([result, *published])
