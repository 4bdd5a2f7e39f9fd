"""The local engine's worker processes: a thread of the coordinator each, and what they run."""

import io
import os
import pickle
import re
import secrets
import signal
import socket
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
from compss_train.engines.local.starter import LostProcessError, Starter
from compss_train.engines.local.store import StoredValue, discard_all, loaded, store, written
from compss_train.engines.watch import WatchedProcess, say, write_stacks
from compss_train.exceptions import EngineClosedError
from compss_train.model.program_settings import ProgramSettings


@dataclass(frozen=True, slots=True)
class SentTask:
    """A task as it is sent to a worker process, which loads the stored values of its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: tuple[str, ...]
    """A file name for each result."""
    folders: Sequence[str]
    """Where to write the files."""
    cpus: int
    settings: ProgramSettings | None


class BrokenGpuError(LostProcessError):
    """An error of CUDA after which a process cannot use its GPU: its text, and a ``Failure``."""


Answer: TypeAlias = list[StoredValue] | calls.Failure
"""What a process answers to a call: the stored results, or why it failed."""


def serve(connection: Connection, heartbeat_path: str) -> None:
    """Send this process's id, and run the coordinator's tasks until the connection is closed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Lines reach a file or pipe before the process is killed.
        sys.stdout.reconfigure(line_buffering=True)
    if not os.path.isdir(os.path.dirname(heartbeat_path)):  # the engine has ended
        return
    write_stacks(heartbeat_path)
    with (
        liveness.reporting_to(liveness.Heartbeat(heartbeat_path).report),
        suppress(EOFError, OSError),
    ):
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
        task: SentTask = pickle.loads(pickled)
        outputs = task.outputs
        folders = task.folders
        liveness.describe(f"task {calls.name_of(task.function)!r}")
        args = calls.map_args(task.args, loaded)
        with calls.intra_op_threads(task.cpus):
            results = calls.results_of(task.function, args, len(outputs), task.settings)
        return [store(item, name, folders) for item, name in zip(results, outputs, strict=True)]
    except BaseException as error:  # SystemExit too: the process serves other tasks
        discard_all(outputs, folders)
        gpu_error = re.search("(CUDA|HIP) error: .*", str(error))
        if isinstance(error, RuntimeError) and gpu_error:
            error.add_note(
                "num_gpu=0 shows whether the network or its data are at fault; else "
                "look at the GPU."
            )
            return BrokenGpuError(gpu_error[0], calls.Failure.of(error))
        return calls.Failure.of(error)


class WorkerProcess(WatchedProcess):
    """A worker process, which ``starter`` starts; it is replaced by a new one when it dies.

    A thread of its own sends it a task and waits for the answer.
    """

    def __init__(self, starter: Starter, folders: Sequence[str]) -> None:
        self._starter = starter
        # Its space is written now, so that it cannot be missing later.
        empty = [memoryview(bytes(liveness.SIZE))]
        heartbeat_path = written(empty, f"{secrets.token_hex(4)}-heartbeat", folders)
        self.heartbeat = liveness.Heartbeat(heartbeat_path)
        """What its tasks report."""
        self.speed = 0.0
        """Samples a second of its last task that trained; 0 before the first."""
        self._task_start = (0.0, 0)
        """When its task began, and the number of samples that it had reported by then."""
        self._thread_id = 0
        self._thread = ThreadPoolExecutor(1, "compss_train worker", self._note_thread)
        self._start()

    def _note_thread(self) -> None:
        self._thread_id = threading.get_ident()

    def _start(self) -> None:
        self.pid = 0
        """The process id; 0 before it accepts tasks."""
        self._connection = self._starter.start(self.heartbeat.path)
        self.ready = self._in_thread(self._begin)
        """Done once the process accepts tasks, or has died before that."""
        self._last: Future[Any] = self.ready

    def _in_thread(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        try:
            return self._thread.submit(function, *args)
        except RuntimeError as error:
            if not self._thread_id:  # there is no room for another thread
                raise
            raise EngineClosedError(
                "the program ends, and its threads take no more work"
            ) from error

    def restart(self) -> None:
        """Replace a process that died, or must not be used again.

        Says which modules of the program the new one finds other than those that the others have.
        """
        changed = self._starter.modules.changed()
        if changed:
            say(
                f"a new process imports {', '.join(changed)} as the files are now, which have "
                "changed since they were loaded: if that changes what is trained, start again"
            )
        self.kill()
        self._connection.close()
        self._start()

    def submit(self, sent: SentTask) -> Future[Answer]:
        """Send a task to the process, or to a new one if it died while it was idle."""
        self._task_start = (time.monotonic(), self.heartbeat.samples)
        if self._connection.poll():
            self.restart()
        future: Future[Answer] = self._in_thread(lambda: self._exchange(cloudpickle.dumps(sent)))
        self._last = future
        return future

    def _begin(self) -> int:
        self.pid = self._exchange(None)
        return self.pid

    def _exchange(self, message: bytes | None) -> Any:
        """Send a message to the process, and return what it sends."""
        try:
            if message is not None:
                with suppress(ConnectionError):  # why it has ended is read below
                    self._connection.send_bytes(message)
            answer = self._connection.recv()
        except Exception:  # the end, or a message that was cut by it
            answer = LostProcessError(self._starter.why_ended(self.pid))
        if isinstance(answer, LostProcessError):
            raise answer
        return answer

    def measure_speed(self) -> None:
        """Measure the speed of the task that has just ended, if it has trained anything."""
        start, samples_at_start = self._task_start
        samples = self.heartbeat.samples - samples_at_start
        if samples:
            self.speed = samples / (time.monotonic() - start)

    def _send(self, number: signal.Signals) -> None:
        self._starter.send_signal(self.pid, number)

    def end(self) -> None:
        """Kill the process, even if it has not started; the thread notices when it is gone."""
        if not self.pid:  # it ends when it finds the connection closed, before it has got a task
            self._disconnect()
        self.kill()

    def stop(self) -> None:
        """Kill the process without waiting: it holds nothing that is needed again."""
        self.kill()
        # If the process has not started, it ends when it finds the connection closed. The thread
        # ends as well, even if processes that a task has started keep the other end open.
        self._disconnect()
        self._thread.shutdown(wait=False)

    def _disconnect(self) -> None:
        with (
            suppress(OSError),
            socket.socket(fileno=os.dup(self._connection.fileno())) as connection,
        ):
            connection.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait until the thread of a stopped process has ended."""
        if threading.get_ident() != self._thread_id:  # otherwise it collects garbage
            wait([self._last])
            self._connection.close()

    def remove_files(self) -> None:
        """Remove what the process has written besides results."""
        for path in (Path(self.heartbeat.path), self.stack_path):
            path.unlink(missing_ok=True)
