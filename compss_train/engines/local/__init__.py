"""The local engine: tasks on worker processes of this machine, values in shared memory."""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from multiprocessing.util import Finalize
from typing import Any, ClassVar, Self

import torch

from compss_train._utils.validation import check_count
from compss_train.engines.base import Traits
from compss_train.engines.graph_engine import GraphEngine
from compss_train.engines.local import store
from compss_train.engines.local.scheduler import Scheduler
from compss_train.engines.local.starter import Starter, interrupts_deferred
from compss_train.engines.local.worker_process import WorkerProcess, serve
from compss_train.engines.nodes import Resources, cores

_MOST_PER_CORE = 64
"""Processes a core, which may wait for other programs."""


class LocalEngine(GraphEngine):
    """Run tasks on ``processes`` worker processes with ``threads`` intra-op threads each.

    Values are files in shared memory that workers map, so that a block exists once however many
    tasks read it. A process that dies is replaced and its task runs again, up to 4 times in all;
    other tasks continue. Processes do not import the main script: models from notebooks and from
    ``__main__`` work without a main guard. They have imported the modules in ``preload``, which
    must not use a GPU when they are imported, before their first task.

    On Linux, processes are forks of a fork server that has imported torch: a process starts in 30
    ms and adds a few MB. Elsewhere each imports torch itself, which takes seconds and 200 MB.

    Several threads may use it, for a fit each: docs/watching.md. At the end of the program the
    engine waits for running tasks; ``shutdown(kill=True)`` does not. Each process takes 2 file
    descriptors of the coordinator.

    Raises ``ValueError`` for fewer than one process or thread.
    """

    name: ClassVar[str] = "local"
    threads: int
    _scheduler: Scheduler
    traits: ClassVar[Traits] = Traits(starts_processes=True, shared_memory=True)

    def __init__(self, processes: int, threads: int = 1, preload: Sequence[str] = ()) -> None:
        check_count("processes", processes)
        super().__init__()
        self.processes = 0
        self.cpus = 0
        self.threads = check_count("threads", threads)
        self._widest = 1
        """The most CPUs that a task has asked for."""
        self._processes: list[WorkerProcess] = []
        with contextlib.ExitStack() as undo:  # if the start fails, or was interrupted
            with interrupts_deferred():
                self._folders = store.StoreFolders()
                undo.callback(self._folders.remove)
                self._folders.create()
                self._starter = Starter(serve, threads, preload)
                self._scheduler = Scheduler(self._folders.paths, self._processes)
                self._graph = self._scheduler.graph
                self.end = weakref.finalize(
                    self,
                    _shut_down,
                    self._scheduler,
                    self._processes,
                    self._starter,
                    self._folders,
                    owner=os.getpid(),
                )
                undo.callback(self.end)
                self._grow(processes, processes * threads)
            undo.pop_all()

    @contextlib.contextmanager
    def scope(self, *, watched: bool = False, timeout: float | None = None) -> Iterator[None]:
        """Let what this thread makes inside the context end with it if an exception leaves it.

        Processes that may have imported a module of the program before it was loaded again, as in a
        notebook, are replaced.
        """
        if self._starter.modules.look():
            self._post(self._scheduler.replace_all)
        with super().scope(watched=watched, timeout=timeout):
            yield

    @classmethod
    def start(cls, num_workers: int, threads: int, preload: Sequence[str] = ()) -> Self:
        """Start a process for each worker, at most as many as the cores allow."""
        return cls(max(1, min(num_workers, cores() // threads)), threads, preload)

    def slots(self, resources: Resources) -> int:
        """Return how many such tasks the processes and their CPUs can run at once."""
        return min(self.processes, self.cpus // resources.cpus)

    @property
    def most_tasks(self) -> int:
        """So many that they share cores, and do not fill the process table."""
        return max(self.processes, _MOST_PER_CORE * cores())

    def _reserve(self, tasks: Sequence[Resources]) -> None:
        """Start the processes that are missing. They stay until ``resize``."""
        self._grow(len(tasks) - self.processes, sum(task.cpus for task in tasks) - self.cpus)

    def resize(self, processes: int) -> None:
        """Run tasks on this number of processes from now on; the bits stay the same.

        Callbacks may call it.

        New processes take tasks as soon as they have started. Surplus processes end after their
        current tasks, the slowest idle ones first. Raises ``ValueError`` for fewer than one
        process, for fewer CPUs than a task has asked for, and if tasks that have to run at the same
        time, as those of an online fit, need more.
        """
        self._check_open()
        with self._lock:
            added = check_count("processes", processes) - self.processes
            cpus = self.cpus + added * self.threads
            if cpus < self._widest:
                raise ValueError(
                    f"processes={processes} have {cpus} CPUs, and a task needs {self._widest}"
                )
            reserved = [task.cpus for task in self._reserved(self._scopes)]
            if processes < len(reserved) or cpus < sum(reserved):
                raise ValueError(
                    f"processes={processes} have {cpus} CPUs; {len(reserved)} tasks, as those of "
                    f"an online fit, run at the same time and need {sum(reserved)}; give more "
                    "until it has ended"
                )
            if added > 0:
                self._grow(added, cpus - self.cpus)
            elif added < 0:
                self._post(self._scheduler.remove_workers, -added, self.cpus - cpus)
                self.processes = processes
                self.cpus = cpus

    @property
    def pids(self) -> list[int]:
        """Process IDs of the workers in the order of their start, for which it waits."""
        return [process.ready.result() for process in list(self._processes)]

    @property
    def folders(self) -> list[str]:
        """The folders with the files of its values and of its processes' heartbeats.

        Most of them are in memory.
        """
        return self._folders.paths

    def trained_samples(self) -> int:
        """Return what the processes have reported."""
        return self._scheduler.samples + sum(
            process.heartbeat.samples for process in list(self._processes)
        )

    def _store(self, value: object) -> store.StoredValue:
        """Write the value to shared memory; of a memory-mapped array only the path is stored."""
        return store.store(value, f"{next(self._numbers)}-published", self._folders.paths)

    def _check_size(self, resources: Resources) -> None:
        """Raise ``ValueError`` for more CPUs than the processes have together."""
        if resources.cpus > self._widest:
            with self._lock:
                if resources.cpus > self.cpus:
                    raise ValueError(
                        f"a task asks for {resources.cpus} CPUs and this engine has {self.cpus}"
                    )
                self._widest = max(self._widest, resources.cpus)

    def _grow(self, processes: int, cpus: int) -> None:
        """Add processes and CPUs; negative numbers add none."""
        cpus = max(0, cpus)
        added = []
        for _ in range(processes):
            process = WorkerProcess(self._starter, self._folders.paths)
            added.append(process)
            self._processes.append(process)
        self.processes += len(added)
        self.cpus += cpus
        self._post(self._scheduler.add_workers, added, cpus)


def _shut_down(
    scheduler: Scheduler,
    processes: list[WorkerProcess],
    starter: Starter,
    folders: store.StoreFolders,
    *,
    owner: int,
) -> None:
    if os.getpid() != owner:  # a forked child of the program does not own its copy of the engine
        return
    with interrupts_deferred():
        try:
            scheduler.stop()
        finally:
            try:
                for process in processes:
                    process.stop()
                starter.stop()
                for process in processes:
                    process.join()
            finally:
                folders.remove()


_TASKS = ("compss_train.worker",)
"""What the tasks of a fit import; the start of a process does not count as silence."""


def run_in_child(function: Callable[..., Any], timeout: float | None, gpu: bool, *args: Any) -> Any:
    """Return ``function(*args)`` as a child process computes it, with as many threads as this one.

    For tasks of an engine that neither replaces nor watches processes. A child that dies, or that
    reports nothing for ``timeout`` seconds if given, is replaced by another one, which runs the
    function again. A child without a ``gpu`` is kept for the next task; a child with a GPU sees the
    devices that it was started with.
    """
    threads = torch.get_num_threads()
    if gpu:
        child: contextlib.AbstractContextManager[LocalEngine] = LocalEngine(1, threads, _TASKS)
    else:
        child = contextlib.nullcontext(kept_child(threads))
    with child as engine:
        published = [engine.publish(argument) for argument in args]
        with engine.scope(watched=timeout is not None, timeout=timeout):
            return engine.fetch(
                [engine.submit(function, *published, resources=Resources(cpus=threads))]
            )[0]


@lru_cache(maxsize=1)
def kept_child(threads: int) -> LocalEngine:
    """Return the engine of the child that ``run_in_child`` keeps."""
    engine = LocalEngine(1, threads, _TASKS)
    # COMPSs's worker processes are children of multiprocessing, which at exit wait for children of
    # their own.
    Finalize(None, engine.end, exitpriority=0)
    return engine
