"""The local engine's worker processes: a loky executor each in the coordinator, and what runs in the process."""

import math
import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeAlias

from loky import ProcessPoolExecutor, process_executor
from loky.backend.context import LokyContext

from compss_train.engines import calls, liveness
from compss_train.engines.local.store import StoredValue, discard_all, loaded, store, written
from compss_train.engines.watch import STACK_SIGNAL, read_stack, write_stacks

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True, slots=True)
class Call:
    """A task as it is sent to a worker process, which loads the stored values among the arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: tuple[str, ...]
    """A file name for each result."""
    cpus: int


class BrokenGpuError(Exception):
    """An error of CUDA, after which a process cannot use its GPU again: its text in braces, and a ``Failure``."""


def run(call: Call, folders: Sequence[str]) -> list[StoredValue] | calls.Failure:
    """Run a task and return its stored results, or a ``Failure`` for any exception.

    Raises ``BrokenGpuError`` for an error of CUDA: this process must be replaced.
    """
    try:
        liveness.describe(f"task {calls.name_of(call.function)!r}")
        args = calls.map_args(call.args, loaded)
        with calls.intra_op_threads(call.cpus):
            results = calls.results_of(call.function, args, len(call.outputs))
        return [store(item, name, folders) for item, name in zip(results, call.outputs, strict=True)]
    except BaseException as error:  # SystemExit too: the process serves other tasks
        discard_all(call.outputs, folders)
        if isinstance(error, RuntimeError) and (found := re.search("(CUDA|HIP) error: .*", str(error))):
            error.add_note("num_gpu=0 shows whether the network or its data are at fault; else look at the GPU.")
            raise BrokenGpuError(f"{{{found[0]}}}", calls.Failure.of(error)) from None
        return calls.Failure.of(error)


def initialize(parent: int, preload: Sequence[str], heartbeat_path: str) -> None:
    """Initialize a new worker process: import what tasks need, and end it when its parent ends."""
    # Ignored even if the main program handles Ctrl-C and continues: only the main program ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls.prepare_process(preload)
    # After a task loky measures the process by psutil or collects garbage, to restart one that grew by 300 MB. That
    # delays the next task by tens of milliseconds, and growth here is mapped blocks and models in use.
    process_executor._MEMORY_LEAK_CHECK_DELAY = math.inf
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    liveness.report_to(liveness.Heartbeat(heartbeat_path))
    write_stacks(_stack_path(heartbeat_path))


def _stack_path(heartbeat_path: str) -> str:
    """Return where a process with this heartbeat writes its stack."""
    return f"{heartbeat_path}-stack"


def _end_with(parent: int) -> None:
    """End this process when its parent has ended: a killed parent cannot stop its workers."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


Answer: TypeAlias = list[StoredValue] | calls.Failure
"""What a process answers to a call: the stored results, or why it failed."""


class WorkerProcess:
    """A worker process with ``threads`` intra-op threads; it is replaced by a new one when it dies.

    Loky breaks a whole executor when one process dies, because the dead process may have held a shared lock. With
    one process per executor, tasks in other processes are not affected.
    """

    def __init__(self, threads: int, folders: Sequence[str], preload: Sequence[str]) -> None:
        self._threads = threads
        self._folders = folders
        self._preload = preload
        space = [memoryview(bytes(liveness.SIZE))]  # found now, or never missing later
        self.heartbeat = liveness.Heartbeat(written(space, f"{secrets.token_hex(4)}-heartbeat", folders))
        """What its tasks report."""
        self.speed = 0.0
        """Samples a second of its last task that trained; 0 before the first."""
        self._task_start = (0.0, 0)
        """When its task began, and the number of samples that it had reported by then."""
        self._executor = self._new_executor()
        self._manager: threading.Thread | None = None
        self.ready: Future[int] = Future()
        """Done once the process accepts tasks, or has died before that."""

    def _new_executor(self) -> ProcessPoolExecutor:
        environment = {name: str(self._threads) for name in _THREAD_VARIABLES}
        arguments = (os.getpid(), self._preload, self.heartbeat.path)
        # The default context is the one imported last: joblib's copy of loky registers its own under the same name.
        return ProcessPoolExecutor(
            1, context=LokyContext(), initializer=initialize, initargs=arguments, env=environment
        )

    def start(self) -> None:
        """Start the process, without waiting for its imports."""
        # Loky starts the resource tracker with each process, which would unblock the signal.
        resource_tracker.ensure_running()
        with interrupts_deferred():
            self.ready = self._executor.submit(os.getpid)
            self._manager = self._executor._executor_manager_thread

    def restart(self) -> None:
        """Replace a process that died."""
        self.stop()
        self._executor = self._new_executor()
        self.start()

    def submit(self, call: Call) -> Future[Answer]:
        """Submit a call to the process, or to a new one if it died while it was idle."""
        self._task_start = time.monotonic(), self.heartbeat.samples
        while True:
            try:
                future: Future[Answer] = self._executor.submit(run, call, self._folders)
            except BrokenExecutor:
                self.restart()
            else:
                return future

    def measure_speed(self) -> None:
        """Measure the speed of the task that has just ended, if it has trained anything."""
        began, before = self._task_start
        if trained := self.heartbeat.samples - before:
            self.speed = trained / (time.monotonic() - began)

    @property
    def pid(self) -> int:
        """The process id; 0 if there is no process at the moment."""
        return next(iter(list(self._executor._processes or ())), 0)

    def kill(self) -> None:
        """Kill the process and the task that it runs, even if it is stopped."""
        self._send(signal.SIGKILL)

    def stack(self) -> str:
        """Return the stack of the running task; empty if the process does not write it because it is stopped."""
        return read_stack(Path(_stack_path(self.heartbeat.path)), lambda: self._send(STACK_SIGNAL))

    def _send(self, number: signal.Signals) -> None:
        if pid := self.pid:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)

    def stop(self) -> None:
        """Kill the process without waiting: it holds nothing that is needed again."""
        self._executor.shutdown(wait=False, kill_workers=True)

    def join(self) -> None:
        """Wait until a stopped process has ended."""
        # Garbage collection may call this in loky's own thread, which ends the process afterwards.
        if self._manager is not None and self._manager is not threading.current_thread():
            self._manager.join()


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` only after the block; processes that are started in it ignore Ctrl-C.

    Blocking the signal is not enough: another thread of the program receives it, and Python raises in the main
    thread all the same. In the middle of a start, that would leak a process; in a finalizer, such as a file lock's,
    Python only prints the exception and continues.
    """
    deferred = False

    def defer(*_: object) -> None:
        nonlocal deferred
        deferred = True

    # Only the main thread handles signals. A handler not installed from Python is None, and could not be restored.
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    if handler is not None:
        signal.signal(signal.SIGINT, defer)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # new processes have the mask of this thread
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        if deferred:
            signal.raise_signal(signal.SIGINT)
