"""One worker process of the local engine: a loky executor of its own, so that it dies alone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import contextmanager
from multiprocessing import resource_tracker

from loky import ProcessPoolExecutor

from compss_train.engines.base import Failure
from compss_train.engines.local import worker_main
from compss_train.engines.local.store import Stored
from compss_train.engines.local.worker_main import Call

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class Lane:
    """A worker process with ``threads`` intra-op threads, and those that replace it when it has died.

    Loky breaks a whole executor when one process dies, since the dead one may have held a lock of all. With one
    process an executor, tasks on other lanes know nothing of it.
    """

    def __init__(self, threads: int, folders: Sequence[str], preload: Sequence[str]) -> None:
        self._threads = threads
        self._folders = folders
        self._preload = preload
        self._executor = self._new_executor()
        self._manager: threading.Thread | None = None
        self.ready: Future[int] = Future()
        """Done once the process takes tasks, or died before that."""

    def _new_executor(self) -> ProcessPoolExecutor:
        environment = {name: str(self._threads) for name in _THREAD_VARIABLES}
        arguments = (os.getpid(), self._preload)
        return ProcessPoolExecutor(1, initializer=worker_main.start, initargs=arguments, env=environment)

    def start(self) -> None:
        """Start the process, without waiting until it has imported what tasks need."""
        # Loky starts this for each process, and it would unblock the signal.
        resource_tracker.ensure_running()
        with interrupts_blocked():
            self.ready = self._executor.submit(os.getpid)
        self._manager = self._executor._executor_manager_thread

    def restart(self) -> None:
        """Start a new process in the place of one that died."""
        self.stop()
        self._executor = self._new_executor()
        self.start()

    def submit(self, call: Call) -> Future[list[Stored] | Failure]:
        """Send a task to the process, and to a new one where it died while it was idle."""
        while True:
            try:
                future: Future[list[Stored] | Failure] = self._executor.submit(worker_main.run, call, self._folders)
            except BrokenExecutor:
                self.restart()
            else:
                return future

    def stop(self) -> None:
        """Begin to end the process at once: it holds nothing that is needed again."""
        self._executor.shutdown(wait=False, kill_workers=True)

    def join(self) -> None:
        """Wait until a process that was told to stop has ended."""
        # Garbage collection may come here in loky's own thread, which ends the process afterwards.
        if self._manager is not None and self._manager is not threading.current_thread():
            self._manager.join()


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Let processes started meanwhile ignore Ctrl-C: the coordinator ends them, without their tracebacks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Pool:
    """Lanes of ``threads`` intra-op threads each, none at first: its end can be seen to before any has started."""

    def __init__(self, threads: int, folders: Sequence[str], preload: Sequence[str]) -> None:
        self.lanes: list[Lane] = []
        self._threads = threads
        self._folders = folders
        self._preload = preload

    def add(self, count: int) -> list[Lane]:
        """Return new lanes, whose processes start side by side."""
        lanes = [Lane(self._threads, self._folders, self._preload) for _ in range(count)]
        self.lanes += lanes
        for lane in lanes:
            lane.start()
        return lanes

    def close(self) -> None:
        """End all processes, and only then wait for them."""
        for lane in self.lanes:
            lane.stop()
        for lane in self.lanes:
            lane.join()
