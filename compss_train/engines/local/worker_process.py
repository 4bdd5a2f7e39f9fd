"""The local engine's worker processes: a thread for each in the coordinator, and what runs in the process."""

import io
import os
import pickle
import re
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import cloudpickle

from compss_train.engines import calls, liveness
from compss_train.engines.local.starter import Starter
from compss_train.engines.local.store import StoredValue, discard_all, loaded, store, written
from compss_train.engines.watch import STACK_SIGNAL, read_stack, write_stacks


@dataclass(frozen=True, slots=True)
class Call:
    """A task as it is sent to a worker process, which loads the stored values among the arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: tuple[str, ...]
    """A file name for each result."""
    folders: Sequence[str]
    """Where to write the files."""
    cpus: int


class LostProcessError(Exception):
    """A process died, or must be replaced, while it ran a task: why, in a few words."""


class BrokenGpuError(LostProcessError):
    """An error of CUDA, after which a process cannot use its GPU again: its text, and a ``Failure``."""


Answer: TypeAlias = list[StoredValue] | calls.Failure
"""What a process answers to a call: the stored results, or why it failed."""


def serve(connection: Connection, heartbeat_path: str) -> None:
    """Send the id of this process, and run the tasks that the coordinator sends until it closes the connection."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # lines reach a file or pipe before the process is killed
    liveness.report_to(liveness.Heartbeat(heartbeat_path))
    write_stacks(_stack_path(heartbeat_path))
    with suppress(EOFError, OSError):
        connection.send(os.getpid())
        while True:
            connection.send(run(connection.recv_bytes()))


def run(pickled: bytes) -> Answer | BrokenGpuError:
    """Run a task; return its stored results, or a ``Failure`` for any exception.

    Returns ``BrokenGpuError`` for an error of CUDA: this process must be replaced.
    """
    outputs: Sequence[str] = ()
    folders: Sequence[str] = ()
    try:
        call: Call = pickle.loads(pickled)
        outputs, folders = call.outputs, call.folders
        liveness.describe(f"task {calls.name_of(call.function)!r}")
        args = calls.map_args(call.args, loaded)
        with calls.intra_op_threads(call.cpus):
            results = calls.results_of(call.function, args, len(outputs))
        return [store(item, name, folders) for item, name in zip(results, outputs, strict=True)]
    except BaseException as error:  # SystemExit too: the process serves other tasks
        discard_all(outputs, folders)
        if isinstance(error, RuntimeError) and (found := re.search("(CUDA|HIP) error: .*", str(error))):
            error.add_note("num_gpu=0 shows whether the network or its data are at fault; else look at the GPU.")
            return BrokenGpuError(found[0], calls.Failure.of(error))
        return calls.Failure.of(error)


def _stack_path(heartbeat_path: str) -> str:
    """Return where a process with this heartbeat writes its stack."""
    return f"{heartbeat_path}-stack"


class WorkerProcess:
    """A worker process, which ``starter`` starts; it is replaced by a new one when it dies.

    A thread of its own sends it a task and waits for the answer.
    """

    def __init__(self, starter: Starter, folders: Sequence[str]) -> None:
        self._starter = starter
        space = [memoryview(bytes(liveness.SIZE))]  # found now, or never missing later
        self.heartbeat = liveness.Heartbeat(written(space, f"{secrets.token_hex(4)}-heartbeat", folders))
        """What its tasks report."""
        self.speed = 0.0
        """Samples a second of its last task that trained; 0 before the first."""
        self._task_start = (0.0, 0)
        """When its task began, and the number of samples that it had reported by then."""
        self._thread = ThreadPoolExecutor(1, "compss_train worker")
        self._thread_id = 0
        self._start()

    def _start(self) -> None:
        self._connection = self._starter.start(self.heartbeat.path)
        self.pid = 0
        """The process id; 0 if there is no process at the moment."""
        self.ready = self._thread.submit(self._begin)
        """Done once the process accepts tasks, or has died before that."""
        self._last: Future[Any] = self.ready

    def restart(self) -> None:
        """Replace a process that died, or must not be used again."""
        self.kill()
        self._connection.close()
        self._start()

    def submit(self, call: Call) -> Future[Answer]:
        """Submit a call to the process, or to a new one if it died while it was idle."""
        self._task_start = time.monotonic(), self.heartbeat.samples
        if self._connection.poll():
            self.restart()
        future = self._last = self._thread.submit(self._call, call)
        return future

    def _begin(self) -> int:
        self._thread_id = threading.get_ident()
        self.pid = self._exchange(None)
        return self.pid

    def _call(self, call: Call) -> Answer:
        answer: Answer | BrokenGpuError = self._exchange(cloudpickle.dumps(call))
        if isinstance(answer, BrokenGpuError):
            raise answer
        return answer

    def _exchange(self, message: bytes | None) -> Any:
        """Send a message to the process, and return what it sends."""
        try:
            if message is not None:
                self._connection.send_bytes(message)
            return self._connection.recv()
        except (EOFError, OSError):
            code = self._starter.exit_code(self.pid) if self.pid else None
            self.pid = 0
            raise LostProcessError(_described(code)) from None

    def measure_speed(self) -> None:
        """Measure the speed of the task that has just ended, if it has trained anything."""
        began, before = self._task_start
        if trained := self.heartbeat.samples - before:
            self.speed = trained / (time.monotonic() - began)

    def kill(self) -> None:
        """Kill the process and the task that it runs, even if it is stopped."""
        self._send(signal.SIGKILL)

    def stack(self) -> str:
        """Return the stack of the running task; empty if the process does not write it because it is stopped."""
        return read_stack(Path(_stack_path(self.heartbeat.path)), lambda: self._send(STACK_SIGNAL))

    def _send(self, number: signal.Signals) -> None:
        if self.pid:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def stop(self) -> None:
        """Kill the process without waiting: it holds nothing that is needed again."""
        self.kill()
        self._thread.shutdown(wait=False)

    def join(self) -> None:
        """Wait until a stopped process has ended."""
        if threading.get_ident() == self._thread_id:  # it collects garbage
            return
        wait([self._last])
        self.kill()  # if it had not started when it was stopped
        with suppress(EOFError, OSError):
            self._connection.recv()
        self._connection.close()


def _described(code: int | None) -> str:
    """Return what an exit code says, such as ``SIGKILL(-9)``."""
    if code is None:
        return ""
    return f"{signal.Signals(-code).name}({code})" if code < 0 else f"exit code {code}"
