"""``GraphEngine``: the references and tasks of engines whose dependencies are a ``TaskGraph``."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from compss_train.engines.base import ONE_CPU, Engine, Ref, Resources, map_refs
from compss_train.engines.local.task_graph import Task, TaskGraph, Updates, Value


class GraphRef(Ref):
    """A reference: its present value, and the updates that will replace it."""

    __slots__ = ("updates", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.updates: Updates | None = None


class GraphEngine(Engine):
    """Queues tasks in a graph, which ``_post`` changes: in the thread that owns it, or at once."""

    _graph: TaskGraph
    _numbers: Iterator[int]
    """Of tasks, in the order of their submission."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raise ``EngineClosedError`` after ``shutdown``."""

    @abstractmethod
    def _post(self, function: Callable[..., None], *args: Any) -> None:
        """Call a method of the graph, in the thread that it belongs to."""

    def _add(self, task: Task) -> None:
        """Add a task to the graph."""
        self._post(self._graph.add, task)

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        returns: int = 1,
        resources: Resources = ONE_CPU,
        priority: bool = False,
    ) -> Any:
        """Queue the task."""
        self._check_open()
        task = Task(
            number=next(self._numbers),
            function=function,
            args=map_refs(args, self._read),
            outputs=[Value() for _ in range(returns)],
            cpus=resources.cpus,
            priority=priority,
        )
        self._add(task)
        refs = [GraphRef(value) for value in task.outputs]
        return refs[0] if returns == 1 else refs

    def commute(self, target: Ref, function: Callable[..., Any], *args: Any) -> Ref:
        """Queue the update, with priority."""
        self._check_open()
        ref = self._own(target)
        if ref.updates is None:
            ref.updates = Updates(base=ref.value)
        updates = ref.updates
        task = Task(
            number=next(self._numbers),
            function=function,
            args=(updates, *map_refs(args, self._read)),
            outputs=[Value()],
            priority=True,
            updates=updates,
        )
        self._add(task)
        return GraphRef(task.outputs[0])

    def delete(self, refs: Sequence[Ref]) -> None:
        """Free the values once all submitted tasks have read them."""
        self._check_open()
        for ref in refs:
            self._post(self._graph.delete, self._read(ref))

    def arrived(self, refs: Sequence[Ref]) -> list[Ref]:
        """Return those whose task has ended; of a value under commutative update, the task of its first value."""
        self._check_open()
        return [ref for ref in refs if self._own(ref).value.future.done()]

    def _read(self, ref: Ref) -> Value:
        """Return the value that readers get from now on: after all updates submitted so far."""
        own = self._own(ref)
        if own.updates is not None:
            updates, own.updates = own.updates, None
            self._post(self._graph.delete, own.value)
            own.value = updates.result
            self._post(self._graph.close, updates)
        return own.value

    def _own(self, ref: Ref) -> GraphRef:
        if not isinstance(ref, GraphRef):
            raise TypeError(f"{ref!r} is not a reference of the {self.name} engine")
        return ref
