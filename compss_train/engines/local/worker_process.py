"""The local engine's worker processes, seen from the coordinator: a loky executor each."""

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path

from loky import ProcessPoolExecutor
from loky.backend.context import LokyContext

from compss_train.engines import liveness
from compss_train.engines.calls import Failure
from compss_train.engines.local import worker_main
from compss_train.engines.local.store import StoredValue, written
from compss_train.engines.local.worker_main import Call

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


_STACK_SECONDS, _STACK_CHECKS = 0.1, 5
"""Seconds between checks for a process's stack, and the number of checks before it counts as stopped."""


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
            1, context=LokyContext(), initializer=worker_main.start, initargs=arguments, env=environment
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

    def submit(self, call: Call) -> Future[list[StoredValue] | Failure]:
        """Submit a call to the process, or to a new one if it died while it was idle."""
        self._task_start = time.monotonic(), self.heartbeat.samples
        while True:
            try:
                future: Future[list[StoredValue] | Failure] = self._executor.submit(
                    worker_main.run, call, self._folders
                )
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
        path = Path(worker_main.stack_path(self.heartbeat.path))
        with suppress(OSError):
            os.truncate(path, 0)
            self._send(worker_main.STACK_SIGNAL)
            for _ in range(_STACK_CHECKS):
                time.sleep(_STACK_SECONDS)
                if text := path.read_text(errors="replace"):
                    return text
        return ""

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
