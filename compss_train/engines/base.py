"""What an engine is: it runs functions somewhere and hands back references to their results.

The coordinator holds references, never the values behind them, until it asks with ``fetch``. Parameters go
from task to task this way without passing through the coordinator.
"""

from __future__ import annotations

import pickle
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self

import cloudpickle

from compss_train.exceptions import WorkerTraceback


class Ref:
    """A handle to a value that an engine holds, or will hold once a task has run. Its content is the engine's."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True)
class Resources:
    """What a task occupies while it runs."""

    cpus: int = 1
    """Computing units, and the intra-op threads that torch uses in the task."""
    gpus: int = 0
    """GPUs; several tasks may share one where the engine places them on the same device."""


ONE_CPU = Resources()


def map_refs(args: Sequence[Any], function: Callable[[Ref], Any]) -> tuple[Any, ...]:
    """Return a task's arguments with every reference replaced by ``function(reference)``.

    References are looked for where every engine finds them: as arguments, and in lists that are arguments.
    Raises ``TypeError`` for one that is anywhere else in tuples, lists or dicts.
    """
    return tuple(
        [_map_ref(item, function) for item in argument]
        if isinstance(argument, list)
        else _map_ref(argument, function)
        for argument in args
    )


def _map_ref(value: Any, function: Callable[[Ref], Any]) -> Any:
    if isinstance(value, Ref):
        return function(value)
    if _holds_ref(value):
        raise TypeError(
            f"a reference is hidden in a {type(value).__name__}; pass references as arguments of their own or in "
            "a plain list that is an argument"
        )
    return value


def _holds_ref(value: Any) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return any(isinstance(item, Ref) or _holds_ref(item) for item in value)


class Engine(ABC):
    """Runs plain module-level functions as tasks.

    A task is a pure function: it does not change its arguments, and run again it gives the same results, so
    that an engine may run it again after a fault. Arguments are plain values, references, or lists that hold
    references (not deeper); a task starts when every reference it takes has its value. One thread drives an engine.

    A task's exception is raised by ``fetch`` of anything that depends on it (by ``submit`` where tasks run at
    once), with the worker's traceback. After ``shutdown`` every call raises ``EngineClosedError``.
    """

    name: ClassVar[str]
    asynchronous: ClassVar[bool] = True
    """Whether ``submit`` returns before the task has run, so that submitting ahead keeps workers busy."""

    shared_memory: ClassVar[bool] = False
    """Whether tasks map what is published, so that taking a large value costs nothing by itself."""

    replaces_processes: ClassVar[bool] = True
    """Whether a task whose process dies is run again in another one, and no other task with it."""

    waiting_stops_threads: ClassVar[bool] = False
    """Whether no other thread of this process runs while it waits for tasks."""

    threads: int | None = None
    """Intra-op threads that tasks have where the user names none; ``None`` for a share of the cores."""

    @abstractmethod
    def publish(self, value: object) -> Ref:
        """Put a value where every task can read it, once; called for blocks and for what all tasks share.

        Each call makes a value of its own, even for the same object.
        """

    @abstractmethod
    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        returns: int = 1,
        resources: Resources = ONE_CPU,
        priority: bool = False,
    ) -> Any:
        """Run ``function(*args)`` as a task.

        Returns a reference to its result, or with ``returns=n`` a list of n references to the items of the
        tuple that it returns. A task with ``priority`` overtakes all that wait to run.
        """

    @abstractmethod
    def commute(self, target: Ref, function: Callable[..., Any], *args: Any) -> Ref:
        """Update the value behind ``target`` to ``function(value, *args)``.

        Updates of one target run one at a time, in whatever order their arguments are ready. What takes
        ``target`` afterwards sees every update submitted so far. Returns a reference to the value that this
        very update made.
        """

    @abstractmethod
    def fetch(self, refs: Sequence[Ref], *, small: bool = False) -> list[Any]:
        """Wait for the values and return them; raises when it comes to one that has failed, or sooner.

        ``small`` says that they are a few hundred bytes each: an engine may bring many of them together.
        """

    @abstractmethod
    def peek(self, ref: Ref, timeout: float = 0.0) -> Any:
        """Return the newest value behind the reference, or ``None`` where none came within ``timeout`` seconds.

        Unlike ``fetch`` it does not wait for commutative updates that are still to come. An engine that cannot
        look at values without waiting may always return ``None``.
        """

    @abstractmethod
    def wait(self, refs: Sequence[Ref], timeout: float) -> bool:
        """Wait until all values are there or one has failed; ``False`` where that took more than so many seconds.

        An engine that can only wait for as long as it takes returns ``True`` at once; ``fetch`` waits then.
        """

    @abstractmethod
    def ended(self, ref: Ref) -> bool | None:
        """Tell whether the value is there or has failed, without waiting; ``None`` where that cannot be known."""

    @abstractmethod
    def delete(self, refs: Sequence[Ref]) -> None:
        """Free the values once the tasks already submitted have read them. The references are void from now."""

    @abstractmethod
    def reserve(self, tasks: Sequence[Resources]) -> None:
        """Make sure that all these tasks can run at the same time: for tasks that wait for each other.

        Raises ``ValueError`` where they never could. What else is submitted may still stand in their way.
        """

    @abstractmethod
    def host(self) -> str:
        """Return the address of this machine at which tasks can reach it."""

    @abstractmethod
    def shutdown(self, *, kill: bool = False) -> None:
        """End the engine and free all it holds; with ``kill`` without waiting for running tasks."""

    @classmethod
    @abstractmethod
    def start(cls, num_workers: int, threads: int, preload: Sequence[str] = ()) -> Self:
        """Start an engine sized for ``num_workers`` tasks of ``threads`` threads at a time.

        ``preload`` names the modules that tasks need. An engine that starts processes imports them there ahead of
        the first task; elsewhere a task's function brings its module.
        """

    @classmethod
    @abstractmethod
    def thread_share(cls, num_workers: int) -> int:
        """Return the intra-op threads that a task has where nobody says how many."""

    @classmethod
    @abstractmethod
    def device(cls, worker: int, num_gpu: int) -> str:
        """Return the torch device that the worker's tasks use where ``num_gpu`` GPUs serve all workers."""

    @classmethod
    @abstractmethod
    def check_gpus(cls, num_gpu: int, num_nodes: int) -> None:
        """Raise ``ValueError`` unless that many GPUs can be had."""

    def __deepcopy__(self, memo: object) -> Self:
        """Return the engine itself: it stands for what runs, of which a copy of its owner is another user."""
        return self

    def __reduce__(self) -> NoReturn:
        """Raise ``TypeError``: what runs is this process's."""
        raise TypeError(f"a {type(self).__name__} cannot be pickled; name the engine instead: {self.name!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown(kill=error is not None)


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of a task, made safe to send: one that cannot be pickled becomes a ``RuntimeError``."""

    pickled: bytes
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe the exception that is being handled."""
        text = "".join(traceback.format_exception(error))
        try:
            pickled = cloudpickle.dumps(error)
            pickle.loads(pickled)
        except Exception:
            pickled = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        return cls(pickled, text)

    def exception(self) -> BaseException:
        """Return the exception with the worker's traceback as its cause."""
        error: BaseException = pickle.loads(self.pickled)
        error.__cause__ = WorkerTraceback(self.text)
        return error
