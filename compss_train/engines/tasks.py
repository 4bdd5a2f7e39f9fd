"""What the local engine's scheduler keeps of values, tasks and commutative updates."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from compss_train.engines.base import Ref
from compss_train.engines.store import Stored


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
