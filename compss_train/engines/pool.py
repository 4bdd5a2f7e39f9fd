"""The local engine's worker processes: a loky executor that can be replaced when a process died."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing import resource_tracker

from loky import ProcessPoolExecutor

from compss_train.engines import remote
from compss_train.engines.failure import Failure
from compss_train.engines.remote import Call
from compss_train.engines.store import Stored

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class Pool:
    """``processes`` worker processes with ``threads`` intra-op threads each, started at once.

    Loky breaks the whole executor when one process dies, since the dead one may have held a lock: the
    others are ended too, and ``restart`` brings up new ones.
    """

    def __init__(self, processes: int, threads: int, folders: list[str]) -> None:
        self.processes = processes
        self.folders = folders
        self._threads = threads
        self._executor = self._start()

    def _start(self) -> ProcessPoolExecutor:
        environment = {name: str(self._threads) for name in _THREAD_VARIABLES}
        executor = ProcessPoolExecutor(
            self.processes, initializer=remote.start, initargs=(os.getpid(),), env=environment
        )
        # Loky starts this for each process, and it would unblock the signal.
        resource_tracker.ensure_running()
        with _interrupts_blocked():
            executor.submit(os.getpid)
        return executor

    def submit(self, call: Call) -> Future[list[Stored] | Failure]:
        """Send a task to a process that is free."""
        with _interrupts_blocked():
            future: Future[list[Stored] | Failure] = self._executor.submit(remote.run, call, self.folders)
        return future

    def restart(self) -> None:
        """Replace all processes."""
        self.close()
        self._executor = self._start()

    def close(self) -> None:
        """End the processes at once: they hold nothing that is needed again."""
        with contextlib.suppress(RuntimeError):  # called by garbage collection in loky's own thread, which it joins
            self._executor.shutdown(wait=True, kill_workers=True)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Let processes started meanwhile ignore Ctrl-C: the coordinator ends them, without their tracebacks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
