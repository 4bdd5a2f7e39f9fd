"""Starts worker processes: as forks of one that has imported torch, or anew where forks fail."""

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

import cloudpickle
import numpy as np
from loky.backend.process import LokyProcess

from compss_train.engines import calls
from compss_train.engines.parent_watch import CHECK_SECONDS, ParentWatch, call_with_parent
from compss_train.engines.sources import LoadedModules

_END_SECONDS = 1.0
"""How long a fork server may take to end, and to end its processes, before it is killed."""

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

Serve: TypeAlias = Callable[[Connection, str], None]
"""What a worker process does: serve a connection, and report to the heartbeat with this path."""


class LostProcessError(Exception):
    """A process died, or must be replaced: why, in a few words; empty if that is unknown."""


class Starter:
    """Starts worker processes of ``threads`` intra-op threads that have imported ``preload``.

    Importing torch takes seconds. On Linux a fork server does so once, and a process starts as its
    fork in 30 ms, and shares its memory. CUDA does not survive a fork, and the server never uses
    it: only its forks do. Nor do the system libraries of macOS survive one: outside Linux, each
    process imports anew.

    Raises ``RuntimeError`` in a program without standard output or error, which they would share.
    """

    def __init__(self, serve: Serve, threads: int, preload: Sequence[str]) -> None:
        if sys.stdout is None or sys.stderr is None:
            missing = "output" if sys.stdout is None else "error"
            raise RuntimeError(
                f"this program was started without standard {missing}, which worker processes "
                "share: start it with >/dev/null 2>&1 or with files instead, or take "
                "engine='serial'"
            )
        self.modules = LoadedModules()
        """Those that the program has, and its processes import."""
        self._serve = serve
        self._environment = {name: str(threads) for name in _THREAD_VARIABLES}
        self._preload = preload
        self._forks = sys.platform == "linux"
        self._lock = threading.RLock()  # garbage collection may stop an engine anywhere
        self._stopped = False
        self._server: socket.socket | None = None
        """The connection to the fork server.

        It takes the heartbeat's path and the connection of a new process, or a signal for a
        process.
        """
        self._processes: dict[int, LokyProcess] = {}
        """The fork server, or all processes that were started anew, by their ids."""

    def start(self, heartbeat: str) -> Connection:
        """Start a process, without waiting for its imports; return the connection to it.

        When a forked process has ended, the server sends a ``LostProcessError`` over the
        connection.
        """
        ours, theirs = multiprocessing.Pipe()
        with self._lock, theirs:
            if self._stopped:  # nobody needs it any more
                return ours
            if not self._forks:
                self._start_anew(_import_and_serve, theirs, heartbeat)
                return ours
            while True:
                if self._server is not None:
                    with suppress(ConnectionError):  # the server was killed
                        socket.send_fds(self._server, [pickle.dumps(heartbeat)], [theirs.fileno()])
                        return ours
                    self._server.close()
                    self._server = None
                self._server, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with requests:
                    self._start_anew(_fork_on_request, requests)

    def _start_anew(self, target: Callable[..., None], *args: object) -> None:
        # A daemon, as the program must not wait for its end before it ends the engine.
        process = LokyProcess(
            target=call_with_parent,
            args=(os.getpid(), cloudpickle.dumps((target, (self._preload, self._serve))), *args),
            env=self._environment,
            daemon=True,
        )
        resource_tracker.ensure_running()  # which loky starts otherwise, and unblocks the signal
        this_process = multiprocessing.current_process()
        is_daemon = this_process.daemon
        with interrupts_deferred():
            # Daemons, such as those of a pool, may have no children; ours end with them.
            this_process.daemon = False
            try:
                process.start()
            except FileNotFoundError as error:
                error.add_note(
                    "Worker processes start in the folder of the program; if it was removed, change"
                    " to another one (os.chdir)."
                )
                raise
            finally:
                this_process.daemon = is_daemon
            self._processes[process.pid] = process

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process, unless it has ended."""
        with self._lock, suppress(ConnectionError):
            if self._server is not None:
                self._server.send(pickle.dumps((pid, number)))
                return
            process = self._processes.get(pid)
            if process is not None and process.is_alive():
                os.kill(pid, number)

    def why_ended(self, pid: int) -> str:
        """Return why a process without a fork server has ended; empty if that is unknown.

        ``pid`` is 0 for a process that has not begun, as its fork server failed.
        """
        with self._lock:
            if not pid and self._forks:
                process = next(reversed(self._processes.values()), None)
            else:
                process = self._processes.get(pid)
            if process is None:
                return ""
            process.join(_END_SECONDS)
            code = _described(process.exitcode)
            return f"{code} before it began: its error is above" if code and not pid else code

    def stop(self) -> None:
        """End all processes."""
        with self._lock:
            self._stopped = True
            if self._server is not None:
                with suppress(OSError):  # the server was killed
                    self._server.shutdown(socket.SHUT_RDWR)
                self._server.close()
                self._server = None
            for process in self._processes.values():
                if self._forks:
                    process.join(_END_SECONDS)
                with suppress(ProcessLookupError):
                    if process.is_alive():  # perhaps it is stopped, or imports
                        os.kill(process.pid, signal.SIGKILL)
                process.join()


def _described(code: int | None) -> str:
    """Return what an exit code says, such as ``SIGKILL(-9)``."""
    if code is None:
        return ""
    if -code in {*signal.Signals}:  # which lacks most real-time signals
        return f"{signal.Signals(-code).name}({code})"
    return f"exit code {code}"


def _import_and_serve(
    watch: ParentWatch, preload: Sequence[str], serve: Serve, connection: Connection, path: str
) -> None:
    _prepare(preload)
    serve(connection, path)


def _prepare(preload: Sequence[str]) -> None:
    # Ignored even if the main program handles Ctrl-C and continues: only the main program ends its
    # workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    multiprocessing.current_process().daemon = False  # tasks may start processes
    calls.prepare_process(preload)


def _fork_on_request(
    watch: ParentWatch, preload: Sequence[str], serve: Serve, requests: socket.socket
) -> None:
    """Be the fork server of the parent, and end with it."""
    _prepare(preload)
    watch.stop()
    # Python 3.12 warns of threads: those of BLAS, which ends them before a fork.
    warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
    children: dict[int, Connection] = {}
    child_ended, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve_forked(connection: Connection, path: str) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        inherited: list[Any] = [requests, child_ended, waker, *children.values()]
        for connection_of_server in inherited:
            connection_of_server.close()
        np.random.seed()  # or all processes would draw the same numbers
        ParentWatch(server)
        serve(connection, path)

    server = os.getpid()
    try:
        while watch.parent_runs:
            ready = wait([requests, child_ended], CHECK_SECONDS)
            if child_ended in ready:
                child_ended.recv(1024)
                _tell_ends(children)
            if requests not in ready:
                continue
            message, files, _, _ = socket.recv_fds(requests, 4096, 1)
            if not message:
                break
            if files:
                connection = Connection(files[0])
                try:
                    children[_forked(serve_forked, connection, pickle.loads(message))] = connection
                except OSError as error:  # out of memory or of process ids
                    with connection, suppress(OSError):
                        connection.send(LostProcessError(str(error)))
            else:
                pid, number = pickle.loads(message)
                if pid in children:
                    os.kill(pid, number)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)
        os._exit(0)


def _forked(function: Callable[..., None], *args: object) -> int:
    """Call a function in a fork of this process; return the fork's id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        function(*args)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _tell_ends(children: dict[int, Connection]) -> None:
    """Tell the coordinator why children have ended."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        if pid in children:  # not a process that an import has started
            with children.pop(pid) as connection, suppress(OSError):
                connection.send(LostProcessError(_described(os.waitstatus_to_exitcode(status))))


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` only after the block; processes started in it ignore Ctrl-C.

    Blocking the signal is not enough: another thread of the program receives it, and Python raises
    in the main thread all the same. In the middle of a start, that would leak a process; in a
    finalizer, such as a file lock's, Python only prints the exception and continues.
    """
    deferred = False

    def defer(*_: object) -> None:
        nonlocal deferred
        deferred = True

    # Only the main thread handles signals. A handler not installed from Python is None, and could
    # not be restored.
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    if handler is not None:
        signal.signal(signal.SIGINT, defer)
    # New processes have the mask of this thread.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        if deferred:
            signal.raise_signal(signal.SIGINT)
