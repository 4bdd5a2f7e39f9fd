"""What the local engine's scheduler keeps of values, tasks and commutative updates."""

from __future__ import annotations

import heapq
import re
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, wait
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from loky.process_executor import TerminatedWorkerError

from compss_train.engines.base import Failure, Ref
from compss_train.engines.local.store import Stored, discard, discard_all
from compss_train.engines.local.worker_main import Call
from compss_train.engines.local.worker_process import Lane
from compss_train.exceptions import EngineClosedError, WorkerLostError


@dataclass(eq=False, slots=True)
class Value:
    """One value, written once. All but ``future`` belongs to the scheduler's thread."""

    future: Future[Stored] = field(default_factory=Future)
    waiting: list[Task] = field(default_factory=list)
    """Tasks that cannot start before this value is there."""
    readers: int = 0
    """Tasks that have still to read it."""
    deleted: bool = False


@dataclass(eq=False, slots=True)
class Updates:
    """The commutative updates of one value since it was last read: they run one at a time, as they get ready."""

    base: Value
    result: Value = field(default_factory=Value)
    current: Stored | None = None
    """The newest value, once the first update has been allowed to start."""
    ready: deque[Task] = field(default_factory=deque)
    running: bool = False
    unfinished: int = 0
    closed: bool = False
    """Somebody reads the value, so that no more updates join."""


@dataclass(eq=False, slots=True)
class Task:
    """A task and what it waits for. An ``Updates`` among the arguments stands for its current value."""

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: list[Value]
    cpus: int
    urgent: bool
    updates: Updates | None = None
    missing: int = 0
    deaths: int = 0
    """How often a process died while this task ran."""

    def inputs(self) -> Iterator[Value]:
        """Iterate over the values that it reads."""
        for argument in self.args:
            for item in argument if isinstance(argument, list) else [argument]:
                if isinstance(item, Value):
                    yield item

    def __lt__(self, other: Task) -> bool:
        return (not self.urgent, self.number) < (not other.urgent, other.number)


class Handle(Ref):
    """The local engine's reference: the value it stands for now, and the updates that will replace it."""

    __slots__ = ("updates", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.updates: Updates | None = None


RUNS = 4
"""How often a task is run when its process dies; COMPSs makes as many attempts."""


class Scheduler:
    """Runs tasks on lanes, of which it has none at first. ``post`` is how other threads talk to it."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._free_cpus = 0
        self._idle: list[Lane] = []
        self._ready: list[Task] = []
        self._woken: deque[Task] = deque()
        self._running: dict[Task, Future[list[Stored] | Failure]] = {}
        self._unresolved: set[Value] = set()
        self._holders: Counter[str] = Counter()
        self._events: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="compss_train scheduler", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether anybody takes events."""
        return self._thread.is_alive()

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Have the scheduler's thread call one of the methods below."""
        self._events.put(partial(function, *args))

    def finish_running(self) -> None:
        """Start nothing more and wait for the tasks that run."""
        self._stopping = True
        wait(list(self._running.values()))

    def stop(self) -> None:
        """End the thread; whoever waits for a value gets ``EngineClosedError``."""
        self._stopping = True
        self._events.put(None)
        if threading.current_thread() is not self._thread:  # which may collect garbage, the engine among it
            self._thread.join()
        self._abandon(EngineClosedError("the engine was shut down before this task had run"))

    def _run(self) -> None:
        try:
            while (event := self._events.get()) is not None:
                event()
                self._wake()
                if not self._stopping:
                    self._start_ready()
        except BaseException as error:  # a fault of this file: nobody may be left waiting
            self._abandon(error)
            raise

    def _abandon(self, error: BaseException) -> None:
        for value in self._unresolved:
            if not value.future.done():
                value.future.set_exception(error)
        self._unresolved.clear()

    # -- events --------------------------------------------------------------------------------------------

    def hold(self, value: Value, stored: Stored) -> None:
        """Count the file of a value that was published."""
        self._keep(stored)
        self._free(value)

    def admit(self, task: Task) -> None:
        """Take on a task; it starts when its inputs are there."""
        self._unresolved.update(task.outputs)
        if task.updates is not None:
            task.updates.unfinished += 1
            self._unresolved.add(task.updates.result)  # may have failed already: _abandon looks
        for value in self._inputs(task):
            value.readers += 1
            if not value.future.done():
                value.waiting.append(task)
                task.missing += 1
        self._advance(task)

    def close(self, updates: Updates) -> None:
        """Let no more updates join: the value is going to be read."""
        updates.closed = True
        self._settle(updates)

    def delete(self, value: Value) -> None:
        """Free a value once nobody has to read it any more."""
        value.deleted = True
        self._free(value)

    def grow(self, lanes: Sequence[Lane], cpus: int) -> None:
        """Let more tasks run at a time."""
        self._free_cpus += cpus
        for lane in lanes:
            self._expect(lane)

    def _finish(self, task: Task, lane: Lane, future: Future[list[Stored] | Failure]) -> None:
        del self._running[task]
        self._free_cpus += task.cpus
        error = future.exception()
        self._release(lane, error)
        if isinstance(error, TerminatedWorkerError):
            self._run_again(task, error)
        elif error is not None:
            self._fail(task, error)
        else:
            self._take(task, future.result())

    # -- lanes ---------------------------------------------------------------------------------------------

    def _expect(self, lane: Lane) -> None:
        """Use a lane once its process has started: until then tasks had better wait for any that is free."""
        lane.ready.add_done_callback(lambda _: self.post(self._idle.append, lane))

    def _release(self, lane: Lane, error: BaseException | None) -> None:
        if not isinstance(error, BrokenExecutor):
            self._idle.append(lane)
        elif not self._stopping:
            lane.restart()
            self._expect(lane)

    # -- tasks ---------------------------------------------------------------------------------------------

    @staticmethod
    def _inputs(task: Task) -> list[Value]:
        return [*task.inputs(), *([task.updates.base] if task.updates is not None else [])]

    def _advance(self, task: Task) -> None:
        """Start, queue or fail a task whose inputs are all there."""
        if task.missing:
            return
        for value in self._inputs(task):
            if (error := value.future.exception()) is not None:
                self._fail(task, error)
                return
        if task.updates is None:
            heapq.heappush(self._ready, task)
        else:
            task.updates.ready.append(task)
            self._next_update(task.updates)

    def _wake(self) -> None:
        """Look at the tasks whose inputs have come; a loop, since a failure may pass through a long chain."""
        while self._woken:
            task = self._woken.popleft()
            task.missing -= 1
            self._advance(task)

    def _start_ready(self) -> None:
        while self._ready and self._idle and self._ready[0].cpus <= self._free_cpus:
            self._start(heapq.heappop(self._ready), self._idle.pop())

    def _start(self, task: Task, lane: Lane) -> None:
        call = Call(task.function, tuple(map(_stored, task.args)), self._names(task), task.cpus)
        future = lane.submit(call)
        self._free_cpus -= task.cpus
        self._running[task] = future
        future.add_done_callback(lambda done: self.post(self._finish, task, lane, done))

    @staticmethod
    def _names(task: Task) -> tuple[str, ...]:
        # A name of its own for each run: a process that died may have left half a file behind.
        return tuple(f"{task.number}-{place}-{task.deaths}" for place in range(len(task.outputs)))

    def _run_again(self, task: Task, error: BaseException) -> None:
        discard_all(self._names(task), self._folders)
        task.deaths += 1
        name = getattr(task.function, "__name__", repr(task.function))
        codes = re.search(r"{(.*?)}", str(error))  # loky says {SIGKILL(-9)}, say, amid its own advice
        if task.deaths < RUNS:
            how = f" ({codes[1]})" if codes else ""
            print(f"compss_train: a worker process died{how}; its task {name!r} runs again", file=sys.stderr)
            heapq.heappush(self._ready, task)
            return
        lost = WorkerLostError(
            f"task {name!r} was running {RUNS} times when a process died, the last time with "
            f"{codes[1] if codes else error}. If the system killed it (SIGKILL), memory most likely ran out: use "
            "smaller blocks or batches, or fewer workers."
        )
        self._fail(task, lost)

    def _take(self, task: Task, result: list[Stored] | Failure) -> None:
        if isinstance(result, Failure):
            self._fail(task, result.exception())
            return
        if task.updates is not None:
            self._replace(task.updates, result[0])
        for value, stored in zip(task.outputs, result, strict=True):
            self._resolve(value, stored)
        self._leave(task)

    def _fail(self, task: Task, error: BaseException) -> None:
        for value in task.outputs:
            self._settle_value(value, error)
        if task.updates is not None:
            self._settle_value(task.updates.result, error)
        self._leave(task)

    def _leave(self, task: Task) -> None:
        for value in self._inputs(task):
            value.readers -= 1
            self._free(value)
        if (updates := task.updates) is not None:
            updates.unfinished -= 1
            updates.running = False
            self._next_update(updates)
            self._settle(updates)

    # -- commutative updates -------------------------------------------------------------------------------

    def _next_update(self, updates: Updates) -> None:
        if updates.running or not updates.ready:
            return
        if updates.current is None:
            updates.current = updates.base.future.result()
            self._keep(updates.current)
        updates.running = True
        heapq.heappush(self._ready, updates.ready.popleft())

    def _replace(self, updates: Updates, stored: Stored) -> None:
        if updates.current is not None:
            self._drop(updates.current)
        updates.current = stored
        self._keep(stored)

    def _settle(self, updates: Updates) -> None:
        """Give a closed group's value to its readers after its last update."""
        done = updates.closed and not updates.unfinished
        if not done or updates.current is None:
            return
        if not updates.result.future.done():
            self._resolve(updates.result, updates.current)
        self._drop(updates.current)
        updates.current = None

    # -- values --------------------------------------------------------------------------------------------

    def _resolve(self, value: Value, stored: Stored) -> None:
        self._keep(stored)
        self._settle_value(value, stored)
        self._free(value)

    def _settle_value(self, value: Value, outcome: Stored | BaseException) -> None:
        if value.future.done():
            return
        self._unresolved.discard(value)
        if isinstance(outcome, Stored):
            value.future.set_result(outcome)
        else:
            value.future.set_exception(outcome)
        self._woken.extend(value.waiting)
        value.waiting = []

    def _free(self, value: Value) -> None:
        free = value.deleted and not value.readers and value.future.done()
        if free and value.future.exception() is None:
            self._drop(value.future.result())
            value.deleted = False

    def _keep(self, stored: Stored) -> None:
        if stored.path is not None:
            self._holders[stored.path] += 1

    def _drop(self, stored: Stored) -> None:
        if stored.path is None:
            return
        self._holders[stored.path] -= 1
        if not self._holders[stored.path]:
            del self._holders[stored.path]
            discard(stored.path)


def _stored(argument: Any) -> Any:
    if isinstance(argument, Value):
        return argument.future.result()
    if isinstance(argument, Updates):
        return argument.current
    if isinstance(argument, list):
        return [_stored(item) for item in argument]
    return argument
