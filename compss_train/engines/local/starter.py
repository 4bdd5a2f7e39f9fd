"""Starting worker processes: as forks of a process that has imported torch, or anew where forks are not safe."""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import reduction, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np
import torch
from loky.backend.process import LokyProcess

from compss_train.engines import calls

CHECK_SECONDS = 0.5
"""How often a process checks that its parent still runs: a killed parent cannot end it."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

Serve: TypeAlias = Callable[[Connection, str], None]
"""What a worker process does: serve a connection, and report to the heartbeat with this path."""


class Starter:
    """Starts worker processes of ``threads`` intra-op threads that have imported the modules in ``preload``.

    Importing torch takes seconds. Where it is safe, a fork server does so once, and a process starts as its fork in
    30 ms, and shares its memory. CUDA and the system libraries of macOS do not survive a fork: on machines with an
    accelerator, and outside Linux, each process imports anew.
    """

    def __init__(self, serve: Serve, threads: int, preload: Sequence[str]) -> None:
        self._serve = serve
        self._environment = {name: str(threads) for name in _THREAD_VARIABLES}
        self._preload = preload
        self._forks = sys.platform == "linux" and not torch.accelerator.is_available()
        self._lock = threading.Lock()
        self._requests: Connection | None = None
        """To the fork server: the heartbeat's path of a new process, or the id of one whose exit code is wanted."""
        self._processes: list[LokyProcess] = []
        """The fork server, or all processes that were started anew."""

    def start(self, heartbeat: str) -> Connection:
        """Start a process, without waiting for its imports; return the connection to it."""
        ours, theirs = multiprocessing.Pipe()
        with self._lock, theirs:
            if not self._forks:
                self._start_anew(_import_and_serve, theirs, heartbeat)
                return ours
            while True:
                with suppress(OSError):  # the server was killed
                    if self._requests is not None:
                        self._requests.send(heartbeat)
                        reduction.send_handle(self._requests, theirs.fileno(), self._processes[-1].pid)
                        return ours
                self._requests, requests = multiprocessing.Pipe()
                with requests:
                    self._start_anew(_fork_on_request, requests)

    def _start_anew(self, target: Callable[..., None], *args: object) -> None:
        args = (os.getpid(), self._preload, self._serve, *args)
        # A daemon, as the program must not wait for its end before it ends the engine.
        process = LokyProcess(target=target, args=args, env=self._environment, daemon=True)
        resource_tracker.ensure_running()  # which loky starts otherwise, and unblocks the signal
        with interrupts_deferred():
            process.start()
            self._processes = [*filter(LokyProcess.is_alive, self._processes), process]

    def exit_code(self, pid: int) -> int | None:
        """Wait until a process has ended, and return its exit code; ``None`` if it is unknown."""
        with self._lock, suppress(OSError, EOFError):
            if self._requests is not None:
                self._requests.send(pid)
                code: int | None = self._requests.recv()
                return code
            for process in self._processes:
                if process.pid == pid:
                    return _exit_code(process)
        return None

    def stop(self) -> None:
        """End the fork server, or all processes."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.join()
        if self._requests is not None:
            self._requests.close()


def _import_and_serve(parent: int, preload: Sequence[str], serve: Serve, connection: Connection, path: str) -> None:
    _prepare(preload)
    _serve_until_end_of(parent, serve, connection, path)


def _fork_on_request(parent: int, preload: Sequence[str], serve: Serve, requests: Connection) -> None:
    """Be the fork server of ``parent``, and end with it."""
    _prepare(preload)
    children: dict[int, Any] = {}
    with suppress(EOFError, OSError):
        while os.getppid() == parent:
            if not requests.poll(CHECK_SECONDS):
                continue
            request: int | str = requests.recv()
            if isinstance(request, int):
                requests.send(_exit_code(children.pop(request, None)))
                continue
            with Connection(reduction.recv_handle(requests)) as connection:
                args = (os.getpid(), serve, connection, request, requests)
                child = multiprocessing.get_context("fork").Process(target=_serve_forked, args=args)
                try:
                    # Python 3.12 warns of threads: those of BLAS, which ends them before a fork.
                    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                        child.start()
                except OSError:  # out of memory or process ids
                    traceback.print_exc()
                    continue
            children[child.pid or 0] = child
    os._exit(0)  # without waiting for the children, which end on their own


def _exit_code(process: Any) -> int | None:
    if process is None:
        return None
    process.join()
    code: int | None = process.exitcode
    return code


def _serve_forked(parent: int, serve: Serve, connection: Connection, path: str, requests: Connection) -> None:
    requests.close()
    np.random.seed()  # or all processes would draw the same numbers
    _serve_until_end_of(parent, serve, connection, path)


def _prepare(preload: Sequence[str]) -> None:
    # Ignored even if the main program handles Ctrl-C and continues: only the main program ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    multiprocessing.current_process().daemon = False  # tasks may start processes
    calls.prepare_process(preload)


def _serve_until_end_of(parent: int, serve: Serve, connection: Connection, path: str) -> None:
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    serve(connection, path)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(CHECK_SECONDS)
    os._exit(1)


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
