"""Engines with a task graph: ``GraphEngine`` submits tasks, ``GraphThread`` starts ready ones."""

import contextlib
import itertools
import sys
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from compss_train.engines.base import Engine, Ref, Scope, map_refs
from compss_train.engines.nodes import Resources
from compss_train.engines.task_graph import Stored, Task, TaskGraph, Updates, Value
from compss_train.engines.watch import say
from compss_train.exceptions import EngineClosedError, TaskCancelledError

_CHECK_SECONDS = 1.0
"""How often a waiting ``fetch`` checks that the engine still runs."""


class GraphThread:
    """A thread with a graph of tasks, which it starts as soon as they are ready.

    Other threads communicate with it by ``post`` only.
    """

    def __init__(self) -> None:
        self.graph = TaskGraph()
        self._events: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(
            target=self._run, name="compss_train scheduler", daemon=True
        )

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function in this thread."""
        self._events.put(partial(function, *args))

    def stop(self) -> None:
        """End the thread; waiting for a missing value then raises ``EngineClosedError``."""
        self._stopping = True
        self._events.put(None)
        # Garbage collection may call this in the thread itself.
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self.graph.abandon(EngineClosedError("the engine was shut down before this task had run"))

    def cancel(self, scope: Scope) -> None:
        """Cancel a scope's unfinished tasks, from this thread; ``scope.ended`` tells their end."""
        for task in self.graph.cancel(scope):
            self._end(task)

    @abstractmethod
    def finish_running(self) -> None:
        """Start no more tasks, and wait for the running ones."""

    @abstractmethod
    def _end(self, task: Task) -> None:
        """End a running task, which is cancelled, and soon fails."""

    @abstractmethod
    def _start_ready(self) -> None:
        """Start the tasks that are ready and have room."""

    def _check(self) -> float | None:
        """Do what is due from time to time; return the seconds until the next time, or ``None``."""
        return None

    def _run(self) -> None:
        try:
            while True:
                try:
                    event = self._events.get(timeout=self._check())
                except Empty:  # it is time for the next check
                    continue
                if event is None:
                    return
                event()
                self.graph.wake()
                if not self._stopping:
                    self._start_ready()
        except EngineClosedError as error:  # the program ends, and starts nothing any more
            self.graph.abandon(error)
        except BaseException as error:  # a bug must not leave callers waiting
            self.graph.abandon(error)
            raise


class GraphRef(Ref):
    """A reference: its current value, and the updates that will replace it."""

    __slots__ = ("engine", "updates", "value")

    def __init__(self, engine: "GraphEngine", value: Value) -> None:
        self.engine = engine
        self.value = value
        self.updates: Updates | None = None

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending():  # else the engine has ended, and the names of modules are gone
            self.engine.release(self)


class GraphEngine(Engine):
    """Queues tasks in a graph; ``_post`` changes it in the thread that owns it, or immediately."""

    _scheduler: GraphThread
    _graph: TaskGraph
    end: "weakref.finalize[Any, Any]"
    """Ends the engine, once."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        """The numbers of tasks, in the order of their submission."""

    def shutdown(self, *, kill: bool = False) -> None:
        """End the engine and free all its values; further calls do nothing."""
        if self.end.alive and not kill:
            self._scheduler.finish_running()
        self.end()

    def _check_open(self) -> None:
        if not (self.end.alive and self._scheduler.alive):
            raise EngineClosedError(f"this {self.name} engine was shut down; make a new one")

    def _post(self, function: Callable[..., None], *args: Any) -> None:
        """Call a method of the graph, in the thread that it belongs to."""
        self._scheduler.post(function, *args)

    @abstractmethod
    def _store(self, value: object) -> Stored:
        """Store a published value."""

    def _check_size(self, resources: Resources) -> None:
        """Raise ``ValueError`` if a task needs more than the engine ever has."""

    def publish(self, value: object) -> Ref:
        """Store the value, for tasks that read it without copying it."""
        self._check_open()
        published = Value()
        published.future.set_result(self._store(value))
        return self._made(GraphRef(self, published))

    def _submit(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        returns: int,
        resources: Resources,
        priority: bool,
        place: int | None,
    ) -> Sequence[Ref]:
        """Queue the task."""
        self._check_size(resources)
        task = Task(
            number=next(self._numbers),
            function=function,
            args=map_refs(args, self._settled_value),
            outputs=[Value() for _ in range(returns)],
            scope=self._scope,
            resources=resources,
            priority=priority,
            place=place,
        )
        self._post(self._graph.add, task)
        return [self._made(GraphRef(self, value)) for value in task.outputs]

    def fetch(self, refs: Sequence[Ref], *, small: bool = False) -> list[Any]:
        """Wait, and raise as soon as a task has failed."""
        self._check_open()
        futures = [self._settled_value(ref).future for ref in refs]
        missing: Iterable[Future[Stored]] = futures
        while missing:
            done, missing = wait(futures, _CHECK_SECONDS, FIRST_EXCEPTION)
            _raise_first(done)
            if missing:
                self._check_open()
        return [future.result().load() for future in futures]

    def peek(self, ref: Ref, timeout: float = 0.0) -> Any:
        """Return the value; the newest one if it is being updated commutatively."""
        self._check_open()
        graph_ref = self._own(ref)
        while graph_ref.updates is not None and (newest := graph_ref.updates.newest) is not None:
            with contextlib.suppress(FileNotFoundError):  # the next update has just replaced it
                return newest.future.result().load()
        future = graph_ref.value.future
        wait([future], timeout)
        return future.result().load() if future.done() and future.exception() is None else None

    def wait(self, refs: Sequence[Ref], timeout: float) -> bool:
        """Wait for the tasks."""
        self._check_open()
        done, missing = wait(
            [self._settled_value(ref).future for ref in refs], timeout, FIRST_EXCEPTION
        )
        return not missing or any(future.exception() is not None for future in done)

    def commute(self, target: Ref, function: Callable[..., Any], *args: Any) -> Ref:
        """Queue the update, with priority."""
        self._check_open()
        ref = self._own(target)
        if ref.updates is None:
            ref.updates = Updates(ref.value)
            self._post(self._graph.begin, ref.updates)
        task = Task(
            number=next(self._numbers),
            function=function,
            args=(ref.updates, *map_refs(args, self._settled_value)),
            outputs=[Value()],
            scope=self._scope,
            priority=True,
            updates=ref.updates,
        )
        self._post(self._graph.add, task)
        return self._made(GraphRef(self, task.outputs[0]))

    def free(self, refs: Sequence[Ref]) -> None:
        """Free the values once all submitted tasks have read them."""
        for ref in map(self._own, refs):
            self.release(ref)
            ref.value = Value()
            ref.updates = None
            ref.value.future.set_exception(TaskCancelledError())

    def cancel(self) -> None:
        """End the tasks, those that run with their processes."""
        self._check_open()
        self._cancel(self._scope)

    def _cancel(self, scope: Scope) -> None:
        scope.ended.clear()
        self._post(self._scheduler.cancel, scope)
        if not scope.ended.wait(_CHECK_SECONDS):
            say("waiting for the end of cancelled tasks")
        while not scope.ended.wait(_CHECK_SECONDS):
            self._check_open()

    def release(self, ref: GraphRef) -> None:
        """Free a value once all submitted tasks have read it.

        Any thread may call this, also after the end.
        """
        self._post(self._graph.delete, self._settled_value(ref))

    def arrived(self, refs: Sequence[Ref]) -> list[Ref]:
        """Return the references whose task has ended.

        For commutative updates it is the task of the first value.
        """
        self._check_open()
        return [ref for ref in refs if self._own(ref).value.future.done()]

    def _settled_value(self, ref: Ref) -> Value:
        """Return the value that readers get from now on: after all updates submitted so far."""
        graph_ref = self._own(ref)
        updates = graph_ref.updates
        if updates is not None:
            graph_ref.updates = None
            self._post(self._graph.delete, graph_ref.value)
            graph_ref.value = updates.result
            self._post(self._graph.close, updates)
        return graph_ref.value

    def _own(self, ref: Ref) -> GraphRef:
        if not isinstance(ref, GraphRef):
            raise TypeError(f"{ref!r} is not a reference of the {self.name} engine")
        return ref


def _raise_first(futures: Iterable[Future[Any]]) -> None:
    for future in futures:
        error = future.exception()
        if error is not None:
            raise error
