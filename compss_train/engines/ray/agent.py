"""What runs on Ray's nodes: the body of tasks, and an agent on each node.

An agent merges, and watches the processes of its node.
"""

import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import ray

from compss_train._utils.files import check_private
from compss_train.data.block import MappedMemory
from compss_train.engines import calls, liveness
from compss_train.engines.codec import SerializedValue
from compss_train.engines.ray.sources import KeptModules
from compss_train.engines.watch import (
    STACK_SUFFIX,
    Watch,
    WatchedProcess,
    Watching,
    say,
    write_stacks,
)
from compss_train.exceptions import TaskCancelledError

COPIED_BYTES = 100_000
"""Size up to which Ray sends values in messages; arrays in them are copied, and writable."""

LOOK_SECONDS = 1.0
"""Seconds between looks for processes that have started or died, where no task is watched."""

FITS = 100
"""Number of fits whose longest silence an agent remembers."""

_UNFINISHED = ".new"
"""The suffix of the file of a heartbeat until it has been written."""

_ENDED = ".ended"
"""The suffix of a file that says that no task of a fit, whose number is its name, begins here."""


def load(value: SerializedValue) -> Any:
    """Return a value; large arrays are read-only views of the node's shared memory."""
    small = value.nbytes <= COPIED_BYTES
    buffers = [
        bytearray(buffer) if small else np.frombuffer(buffer, np.uint8).view(MappedMemory)
        for buffer in value.buffers
    ]
    return pickle.loads(value.data, buffers=buffers)


class Watched(NamedTuple):
    """For whom a task reports, and how it is watched: ``Heartbeat.watched``."""

    engine: str
    """The id of its engine, whose agents read the reports."""
    fit: int = 0
    """The number of its fit; 0 for a task that is not watched."""
    timeout: float = 0.0
    """Seconds of silence that end its process; 0 for never."""


def run_task(
    call: SerializedValue,
    cpus: int,
    watched: Watched,
    results: int,
    *inputs: SerializedValue,
) -> list[Any]:
    """Run a task; return its serialized results and the id of its node.

    If it fails, return ``None`` for each result, and a ``Failure``: Ray would wrap an exception,
    and runs a task again only if its process dies.
    """
    try:
        heartbeat = _heartbeat(watched.engine)
        _check_wanted(watched)
        function, args, settings = call.load()
        args = calls.filled(args, [load(value) for value in inputs])
        heartbeat.watch(watched.fit, watched.timeout)
        doing = f"task {calls.name_of(function)!r}"
        with _reporting(heartbeat, doing), calls.intra_op_threads(cpus):
            gpus = ray.get_gpu_ids()
            if gpus:
                calls.select_gpu(str(gpus[0]), "Ray")
            outputs = calls.results_of(function, args, results, settings=settings)
            serialized = [SerializedValue.of(output) for output in outputs]
            return [*serialized, ray.get_runtime_context().get_node_id()]
    except BaseException as error:  # SystemExit too: the process serves other tasks
        return [*[None] * results, calls.Failure.of(error)]


@contextmanager
def _reporting(heartbeat: liveness.Heartbeat, doing: str) -> Iterator[None]:
    heartbeat.report(doing=doing)
    try:
        with liveness.reporting_to(heartbeat.report):
            yield
    finally:
        heartbeat.report(doing="")


def _heartbeat(engine: str) -> liveness.Heartbeat:
    """Prepare this process for a task of an engine; return where the task reports."""
    _prepare_process()
    heartbeat = _heartbeat_for(engine)
    write_stacks(heartbeat.path)
    return heartbeat


@cache
def _prepare_process() -> None:
    calls.prepare_process()
    sys.meta_path.append(KeptModules())


@cache
def _heartbeat_for(engine: str) -> liveness.Heartbeat:
    """Return where this process reports to an engine.

    Ray keeps it for other engines of the program, which come and go with their own folders.
    """
    path = _folder(engine) / id_of(psutil.Process())
    unfinished = path.with_suffix(_UNFINISHED)
    unfinished.write_bytes(bytes(liveness.SIZE))
    return liveness.Heartbeat(str(unfinished.rename(path)))


def id_of(process: psutil.Process) -> str:
    """Return what tells a process from others of this node, before and after it.

    Linux has the time of a start since boot; psutil adds that of the boot, which changes whenever
    the clock is set.
    """
    started = process.create_time() - psutil.boot_time()
    return f"{process.pid}-{started * 100:.0f}"


def _folder(engine: str) -> Path:
    """Return the folder where the processes of this node report to an engine.

    Raises ``ValueError`` if others could write to it: the agent sends signals to the processes that
    report there.
    """
    node = ray.get_runtime_context().get_node_id()
    # Its name is no process's, as those of temporary folders, of which abandoned ones are removed.
    folder = Path(tempfile.gettempdir(), f"compss_train-ray-{node}-{engine}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return check_private(folder)


def _check_wanted(watched: Watched) -> None:
    """Raise ``TaskCancelledError`` if the tasks of this fit are to end on this node."""
    if watched.fit and (_folder(watched.engine) / f"{watched.fit}{_ENDED}").exists():
        raise TaskCancelledError


def end_fits(engine: str, fits: Collection[int]) -> None:
    """End the processes of this node that run tasks of these fits; no such task begins any more.

    This needs nothing of Ray, which may not answer.
    """
    folder = _folder(engine)
    with suppress(OSError):  # on a full disk, those that run end all the same
        for fit in fits:
            (folder / f"{fit}{_ENDED}").touch()
    for path in _heartbeats(folder):
        with suppress(OSError, ValueError):  # the agent has just forgotten it
            process = _Process(path)
            if process.heartbeat.doing and process.heartbeat.watched[0] in fits:
                process.kill()


def _heartbeats(folder: Path) -> list[Path]:
    """Return the files in which the processes of this node report."""
    other_files = (_UNFINISHED, STACK_SUFFIX, _ENDED)
    return [path for path in folder.iterdir() if path.suffix not in other_files]


class _Process(WatchedProcess):
    """A process of Ray as its agent sees it: the watch's process and its task in one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heartbeat = liveness.Heartbeat(str(path))
        self.ready = Future()
        self.timed_out = False
        self.watching: Watching | None = None
        self.pid = int(path.name.partition("-")[0])
        self.ready.set_result(self.pid)

    def alive(self) -> bool:
        """Whether the process runs, and is the same one: another may have got its number."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            is_same = id_of(process) == self.path.name
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        return False

    def _send(self, number: signal.Signals) -> None:
        if self.alive():
            os.kill(self.pid, number)


class Agent:
    """Runs a node's short tasks, which others wait for, and watches the processes of long ones.

    It keeps nothing that a new agent would lack, apart from the samples of processes that have
    died. Ray may start it on another node than ``node``, for which it was made: then it watches
    nothing, as that node has its own.
    """

    def __init__(self, node: str, engine: str) -> None:
        self._engine = engine
        self._open: bool = ray.get_runtime_context().get_node_id() == node
        self._lock = threading.Lock()
        self._watch = Watch()
        self._processes: dict[str, _Process] = {}
        self._fits: dict[int, Watching] = {}
        """How the tasks of the last fits are watched."""
        self._samples = 0
        """What processes that have died had trained."""
        threading.Thread(target=self._look_always, daemon=True).start()

    def run(self, *task: Any) -> list[Any]:
        """Run a task as ``run_task`` does."""
        return run_task(*task)

    def watches(self) -> bool:
        """Return whether it is on its node."""
        return self._open

    def samples(self) -> int:
        """Return how many samples the node's processes have trained."""
        with self._lock:
            return self._samples + sum(
                process.heartbeat.samples for process in self._processes.values()
            )

    def end_fits(self, fits: Collection[int]) -> None:
        """End the processes of this node that run tasks of these fits."""
        end_fits(self._engine, fits)

    def close(self) -> None:
        """Watch no more, and remove the files of the reports."""
        with self._lock:
            # even if the folder is another user's, which raises
            was_open = self._open
            self._open = False
            if was_open:
                shutil.rmtree(_folder(self._engine), ignore_errors=True)

    def look(self) -> None:
        """Look at the processes now; they are looked at from time to time as well."""
        with self._lock:
            self._look()

    def _look_always(self) -> None:
        while True:
            with self._lock:
                if not self._open:
                    return
                # The folder is another user's, which the tasks report, or is gone.
                with suppress(OSError, ValueError):
                    self._look()
                seconds = self._watch.check()
            time.sleep(LOOK_SECONDS if seconds is None else seconds)

    def _look(self) -> None:
        """Find processes that have started, died, or begun or ended a task."""
        for path in _heartbeats(_folder(self._engine)):
            if path.name not in self._processes:
                self._processes[path.name] = _Process(path)
        for name, process in list(self._processes.items()):
            alive = process.alive()
            watching = self._watching(process) if alive and process.heartbeat.doing else None
            if watching is not process.watching:
                self._watch.ended(process)
                process.watching = watching
                self._watch.started(process, process)
            if not alive:
                self._forget(name)

    def _forget(self, name: str) -> None:
        """Forget a process that has died, and say so if it was running a task."""
        process = self._processes.pop(name)
        if process.heartbeat.doing and not process.timed_out:
            say(
                f"process {process.pid} on {socket.gethostname()} died during "
                f"{process.heartbeat.doing}, which runs again unless its fit has ended, at most "
                f"{calls.MAX_RUNS} times in all"
            )
        self._samples += process.heartbeat.samples
        process.path.unlink(missing_ok=True)
        process.stack_path.unlink(missing_ok=True)

    def _watching(self, process: _Process) -> Watching | None:
        """Return how the task that a process runs is watched."""
        fit, timeout = process.heartbeat.watched
        if not fit:
            return None
        if fit not in self._fits:
            self._fits[fit] = Watching(timeout=timeout or None)
            while len(self._fits) > FITS:
                oldest = next(iter(self._fits))
                del self._fits[oldest]
        return self._fits[fit]
