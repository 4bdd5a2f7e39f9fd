"""The local engine: tasks on worker processes of this machine, values in shared memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any, ClassVar, Self

from compss_train.engines.base import ONE_CPU, Ref, Resources, map_refs
from compss_train.engines.local.scheduler import Handle, Scheduler, Task, Updates, Value
from compss_train.engines.local.store import Folders, store
from compss_train.engines.local.worker_process import Pool
from compss_train.engines.machine import LOOPBACK, ThisMachineEngine, cores
from compss_train.exceptions import EngineClosedError

CHECK_SECONDS = 1.0
"""How often a wait makes sure that there is still something to wait for."""


class LocalEngine(ThisMachineEngine):
    """``processes`` worker processes, started by loky, with ``threads`` intra-op threads each.

    Values are files in shared memory that workers map, so that a block exists once however many tasks read
    it. A process that dies is replaced and its task runs again, 4 times in all; other tasks go on. The processes
    are no main script's children to import: models from notebooks and from ``__main__`` work without a main guard.
    Processes import the modules that ``preload`` names when they start, rather than in their first task.
    The end of the program waits for tasks that still run; ``shutdown(kill=True)`` does not. A process takes 7
    file descriptors of the coordinator: for hundreds of them ``ulimit -n`` has to allow more than the usual 1024.
    """

    name: ClassVar[str] = "local"
    shared_memory: ClassVar[bool] = True

    def __init__(self, processes: int, threads: int = 1, preload: Sequence[str] = ()) -> None:
        if processes < 1 or threads < 1:
            raise ValueError(f"LocalEngine needs at least 1 process and thread, got {processes} and {threads}")
        self.processes = 0
        self.threads = threads
        self.cpus = 0
        self._numbers = itertools.count()
        with contextlib.ExitStack() as undo:  # of a start that is interrupted
            self._folders = Folders()
            undo.callback(self._folders.remove)
            self._folders.make()
            self._pool = Pool(threads, self._folders.paths, preload)
            self._scheduler = Scheduler(self._folders.paths)
            self._close = weakref.finalize(
                self, _shut_down, self._scheduler, self._pool, self._folders, os.getpid()
            )
            undo.callback(self._close)
            self._grow(processes, processes * threads)
            undo.pop_all()

    @classmethod
    def start(cls, num_workers: int, threads: int, preload: Sequence[str] = ()) -> Self:
        """Start as many processes as there are workers and cores for."""
        return cls(max(1, min(num_workers, cores() // threads)), threads, preload)

    def reserve(self, tasks: Sequence[Resources]) -> None:
        """Start the processes that are missing, for as long as the engine lasts; it never gets smaller."""
        self._check_open()
        self._grow(len(tasks) - self.processes, sum(task.cpus for task in tasks) - self.cpus)

    def host(self) -> str:
        """Return the loopback address: tasks run on this machine."""
        self._check_open()
        return LOOPBACK

    def publish(self, value: object) -> Ref:
        """Write the value to shared memory; a memory-mapped array's path is all that is kept."""
        self._check_open()
        published = Value()
        stored = store(value, f"{next(self._numbers)}-published", self._folders.paths)
        published.future.set_result(stored)
        self._scheduler.post(self._scheduler.hold, published, stored)
        return Handle(published)

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        returns: int = 1,
        resources: Resources = ONE_CPU,
        priority: bool = False,
    ) -> Any:
        """Run the task in a worker process.

        Raises ``ValueError`` where it asks for more CPUs than all processes have, as it could never run.
        """
        self._check_open()
        if resources.cpus > self.cpus:
            raise ValueError(f"a task asks for {resources.cpus} CPUs and this engine has {self.cpus}")
        outputs = [Value() for _ in range(returns)]
        arguments = map_refs(args, self._read)
        task = Task(next(self._numbers), function, arguments, outputs, resources.cpus, priority)
        self._scheduler.post(self._scheduler.admit, task)
        handles = [Handle(value) for value in outputs]
        return handles[0] if returns == 1 else handles

    def commute(self, target: Ref, function: Callable[..., Any], *args: Any) -> Ref:
        """Update in a worker process, before waiting tasks."""
        self._check_open()
        handle = _handle(target)
        if handle.updates is None:
            handle.updates = Updates(handle.value)
        output, updates = Value(), handle.updates
        arguments = (updates, *map_refs(args, self._read))
        task = Task(next(self._numbers), function, arguments, [output], 1, True, updates)
        self._scheduler.post(self._scheduler.admit, task)
        return Handle(output)

    def fetch(self, refs: Sequence[Ref], *, small: bool = False) -> list[Any]:
        """Wait, raise as soon as any has failed; large arrays are mapped from shared memory, not copied."""
        self._check_open()
        futures = [self._read(ref).future for ref in refs]
        while (state := wait(futures, CHECK_SECONDS, FIRST_EXCEPTION)).not_done:
            _raise_first(state.done)
            self._check_open()
        _raise_first(state.done)
        return [future.result().load() for future in futures]

    def peek(self, ref: Ref, timeout: float = 0.0) -> Any:
        """Return what is there; of a value under commutative update, the newest."""
        self._check_open()
        handle = _handle(ref)
        while handle.updates is not None and (newest := handle.updates.current) is not None:
            with contextlib.suppress(FileNotFoundError):  # the next update has just replaced it
                return newest.load()
        future = handle.value.future
        wait([future], timeout)
        return future.result().load() if future.done() and future.exception() is None else None

    def wait(self, refs: Sequence[Ref], timeout: float) -> bool:
        """Wait for tasks to run."""
        self._check_open()
        done, missing = wait([self._read(ref).future for ref in refs], timeout, FIRST_EXCEPTION)
        return not missing or any(future.exception() is not None for future in done)

    def ended(self, ref: Ref) -> bool:
        """Look whether the task has run; of a value under commutative update, whether the first one was there."""
        self._check_open()
        return _handle(ref).value.future.done()

    def delete(self, refs: Sequence[Ref]) -> None:
        """Remove the values' files once no submitted task has to read them."""
        self._check_open()
        for ref in refs:
            self._scheduler.post(self._scheduler.delete, self._read(ref))

    def shutdown(self, *, kill: bool = False) -> None:
        """End the processes and remove everything from shared memory; a second call does nothing."""
        if self._close.alive and not kill:
            self._scheduler.finish_running()
        self._close()

    def _grow(self, processes: int, cpus: int) -> None:
        """Have so many more of each; less than none is none."""
        lanes, cpus = self._pool.add(processes), max(0, cpus)
        self.processes += len(lanes)
        self.cpus += cpus
        self._scheduler.post(self._scheduler.grow, lanes, cpus)

    def _check_open(self) -> None:
        if not (self._close.alive and self._scheduler.alive):
            raise EngineClosedError("this local engine was shut down; make a new one")

    def _read(self, ref: Ref) -> Value:
        """Return the value that a reader sees from now on: after all updates submitted so far."""
        handle = _handle(ref)
        if handle.updates is not None:
            updates, handle.updates = handle.updates, None
            self._scheduler.post(self._scheduler.delete, handle.value)
            handle.value = updates.result
            self._scheduler.post(self._scheduler.close, updates)
        return handle.value


def _raise_first(futures: Iterable[Future[Any]]) -> None:
    for future in futures:
        if (error := future.exception()) is not None:
            raise error


def _handle(ref: Ref) -> Handle:
    if not isinstance(ref, Handle):
        raise TypeError(f"{ref!r} is not a reference of the local engine")
    return ref


def _shut_down(scheduler: Scheduler, pool: Pool, folders: Folders, owner: int) -> None:
    if os.getpid() != owner:  # a forked child of the program forgets its copy of the engine
        return
    try:
        scheduler.stop()
    finally:
        try:
            pool.close()
        finally:
            folders.remove()
