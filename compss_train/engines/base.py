"""Abstract class of engines: they run functions as tasks and return references to the results.

The coordinator holds references, and gets the values behind them only by ``fetch``, so that
parameters pass from task to task without going through the coordinator.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self, TypeVar
from weakref import WeakSet

from compss_train._utils.validation import warn_once
from compss_train.engines import calls, nodes
from compss_train.engines.nodes import ONE_CPU, Node, Resources
from compss_train.engines.watch import Watching
from compss_train.exceptions import EngineClosedError
from compss_train.model.devices import CPU, accelerators, gpu
from compss_train.model.program_settings import ProgramSettings


class Ref:
    """A reference to a value that an engine holds, or will hold once a task has run.

    Its content is private. The engine frees the value when no reference to it is left and all
    submitted tasks have read it.

    The engine frees the value when no reference to it is left and all submitted tasks have read it.
    """

    __slots__ = ("__weakref__",)


_Ref = TypeVar("_Ref", bound=Ref)


@dataclass(eq=False, slots=True)
class Scope:
    """What one thread makes in an engine from ``Engine.scope`` on to its end, as a fit does."""

    watching: Watching | None = None
    """How its tasks are watched, ``None`` for not at all."""
    settings: ProgramSettings | None = None
    """The program's settings when the scope began; tasks in other processes have them too."""
    refs: WeakSet[Ref] = field(default_factory=WeakSet)
    """The references that it has made."""
    reserved: Sequence[Resources] = ()
    """The tasks that are to run at the same time."""
    tasks: set[Any] = field(default_factory=set)
    """Its unfinished tasks, in engines with a task graph, whose thread they belong to."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set once all are cancelled and have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """How an engine differs from others, for code that submits tasks."""

    asynchronous: bool = True
    """Whether ``submit`` returns before the task has run, so that tasks can be submitted ahead."""
    interruptible: bool = True
    """Whether waiting has a timeout and lets other threads run.

    Otherwise ``fetch`` blocks all threads of this process, ``wait`` returns at once, and
    ``arrived`` knows nothing.
    """
    starts_processes: bool = False
    """Whether it starts the workers' processes itself, here and with this environment."""
    shared_memory: bool = False
    """Whether tasks map published values, so that a large argument is not copied."""
    pays_by_value: bool = False
    """Whether each value passed to a task is costly, however small it is."""
    binds_gpus: bool = False
    """Whether the runtime assigns a GPU to each task that asks for one."""
    task_seconds: float = 0.001
    """Rough overhead of a task, besides its work."""
    object_bytes: int = 2**16
    """Bytes that take as long to move as one object more; smaller values are better together."""


def map_refs(args: Sequence[Any], function: Callable[[Ref], Any]) -> tuple[Any, ...]:
    """Return a task's arguments with every reference replaced by ``function(reference)``.

    References may be arguments, or items of lists that are arguments. Raises ``TypeError`` for a
    reference anywhere else in tuples, lists or dicts.
    """

    def mapped(value: Any) -> Any:
        if isinstance(value, Ref):
            return function(value)
        if isinstance(value, list | tuple | dict) and _holds_ref(value):
            raise TypeError(
                f"a reference is hidden in a {type(value).__name__}; pass references as "
                "arguments of their own or in a plain list that is an argument"
            )
        return value

    return calls.map_args(args, mapped)


def _holds_ref(value: Any) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return any(isinstance(item, Ref) or _holds_ref(item) for item in value)


class Engine(ABC):
    """Run plain module-level functions as tasks.

    A task is a pure function: it does not change its arguments, and returns the same results when
    it is run again, so that an engine may repeat it after a fault. Arguments are plain values,
    references, or lists that hold references (not deeper); a task starts when the values of all its
    references are available.

    Several threads may use an engine at the same time, each with references of its own, for example
    for a fit each. What a thread makes within a ``scope`` ends with that scope if it fails, and
    nothing else does. Only ``CompssEngine`` belongs to one thread, the one that made it; others get
    a ``RuntimeError``.

    A task's exception is raised by ``fetch`` of any result that depends on it (by ``submit`` if
    tasks run immediately), with the worker's traceback. After ``shutdown`` every call raises
    ``EngineClosedError``.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]
    gpu_source: ClassVar[str] = "Torch sees GPUs if it was built for them"
    """A sentence that says which GPUs the engine has."""

    threads: int | None = None
    """Default number of intra-op threads of a task; ``None`` for a share of the cores."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """Held while the engine's size changes."""
        self._outside = Scope(settings=self._program_settings())
        """Of threads that are in no other."""
        self._entered = threading.local()
        """Has the innermost scope of each thread."""
        self._scopes = {self._outside}

    @classmethod
    def start(cls, num_workers: int, threads: int, preload: Sequence[str] = ()) -> Self:
        """Start an engine sized for ``num_workers`` tasks of ``threads`` threads at a time.

        ``preload`` names modules that tasks need. An engine that starts processes imports them
        there before the first task; for other engines the function of a task names its module. The
        default ignores the arguments.
        """
        return cls()

    @abstractmethod
    def publish(self, value: object) -> Ref:
        """Store a value once for all tasks that read it, such as a block or what all tasks share.

        Each call makes a separate value, even for the same object.
        """

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        returns: int = 1,
        resources: Resources = ONE_CPU,
        priority: bool = False,
        place: int | None = None,
    ) -> Any:
        """Run ``function(*args)`` as a task.

        Returns a reference to its result, or with ``returns=n`` a list of n references to the items
        of the tuple that it returns. ``priority`` is a hint: engines that support it run the task
        before tasks without. So is ``place``: those with the same number run at the same place, of
        ``merging_places`` in turn.

        Raises ``ValueError`` if the task needs more than the engine ever has, since it could never
        run, and for a function of this package that the table of tasks in ``calls`` lacks, where
        COMPSs would not find it.
        """
        calls.task_name(function)
        self._check_open()
        refs = self._submit(function, args, returns, resources, priority, place)
        return refs[0] if returns == 1 else refs

    @abstractmethod
    def _submit(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        returns: int,
        resources: Resources,
        priority: bool,
        place: int | None,
    ) -> Sequence[Ref]:
        """Submit the task; return references to its results.

        Raises ``ValueError`` if it could never run.
        """

    @abstractmethod
    def commute(self, target: Ref, function: Callable[..., Any], *args: Any) -> Ref:
        """Update the value behind ``target`` to ``function(value, *args)``.

        Updates of one target run one at a time, in the order in which their arguments become
        available. Later reads of ``target`` see every update submitted so far. Returns a reference
        to the value after this update.
        """

    @abstractmethod
    def fetch(self, refs: Sequence[Ref], *, small: bool = False) -> list[Any]:
        """Wait for the values and return them. Raises the exception of a task that failed.

        ``small`` means that the values have a few hundred bytes each: an engine may transfer many
        of them together.
        """

    @abstractmethod
    def peek(self, ref: Ref, timeout: float = 0.0) -> Any:
        """Return the newest value behind the reference; ``None`` after ``timeout`` seconds.

        Unlike ``fetch`` it does not wait for unfinished commutative updates. An engine that cannot
        read values without waiting may always return ``None``.
        """

    def wait(self, refs: Sequence[Ref], timeout: float) -> bool:
        """Wait until all values are available or one has failed.

        Returns ``False`` after ``timeout`` seconds. An engine that cannot wait with a timeout
        returns ``True`` immediately; ``fetch`` waits then.

        An engine that cannot wait with a timeout returns ``True`` immediately; ``fetch`` waits
        then.
        """
        self._check_open()
        return True

    @abstractmethod
    def arrived(self, refs: Sequence[Ref]) -> list[Ref]:
        """Return the references whose values are available or have failed, without waiting."""

    def keep(self, refs: Sequence[Ref]) -> None:  # noqa: B027
        """Keep values that tasks need for long: a hint for engines that may have to remake them."""

    def reserve(self, tasks: Sequence[Resources]) -> None:
        """Make sure that these tasks, which wait for each other, can run at the same time.

        They can until the scope of this thread ends, or reserves again. Raises ``ValueError`` if
        they cannot, beside those that other scopes have reserved. Other submitted tasks may still
        delay them.
        """
        self._check_open()
        with self._lock:
            scope = self._scope
            self._reserve([*self._reserved(self._scopes - {scope}), *tasks])
            scope.reserved = tasks

    def _reserved(self, scopes: Collection[Scope]) -> list[Resources]:
        """Return the tasks that these scopes have reserved."""
        return [task for scope in scopes for task in scope.reserved]

    @abstractmethod
    def _reserve(self, tasks: Sequence[Resources]) -> None:
        """Make sure that all these tasks can run at the same time, or raise ``ValueError``."""

    @abstractmethod
    def free(self, refs: Sequence[Ref]) -> None:
        """Free the values behind references that are still held.

        Using these references raises ``TaskCancelledError``.
        """

    @abstractmethod
    def shutdown(self, *, kill: bool = False) -> None:
        """End the engine and free its values; ``kill`` ends running tasks instead of waiting."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raise ``EngineClosedError`` after ``shutdown``."""

    # -- where tasks run --

    @classmethod
    def nodes(cls) -> Sequence[Node]:
        """Return the nodes that tasks run on; empty if they are unknown.

        By default it is this machine, with the cores that this process may use and the GPUs that
        torch sees.
        """
        return [Node("localhost", nodes.cores(), accelerators())]

    def slots(self, resources: Resources) -> int:
        """Return how many tasks with these resources run at the same time; 0 if that is unknown."""
        return sum(node.cpus // resources.cpus for node in self.nodes())

    @property
    def most_tasks(self) -> int | None:
        """How many tasks it would start at a time, ``None`` if ``reserve`` knows the room."""
        return None

    @property
    def merging_places(self) -> int:
        """How many places can merge parts of the parameters at a time; 1 if parts gain nothing.

        Each place has a link or a core of its own.
        """
        return 1

    def host(self) -> str:
        """Return the address at which tasks can reach this machine."""
        return nodes.address_for(self.nodes())

    @classmethod
    def default_workers(cls, threads: int) -> int:
        """Return the default number of workers: how many tasks fit on the physical cores.

        ``threads`` is the number of threads of a task.
        """
        return max(1, nodes.physical_cores() // threads)

    @classmethod
    def thread_share(cls, num_workers: int) -> int:
        """Return the default intra-op threads of a task: a worker's share of the smallest node."""
        cpus = [node.cpus for node in cls.nodes()] or [1]
        return max(1, min(cpus) // -(-num_workers // len(cpus)))

    @classmethod
    def device(cls, worker: int, num_gpu: int) -> str:
        """Return the torch device of a worker's tasks.

        It is one of ``num_gpu`` in turn, unless a runtime binds GPUs to tasks.
        """
        return gpu(None if cls.traits.binds_gpus else worker % num_gpu) if num_gpu else CPU

    @classmethod
    def check_gpus(cls, num_gpu: int) -> None:
        """Raise ``ValueError`` if the nodes have fewer than ``num_gpu`` GPUs.

        Tasks would fail or wait forever.
        """
        nodes = cls.nodes()
        available = sum(node.gpus for node in nodes)
        if nodes and num_gpu > available:
            raise ValueError(
                f"num_gpu={num_gpu}, but the {cls.name} engine has {available} GPUs; use "
                f"num_gpu={available}. {cls.gpu_source}"
            )

    @classmethod
    def time_left(cls) -> float | None:
        """Return the seconds until the runtime ends this program; ``None`` without a limit."""
        return None

    # -- scopes of tasks --

    @contextmanager
    def scope(self, *, watched: bool = False, timeout: float | None = None) -> Iterator[None]:
        """Let what this thread makes inside the context end with it if an exception leaves it.

        Its tasks are then cancelled: those that wait never run, and those that run end with their
        process, which is replaced. Once all have ended (on COMPSs, which cannot cancel tasks, have
        run), the values that were made are freed. Whoever uses them gets a ``TaskCancelledError``.
        What was made outside, also by other threads, and in other scopes inside, is left alone.
        Scopes that end well keep what they have made.

        ``watched`` tasks that are silent for long are warned of (``liveness``). With a ``timeout``,
        a watched task that reports nothing for that many seconds is ended with its process, and
        runs again in another one. An engine that cannot watch its tasks does not.

        Tasks have the program's settings of torch and numpy from the start of the scope
        (``ProgramSettings``). A warning names those that cannot be sent.
        """
        self._check_open()
        settings = self._program_settings()
        outer = self._scope
        for setting in () if settings is None else settings.left_out:
            warn_once(f"tasks run in other processes, where {setting} has no effect")
        scope = Scope(Watching(timeout=timeout) if watched else None, settings)
        self._entered.scope = scope
        with self._lock:
            self._scopes.add(scope)
        try:
            yield
        except BaseException:
            with suppress(EngineClosedError):
                self._check_open()
                self._cancel(scope)
                self.free([*scope.refs])
            raise
        finally:
            self._entered.scope = outer
            with self._lock:
                self._scopes.discard(scope)

    def _program_settings(self) -> ProgramSettings | None:
        """Return the program's settings for tasks in other processes; ``None`` if they run here."""
        return ProgramSettings() if self.traits.asynchronous else None

    @property
    def _scope(self) -> Scope:
        """The innermost scope of this thread."""
        scope: Scope = getattr(self._entered, "scope", self._outside)
        return scope

    def _made(self, ref: _Ref) -> _Ref:
        """Let a new reference belong to the innermost scope of this thread; return it."""
        self._scope.refs.add(ref)
        return ref

    def cancel(self) -> None:
        """End the unfinished tasks of this thread's innermost scope, and wait for their end.

        Does nothing in an engine whose tasks have ended by then, or cannot be ended.
        """
        self._check_open()

    def _cancel(self, scope: Scope) -> None:  # noqa: B027
        """Cancel the tasks of a scope that has failed, or wait for them."""

    def trained_samples(self) -> int | None:
        """Return how many samples tasks have trained so far; ``None`` if unknown.

        Repeated tasks count again. Other threads may call it while a task runs.

        Other threads may call it while a task runs.
        """
        return None

    def __deepcopy__(self, memo: object) -> Self:
        """Return the engine itself: a copy of its owner uses the same processes."""
        return self

    def __reduce__(self) -> NoReturn:
        """Raise ``TypeError``: an engine belongs to its process."""
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled; name the engine instead: {self.name!r}; "
            "of a trainer keep the network, trainer.save('net.safetensors') or "
            "torch.save(trainer.model(), ...)"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown(kill=error is not None)
