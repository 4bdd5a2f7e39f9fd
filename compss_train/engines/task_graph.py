"""The graph of tasks: when they are ready, and which values are still needed.

``TaskGraph`` belongs to one thread; ``graph_engine`` has the engines that submit to it.
``docs/updates.svg`` shows the versions of a value that is updated.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from compss_train.engines.base import Scope
from compss_train.engines.calls import map_args
from compss_train.engines.nodes import ONE_CPU, Resources
from compss_train.engines.watch import Watching
from compss_train.exceptions import TaskCancelledError


class Stored(Protocol):
    """A value where an engine keeps it."""

    def load(self) -> Any:
        """Return the value."""

    def discard(self) -> None:
        """Free the value, which nobody reads any more."""


@dataclass(eq=False, slots=True)
class Value:
    """A value that is written once. All attributes but ``future`` belong to the graph's thread."""

    future: Future[Stored] = field(default_factory=Future)
    waiting: "list[Task]" = field(default_factory=list)
    """Tasks that cannot start before this value is available."""
    readers: int = 0
    """Number of its users: unfinished tasks, upcoming updates, and the value that it becomes."""
    deleted: bool = False
    twin: "Value | None" = None
    """The value that is the same once this one is available."""
    original: "Value | None" = None
    """The value that this one is the twin of, which it needs until it is deleted."""


@dataclass(eq=False, slots=True)
class Updates:
    """The commutative updates of a value since it was last read: a chain, as they became ready."""

    last: Value
    """The result of the chain's last update; before the first one, the value itself."""
    result: Value = field(default_factory=Value)
    """The value after all updates."""
    newest: Value | None = None
    """The result of the last update that has run; ``peek`` sees it until the value is read."""
    waiting: int = 0
    """Updates with missing arguments, which have no place in the chain yet."""
    closed: bool = False
    """Whether the value has a reader, so that no more updates can join."""


@dataclass(eq=False, slots=True, kw_only=True)
class Task:
    """A task and its dependencies.

    The first argument of an update is its ``Updates`` until it is in the chain.
    """

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: list[Value]
    scope: Scope = field(default_factory=Scope)
    resources: Resources = ONE_CPU
    priority: bool = False
    place: int | None = None
    """A hint where to run it: the number of a place, of all in turn."""
    updates: Updates | None = None
    missing: int = 0
    """Number of inputs that are not available yet."""
    deaths: int = 0
    """Number of times that a process died while this task ran."""
    timed_out: bool = False
    """Whether its process was ended because it reported nothing for too long."""
    failed: bool = False
    """Whether the task has failed, possibly before all its inputs were available."""
    runs: bool = False
    cancelled: bool = False
    """Whether it is to end, and fail however it does."""

    @property
    def watching(self) -> Watching | None:
        """How it is watched."""
        return self.scope.watching

    def inputs(self) -> Iterator[Value]:
        """Iterate over the values that the task reads."""
        for argument in self.args:
            for item in argument if isinstance(argument, list) else [argument]:
                if isinstance(item, Value):
                    yield item

    def stored_args(self) -> tuple[Any, ...]:
        """Return the arguments with the stored content of each value in its place."""
        return map_args(
            self.args, lambda item: item.future.result() if isinstance(item, Value) else item
        )

    def __lt__(self, other: Self) -> bool:
        return (not self.priority, self.number) < (not other.priority, other.number)


class TaskGraph:
    """Queue tasks whose inputs are available, pass failures on, and free values.

    For one thread at a time.
    """

    def __init__(self) -> None:
        self._ready: list[Task] = []
        self._woken: deque[tuple[Task, BaseException | None]] = deque()
        """Tasks with an input that has arrived, and the input's error if it has failed."""
        self._unresolved: set[Value] = set()

    def add(self, task: Task) -> None:
        """Add a task; it becomes ready when its inputs are available."""
        self._unresolved.update(task.outputs)
        task.scope.tasks.add(task)
        if task.updates is not None:
            task.updates.waiting += 1
        error: BaseException | None = None
        for value in task.inputs():
            value.readers += 1
            error = self._await(task, value) or error
        self._advance(task, error)

    def begin(self, updates: Updates) -> None:
        """Keep a value that is about to be updated."""
        updates.last.readers += 1
        self._unresolved.add(updates.result)

    def close(self, updates: Updates) -> None:
        """Accept no more updates in this group: its value is about to be read."""
        updates.closed = True
        self._keep(updates, None)
        self._complete_chain(updates)

    def next_ready(self, cpus: int) -> Task | None:
        """Remove and return the first ready task; ``None`` if it needs more than ``cpus`` CPUs.

        It is ``None`` without ready tasks, too.
        """
        while self._ready and self._ready[0].failed:  # cancelled
            heapq.heappop(self._ready)
        if not self._ready or self._ready[0].resources.cpus > cpus:
            return None
        task = heapq.heappop(self._ready)
        task.runs = True
        return task

    def requeue(self, task: Task) -> None:
        """Queue a task that was running when its process died, unless it was cancelled."""
        task.runs = False
        if task.cancelled:
            self.fail(task, TaskCancelledError())
        else:
            heapq.heappush(self._ready, task)

    def cancel(self, scope: Scope) -> list[Task]:
        """Fail the unfinished tasks of a scope; return those that run, which fail when they end."""
        running = []
        for task in [*scope.tasks]:
            task.cancelled = True
            if task.runs:
                running.append(task)
            elif not task.failed:
                self.fail(task, TaskCancelledError())
        if not running:
            scope.ended.set()
        return running

    def complete(self, task: Task, results: Sequence[Stored]) -> None:
        """Set a task's results, unless it was cancelled."""
        if task.cancelled:
            for stored in results:
                stored.discard()
            self.fail(task, TaskCancelledError())
            return
        if task.updates is not None and not task.updates.closed:
            self._keep(task.updates, task.outputs[0])
        for value, stored in zip(task.outputs, results, strict=True):
            self._settle(value, stored)
        self._detach(task)

    def fail(self, task: Task, error: BaseException) -> None:
        """Set a task's results to an error."""
        if task.cancelled:
            error = TaskCancelledError()
        task.failed = True
        if task.updates is not None and task.args[0] is task.updates:
            self._chain(task, task.updates)
        for value in task.outputs:
            self._settle(value, error)
        self._detach(task)

    def wake(self) -> None:
        """Check the tasks whose inputs have arrived.

        Iterative, since a failure may pass through a long chain.
        """
        while self._woken:
            task, error = self._woken.popleft()
            task.missing -= 1
            if not task.failed:
                self._advance(task, error)

    def delete(self, value: Value) -> None:
        """Free a value once its last reader has finished."""
        value.deleted = True
        self._free(value)

    def abandon(self, error: BaseException) -> None:
        """Set all values that are still missing to an error."""
        for value in self._unresolved:
            if not value.future.done():
                value.future.set_exception(error)
        self._unresolved.clear()

    def _await(self, task: Task, value: Value) -> BaseException | None:
        """Let a task wait for a missing input; return the input's error if it has failed."""
        if value.future.done():
            return value.future.exception()
        value.waiting.append(task)
        task.missing += 1
        return None

    def _advance(self, task: Task, error: BaseException | None) -> None:
        """Fail a task at once if an input has failed; queue it if all inputs are available."""
        if (
            error is None
            and not task.missing
            and task.updates is not None
            and task.args[0] is task.updates
        ):
            error = self._await(task, self._chain(task, task.updates))
        if error is not None:
            self.fail(task, error)
        elif not task.missing:
            heapq.heappush(self._ready, task)

    def _chain(self, task: Task, updates: Updates) -> Value:
        """Put an update at the end of its chain; return the value that it reads."""
        before = updates.last
        updates.last = task.outputs[0]
        updates.last.readers += 1
        task.args = (before, *task.args[1:])
        updates.waiting -= 1
        self._complete_chain(updates)
        return before

    def _keep(self, updates: Updates, newest: Value | None) -> None:
        """Keep the newest value of a group, in place of the one before."""
        before = updates.newest
        updates.newest = newest
        if newest is not None:
            newest.readers += 1
        if before is not None:
            before.readers -= 1
            self._free(before)

    def _complete_chain(self, updates: Updates) -> None:
        """Give a closed group's value to its readers once it has the value of the last update."""
        if updates.closed and not updates.waiting:
            last = updates.last
            updates.result.original = last
            last.twin = updates.result
            if last.future.done():
                self._settle(updates.result, last.future.exception() or last.future.result())

    def _detach(self, task: Task) -> None:
        task.scope.tasks.discard(task)
        if task.cancelled and not task.scope.tasks:
            task.scope.ended.set()
        for value in task.inputs():
            value.readers -= 1
            self._free(value)

    def _settle(self, value: Value, outcome: Stored | BaseException) -> None:
        if value.future.done():  # abandoned before
            return
        self._unresolved.discard(value)
        error = outcome if isinstance(outcome, BaseException) else None
        if not isinstance(outcome, BaseException):
            value.future.set_result(outcome)
        else:
            value.future.set_exception(outcome)
        self._woken.extend((task, error) for task in value.waiting)
        value.waiting = []
        if value.twin is not None:
            self._settle(value.twin, outcome)
        self._free(value)

    def _free(self, value: Value) -> None:
        if not value.deleted or value.readers or not value.future.done():
            return
        value.deleted = False
        if value.original is not None:
            value.original.readers -= 1
            self._free(value.original)
        elif value.future.exception() is None:
            value.future.result().discard()
