"""Abstract class of engines: they run functions as tasks and return references to the results.

The coordinator holds references, and gets the values behind them by ``fetch`` only. So parameters go from task to
task without passing through the coordinator. Also here: what a task occupies, and a task's failure.
"""

from __future__ import annotations

import pickle
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self

import cloudpickle

from compss_train.exceptions import WorkerTraceback


class Ref:
    """A reference to a value that an engine holds, or will hold once a task has run. Its content is private."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a task while it runs."""

    cpus: int = 1
    """Computing units, which are also the intra-op threads that torch uses in the task."""
    gpus: int = 0
    """GPUs; several tasks may share one if the engine places them on the same device."""
    gpu_tasks: int = 0
    """The most tasks with these resources at a time, for an engine that places tasks on GPUs by itself; 0 for as
    many as there are GPUs."""


ONE_CPU = Resources()


def map_refs(args: Sequence[Any], function: Callable[[Ref], Any]) -> tuple[Any, ...]:
    """Return a task's arguments with every reference replaced by ``function(reference)``.

    References may be arguments, or items of lists that are arguments. Raises ``TypeError`` for a reference at any
    other place in tuples, lists or dicts.
    """
    return tuple(
        [
            [function(item) if isinstance(item, Ref) else _plain(item) for item in argument]
            if isinstance(argument, list)
            else function(argument)
            if isinstance(argument, Ref)
            else _plain(argument)
            for argument in args
        ]
    )


def _plain(value: Any) -> Any:
    """Return a value that holds no references."""
    if isinstance(value, list | tuple | dict) and _holds_ref(value):
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
    """Run plain module-level functions as tasks.

    A task is a pure function: it does not change its arguments, and returns the same results when it is run again,
    so that an engine may repeat it after a fault. Arguments are plain values, references, or lists that hold
    references (not deeper); a task starts when the values of all its references are available. An engine is used by
    one thread.

    A task's exception is raised by ``fetch`` of any result that depends on it (by ``submit`` if tasks run
    immediately), with the worker's traceback. After ``shutdown`` every call raises ``EngineClosedError``.
    """

    name: ClassVar[str]
    asynchronous: ClassVar[bool] = True
    """Whether ``submit`` returns before the task has run, so that tasks can be submitted ahead."""

    shared_memory: ClassVar[bool] = False
    """Whether tasks map published values, so that a large argument is not copied."""

    pays_by_value: ClassVar[bool] = False
    """Whether each value that a task takes costs much, however small it is."""

    replaces_processes: ClassVar[bool] = True
    """Whether a task whose process dies is run again in another process, without other tasks."""

    waiting_stops_threads: ClassVar[bool] = False
    """Whether waiting for tasks blocks all other threads of this process."""

    task_seconds: ClassVar[float] = 0.001
    """What a task costs beside its work, roughly."""

    threads: int | None = None
    """Default number of intra-op threads of a task; ``None`` for a share of the cores."""

    @abstractmethod
    def publish(self, value: object) -> Ref:
        """Store a value once for all tasks that read it, such as a block or what all tasks share.

        Each call makes a separate value, even for the same object.
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
        tuple that it returns. A task with ``priority`` runs before all waiting tasks without.
        """

    @abstractmethod
    def commute(self, target: Ref, function: Callable[..., Any], *args: Any) -> Ref:
        """Update the value behind ``target`` to ``function(value, *args)``, in any order with other updates.

        Updates of one target run one at a time, in the order in which their arguments become available. Later
        reads of ``target`` see every update submitted so far. Returns a reference to the value after this
        update.
        """

    @abstractmethod
    def fetch(self, refs: Sequence[Ref], *, small: bool = False) -> list[Any]:
        """Wait for the values and return them. Raises the exception of a task that failed.

        ``small`` means that they have a few hundred bytes each: an engine may transfer many of them together.
        """

    @abstractmethod
    def peek(self, ref: Ref, timeout: float = 0.0) -> Any:
        """Return the newest value behind the reference, or ``None`` if there is none within ``timeout`` seconds.

        Unlike ``fetch`` it does not wait for unfinished commutative updates. An engine that cannot read values
        without waiting may always return ``None``.
        """

    @abstractmethod
    def wait(self, refs: Sequence[Ref], timeout: float) -> bool:
        """Wait until all values are available or one has failed; return ``False`` after ``timeout`` seconds.

        An engine that cannot wait with a timeout returns ``True`` immediately; ``fetch`` waits then.
        """

    @abstractmethod
    def ended(self, ref: Ref) -> bool | None:
        """Return whether the value is available or has failed, without waiting; ``None`` if that is unknown."""

    @abstractmethod
    def delete(self, refs: Sequence[Ref]) -> None:
        """Free the values once all submitted tasks have read them. The references are invalid from now on."""

    @abstractmethod
    def places(self, resources: Resources) -> int:
        """Return how many of these tasks run at the same time; 0 if that is unknown."""

    @abstractmethod
    def reserve(self, tasks: Sequence[Resources]) -> None:
        """Make sure that all these tasks can run at the same time: for tasks that wait for each other.

        Raises ``ValueError`` if they cannot. Other submitted tasks may still delay them.
        """

    @abstractmethod
    def host(self) -> str:
        """Return the address at which tasks can reach this machine."""

    def watched(self, timeout: float | None) -> AbstractContextManager[None]:
        """Watch the running tasks inside the context: warn of those that report nothing for long (``heartbeat``).

        With a ``timeout`` a task that reports nothing for so many seconds is ended with its process, and runs again
        in another one. Does nothing in an engine that cannot watch its tasks.
        """
        return nullcontext()

    def trained_samples(self) -> int | None:
        """Return how many samples tasks have trained so far, those of repeated tasks again; ``None`` if unknown.

        Other threads may call it while a task runs.
        """
        return None

    @abstractmethod
    def shutdown(self, *, kill: bool = False) -> None:
        """End the engine and free all its values; ``kill`` ends running tasks instead of waiting for them."""

    @classmethod
    @abstractmethod
    def start(cls, num_workers: int, threads: int, preload: Sequence[str] = ()) -> Self:
        """Start an engine sized for ``num_workers`` tasks of ``threads`` threads at a time.

        ``preload`` names modules that tasks need. An engine that starts processes imports them there before the
        first task; for other engines the function of a task names its module.
        """

    @classmethod
    @abstractmethod
    def default_workers(cls, threads: int) -> int:
        """Return the default number of workers: how many tasks of so many threads run at the same time."""

    @classmethod
    @abstractmethod
    def thread_share(cls, num_workers: int) -> int:
        """Return the default number of intra-op threads of a task."""

    @classmethod
    def time_left(cls) -> float | None:
        """Return the seconds until what this program runs under ends it, ``None`` without such a limit."""
        return None

    @classmethod
    @abstractmethod
    def device(cls, worker: int, num_gpu: int) -> str:
        """Return the torch device of a worker's tasks if all workers share ``num_gpu`` GPUs."""

    @classmethod
    @abstractmethod
    def check_gpus(cls, num_gpu: int, num_nodes: int) -> None:
        """Raise ``ValueError`` unless so many GPUs are available."""

    def __deepcopy__(self, memo: object) -> Self:
        """Return the engine itself: a copy of its owner uses the same processes."""
        return self

    def __reduce__(self) -> NoReturn:
        """Raise ``TypeError``: an engine belongs to its process."""
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


def exited(error: SystemExit) -> RuntimeError:
    """Return the error of a task that would have ended its process, and with the serial engine the program."""
    return RuntimeError(
        f"a task called sys.exit({'' if error.code is None else repr(error.code)}): networks, losses and all else "
        "that tasks run must not end their process; raise an exception instead"
    )


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of a task in a form that can be sent; one that cannot be pickled becomes a ``RuntimeError``."""

    pickled: bytes
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return the failure for an exception that is being handled; ``SystemExit`` becomes a ``RuntimeError``."""
        text = "".join(traceback.format_exception(error))
        if isinstance(error, SystemExit):
            error = exited(error)
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
