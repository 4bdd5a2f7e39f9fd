"""Dependencies between the local engine's tasks: which values they wait for, and which values are still needed."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from compss_train.engines.calls import map_args
from compss_train.engines.local.store import StoredValue, discard


@dataclass(eq=False, slots=True)
class Value:
    """A value that is written once. All attributes but ``future`` belong to the scheduler's thread."""

    future: Future[StoredValue] = field(default_factory=Future)
    waiting: list[Task] = field(default_factory=list)
    """Tasks that cannot start before this value is available."""
    readers: int = 0
    """Number of unfinished tasks that read it."""
    deleted: bool = False


@dataclass(eq=False, slots=True, kw_only=True)
class Updates:
    """The commutative updates of a value since it was last read. They run one at a time, as they become ready."""

    base: Value
    result: Value = field(default_factory=Value)
    current: StoredValue | None = None
    """The newest value, once the first update may start."""
    ready: deque[Task] = field(default_factory=deque)
    running: bool = False
    unfinished: int = 0
    closed: bool = False
    """Whether the value has a reader, so that no more updates can join."""


@dataclass(eq=False, slots=True, kw_only=True)
class Task:
    """A task and its dependencies. An ``Updates`` object among the arguments stands for its current value."""

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: list[Value]
    cpus: int = 1
    priority: bool = False
    updates: Updates | None = None
    missing: int = 0
    """Number of inputs that are not available yet."""
    deaths: int = 0
    """How often a process died while this task ran."""
    timed_out: bool = False
    """Whether its process was ended because it reported nothing for too long."""
    failed: bool = False
    """Whether it has failed, perhaps before all its inputs were available."""

    def inputs(self) -> Iterator[Value]:
        """Iterate over the values that the task reads."""
        for argument in self.args:
            for item in argument if isinstance(argument, list) else [argument]:
                if isinstance(item, Value):
                    yield item
        if self.updates is not None:
            yield self.updates.base

    def stored_args(self) -> tuple[Any, ...]:
        """Return the arguments with the stored content of each value in its place."""
        return map_args(self.args, _stored)

    def __lt__(self, other: Task) -> bool:
        return (not self.priority, self.number) < (not other.priority, other.number)


def _stored(argument: Any) -> Any:
    if isinstance(argument, Value):
        return argument.future.result()
    return argument.current if isinstance(argument, Updates) else argument


class TaskGraph:
    """Queue tasks whose inputs are available, pass failures on, and free values. For one thread at a time."""

    def __init__(self, discard: Callable[[str], None] = discard) -> None:
        self._discard = discard
        """Removes the file of a value."""
        self._ready: list[Task] = []
        self._woken: deque[tuple[Task, BaseException | None]] = deque()
        """Tasks of which an input has arrived, with its error if it has failed."""
        self._unresolved: set[Value] = set()
        self._references: Counter[str] = Counter()
        """How many values or groups of updates use each file."""

    # -- tasks ---------------------------------------------------------------------------------------------

    def add(self, task: Task) -> None:
        """Add a task; it becomes ready when its inputs are available."""
        self._unresolved.update(task.outputs)
        if task.updates is not None:
            task.updates.unfinished += 1
            self._unresolved.add(task.updates.result)  # may have failed already: abandon() checks
        error: BaseException | None = None
        for value in task.inputs():
            value.readers += 1
            if value.future.done():
                error = error or value.future.exception()
            else:
                value.waiting.append(task)
                task.missing += 1
        if error is not None and task.updates is None:
            self.fail(task, error)
        else:
            self._advance(task)

    def next_ready(self, cpus: int) -> Task | None:
        """Remove and return the first ready task, ``None`` without one or if it needs more CPUs than this."""
        return heapq.heappop(self._ready) if self._ready and self._ready[0].cpus <= cpus else None

    def requeue(self, task: Task) -> None:
        """Queue a task that was running when its process died."""
        heapq.heappush(self._ready, task)

    def complete(self, task: Task, results: Sequence[StoredValue]) -> None:
        """Set a task's results."""
        if task.updates is not None:
            self._replace(task.updates, results[0])
        for value, stored in zip(task.outputs, results, strict=True):
            self._resolve(value, stored)
        self._detach(task)

    def fail(self, task: Task, error: BaseException) -> None:
        """Set a task's results to an error."""
        task.failed = True
        for value in task.outputs:
            self._settle(value, error)
        if task.updates is not None:
            self._settle(task.updates.result, error)
        self._detach(task)

    def wake(self) -> None:
        """Check the tasks whose inputs have arrived; iterative, since a failure may pass through a long chain."""
        while self._woken:
            task, error = self._woken.popleft()
            task.missing -= 1
            if task.failed:
                continue
            if error is not None and task.updates is None:
                self.fail(task, error)  # without waiting for its other inputs
            else:
                self._advance(task)

    def abandon(self, error: BaseException) -> None:
        """Set all values that are still missing to an error."""
        for value in self._unresolved:
            if not value.future.done():
                value.future.set_exception(error)
        self._unresolved.clear()

    def _advance(self, task: Task) -> None:
        """Queue or fail a task if all its inputs are available."""
        if task.missing:
            return
        for value in task.inputs():
            if (error := value.future.exception()) is not None:
                self.fail(task, error)
                return
        if task.updates is None:
            heapq.heappush(self._ready, task)
        else:
            task.updates.ready.append(task)
            self._next_update(task.updates)

    def _detach(self, task: Task) -> None:
        """Free what a finished task has used."""
        for value in task.inputs():
            value.readers -= 1
            self._free(value)
        if (updates := task.updates) is not None:
            updates.unfinished -= 1
            updates.running = False
            self._next_update(updates)
            self._publish(updates)

    # -- commutative updates -------------------------------------------------------------------------------

    def close(self, updates: Updates) -> None:
        """Accept no more updates in this group: its value is about to be read."""
        updates.closed = True
        self._publish(updates)

    def _next_update(self, updates: Updates) -> None:
        if updates.running or not updates.ready:
            return
        if updates.current is None:
            updates.current = updates.base.future.result()
            self._acquire(updates.current)
        updates.running = True
        heapq.heappush(self._ready, updates.ready.popleft())

    def _replace(self, updates: Updates, stored: StoredValue) -> None:
        if updates.current is not None:
            self._release(updates.current)
        updates.current = stored
        self._acquire(stored)

    def _publish(self, updates: Updates) -> None:
        """Give a closed group's value to its readers after the last update."""
        done = updates.closed and not updates.unfinished
        if not done or updates.current is None:
            return
        if not updates.result.future.done():
            self._resolve(updates.result, updates.current)
        self._release(updates.current)
        updates.current = None

    # -- values --------------------------------------------------------------------------------------------

    def hold(self, value: Value, stored: StoredValue) -> None:
        """Count the file of a published value."""
        self._acquire(stored)
        self._free(value)

    def delete(self, value: Value) -> None:
        """Free a value once its last reader has finished."""
        value.deleted = True
        self._free(value)

    def _resolve(self, value: Value, stored: StoredValue) -> None:
        self._acquire(stored)
        self._settle(value, stored)
        self._free(value)

    def _settle(self, value: Value, outcome: StoredValue | BaseException) -> None:
        if value.future.done():
            return
        self._unresolved.discard(value)
        if isinstance(outcome, StoredValue):
            value.future.set_result(outcome)
        else:
            value.future.set_exception(outcome)
        error = outcome if isinstance(outcome, BaseException) else None
        self._woken.extend((task, error) for task in value.waiting)
        value.waiting = []

    def _free(self, value: Value) -> None:
        free = value.deleted and not value.readers and value.future.done()
        if free and value.future.exception() is None:
            self._release(value.future.result())
            value.deleted = False

    def _acquire(self, stored: StoredValue) -> None:
        if stored.path is not None:
            self._references[stored.path] += 1

    def _release(self, stored: StoredValue) -> None:
        if stored.path is None:
            return
        self._references[stored.path] -= 1
        if not self._references[stored.path]:
            del self._references[stored.path]
            self._discard(stored.path)
