"""The local engine in a worker process: load a task's arguments, run it, and store its results."""

import faulthandler
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loky import process_executor

from compss_train.engines import liveness
from compss_train.engines.calls import Failure, intra_op_threads, map_args, name_of, prepare_process, results_of
from compss_train.engines.local.store import StoredValue, discard_all, loaded, store

STACK_SIGNAL = signal.SIGUSR1
"""The signal at which a worker process writes the stack of its task to a file."""


@dataclass(frozen=True, slots=True)
class Call:
    """A task as it is sent to a worker process, which loads the stored values among the arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: tuple[str, ...]
    """A file name for each result."""
    cpus: int


def run(call: Call, folders: Sequence[str]) -> list[StoredValue] | Failure:
    """Run a task and return its stored results, or a ``Failure`` for any exception."""
    try:
        liveness.describe(f"task {name_of(call.function)!r}")
        args = map_args(call.args, loaded)
        with intra_op_threads(call.cpus):
            results = results_of(call.function, args, len(call.outputs))
        return [store(item, name, folders) for item, name in zip(results, call.outputs, strict=True)]
    except BaseException as error:  # SystemExit too: the process serves other tasks
        discard_all(call.outputs, folders)
        return Failure.of(error)


def start(parent: int, preload: Sequence[str], heartbeat_path: str) -> None:
    """Initialize a new worker process: import what tasks need, and end it when its parent ends."""
    # Ignored even if the main program handles Ctrl-C and continues: only the main program ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare_process(preload)
    # After a task loky measures the process by psutil or collects garbage, to restart one that grew by 300 MB. That
    # delays the next task by tens of milliseconds, and growth here is mapped blocks and models in use.
    process_executor._MEMORY_LEAK_CHECK_DELAY = math.inf
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    liveness.report_to(liveness.Heartbeat(heartbeat_path))
    stack_file = os.open(stack_path(heartbeat_path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    faulthandler.register(STACK_SIGNAL, stack_file, all_threads=False)


def stack_path(heartbeat_path: str) -> str:
    """Return where a process with this heartbeat writes its stack."""
    return f"{heartbeat_path}-stack"


def _end_with(parent: int) -> None:
    """End this process when its parent has ended: a killed parent cannot stop its workers."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
