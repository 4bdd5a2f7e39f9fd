"""The COMPSs engine: tasks of PyCOMPSs on the nodes of its runtime."""

import importlib
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar

from compss_train._utils.validation import warn_once
from compss_train.data.remote_block import RemoteBlock
from compss_train.engines.base import Engine, Ref, Scope, Traits, map_refs
from compss_train.engines.calls import Failure, Placeholder
from compss_train.engines.codec import SerializedValue
from compss_train.engines.compss import runtime, sent_modules
from compss_train.engines.compss.lost_tasks import lost_task_error
from compss_train.engines.compss.task_body import Call, LostInputError
from compss_train.engines.nodes import Node, Resources, check_room, check_size
from compss_train.exceptions import EngineClosedError, TaskCancelledError

COMPUTING_UNITS = "ComputingUnits"
"""Environment variable with the number of computing units of a task, as in dislib."""

_MAX_SINGLE_WAITS = 4
"""Maximum number of small values fetched singly, each in 10 ms and with a file of the worker."""


_MODULE_ADVICE = (
    "Sources beside the main script are sent, if they have 10 MB at most. For this one start the "
    "program with runcompss --pythonpath={folder}, a folder that all nodes have under the same "
    "path, or put what the network needs into the script itself"
)


class _CompssRef(Ref):
    """The COMPSs engine's reference."""

    __slots__ = ("content", "dropped", "external", "outdated")

    def __init__(self, content: Any, dropped: deque[Any], *, external: bool) -> None:
        self.content = content
        """What represents the value here: a future of PyCOMPSs, or a serialized value.

        It is ``None`` once the value was freed.
        """
        self.dropped = dropped
        """Takes the content when this reference is gone, for the engine to free."""
        self.external = external
        """Whether another library owns the value, and alone deletes it."""
        self.outdated = False
        """Whether tasks have changed the value since."""

    def __del__(self) -> None:
        # Freed by the next call of the engine: this may be another thread, or inside a call.
        if not self.external:
            self.dropped.append(self.content)


class CompssEngine(Engine):
    """Run tasks on the nodes of a COMPSs application that ``runcompss`` or a notebook has started.

    Values stay on the nodes, as files that COMPSs moves; the coordinator receives only what it
    fetches. The sources of modules beside the main script, up to 10 MB, are sent for nodes that
    lack them.

    The runtime belongs to the application: ``shutdown`` frees this engine's values and leaves the
    runtime running. Submitted tasks run to their end, and waiting cannot be interrupted: PyCOMPSs
    has no call for it, and cancelling groups of tasks works only with some of COMPSs's schedulers.
    A scope that fails waits for all tasks. Tasks of a scope with a timeout (not updates, nor on
    GPUs) run in children, which are watched.

    The runtime serves one thread, the first that makes an engine. While it lives, calls by another
    one raise ``RuntimeError``, as do calls of an engine by a thread that has not made it.
    """

    name: ClassVar[str] = "compss"
    # Waiting holds the global interpreter lock: PyCOMPSs's binding does not release it.
    traits: ClassVar[Traits] = Traits(
        interruptible=False,
        pays_by_value=True,
        binds_gpus=True,
        task_seconds=0.02,
        object_bytes=2**21,
    )
    gpu_source: ClassVar[str] = (
        "COMPSs has the GPUs that its resources declare: compss-train configure --gpus, "
        "runcompss/laptop.sh --gpus, slurm.sh --gpus_per_node"
    )
    _owner: ClassVar[threading.Thread | None] = None
    """The thread that the runtime serves."""

    def __init__(self) -> None:
        super().__init__()
        self._api = runtime.import_pycompss()
        if not runtime.under_compss():
            raise RuntimeError(
                "the compss engine needs COMPSs's runtime; start the program with runcompss"
            )
        self._thread = threading.current_thread()
        if CompssEngine._owner is None or not CompssEngine._owner.is_alive():
            CompssEngine._owner = self._thread
        self._check_thread(CompssEngine._owner)
        self._tasks = importlib.import_module("compss_train.engines.compss.tasks")
        self._nodes = self.nodes()
        warning = runtime.units_beyond_cores(self._nodes)
        if warning is not None:
            warn_once(warning)
        self._refs: weakref.WeakSet[_CompssRef] = weakref.WeakSet()
        self._dropped: deque[Any] = deque()
        """The content of references that are gone, to be freed."""
        # PyCOMPSs keeps every object that it was given: an engine that was never closed frees them
        # when collected.
        self._close = weakref.finalize(
            self, _free, self._api, self._refs, dropped=self._dropped, thread=self._thread
        )
        self._close.atexit = False
        self._sources = self._new_ref(sent_modules.program_sources())
        runtime.skip_destructors_at_exit()

    @classmethod
    def nodes(cls) -> list[Node]:
        """Return the nodes that COMPSs was started with; empty if they cannot be read."""
        return runtime.declared_nodes()

    @classmethod
    def default_workers(cls, threads: int) -> int:
        """Return how many tasks fit on the nodes; this machine's default without one."""
        return sum(node.cpus // threads for node in cls.nodes()) or super().default_workers(threads)

    @classmethod
    def thread_share(cls, num_workers: int) -> int:
        """Return ``ComputingUnits`` if it is set, else a worker's share of the smallest node."""
        units = os.environ.get(COMPUTING_UNITS, "")
        return max(1, int(units)) if units.isdigit() else super().thread_share(num_workers)

    @classmethod
    def time_left(cls) -> float | None:
        """Return the seconds until the limit of ``runcompss --wall_clock_limit``."""
        return runtime.seconds_left()

    def publish(self, value: object) -> Ref:
        """Keep the value until a task reads it and COMPSs writes it to a file.

        Futures of PyCOMPSs are passed on.
        """
        self._check_open()
        if isinstance(value, RemoteBlock) and value.home == self.name:
            return self.reference(value.future)
        return self._new_ref(SerializedValue.of(value))

    def reference(self, future: object) -> Ref:
        """Return a reference to another library's future, which only its owner deletes."""
        self._check_open()
        return self._new_ref(future, external=True)

    def _submit(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        returns: int,
        resources: Resources,
        priority: bool,
        place: int | None,
    ) -> Sequence[Ref]:
        """Submit a task of PyCOMPSs; raise ``ValueError`` if it is larger than every node."""
        check_size(resources, self._nodes)
        gpu = bool(resources.gpus)
        watching = self._scope.watching
        timeout = None if watching is None else watching.timeout
        in_child = resources.own_process or (timeout is not None and not gpu)
        if in_child:
            args = (function, timeout, gpu, *args)
        run = sent_modules.run_in_child_with_modules if in_child else function
        call, inputs = self._call(run, tuple(args), gpu=gpu)
        task = self._tasks.task_for(function, gpu=gpu, priority=priority)
        sources = self._sources.content
        futures = task(resources.cpus, returns, call, sources, inputs, returns=returns)
        if returns == 1:
            futures = [futures]
        return [self._new_ref(future) for future in futures]

    def commute(self, target: Ref, function: Callable[..., Any], *args: Any) -> Ref:
        """Submit an update as a COMMUTATIVE task with priority."""
        self._check_open()
        ref = _compss(target)
        call, inputs = self._call(function, (Placeholder(0), *args), gpu=False, first=1)
        sources = self._sources.content
        future = self._tasks.commute(1, call, sources, ref.content, inputs, returns=1)
        ref.outdated = True
        return self._new_ref(future)

    def fetch(self, refs: Sequence[Ref], *, small: bool = False) -> list[Any]:
        """Wait for one value after the other; many small ones are gathered by a task first."""
        self._check_open()
        compss_refs = [_compss(ref) for ref in refs]
        if small and len(compss_refs) > _MAX_SINGLE_WAITS:
            return list(self._load(self._result_of(copy_value, compss_refs)))
        return [self._fetch(ref) for ref in compss_refs]

    def peek(self, ref: Ref, timeout: float = 0.0) -> Any:
        """Return the coordinator's value; with a ``timeout`` wait for other values without limit.

        Return ``None`` for a value that tasks update, since COMPSs would wait for all submitted
        updates.
        """
        self._check_open()
        compss_ref = _compss(ref)
        if isinstance(compss_ref.content, SerializedValue) and not compss_ref.outdated:
            value = compss_ref.content.load()
            return None if isinstance(value, Failure) else value
        if timeout == 0 or compss_ref.outdated or compss_ref.external:
            return None
        try:
            return self._fetch(compss_ref)
        except Exception:  # raised by the task that computes it
            return None

    def arrived(self, refs: Sequence[Ref]) -> list[Ref]:
        """Return an empty list: PyCOMPSs can only wait."""
        self._check_open()
        return []

    @property
    def merging_places(self) -> int:
        """The number of nodes: COMPSs's scheduler spreads the tasks of parts over them."""
        return max(1, len(self._nodes))

    def _reserve(self, tasks: Sequence[Resources]) -> None:
        """Raise ``ValueError`` if these tasks do not fit on the nodes together."""
        check_room(
            [replace(task, gpus=math.ceil(task.gpus)) for task in tasks],
            self._nodes,
            "declare more (runcompss/laptop.sh --units, compss-train configure --units)",
        )

    def free(self, refs: Sequence[Ref]) -> None:
        """Free the values of this engine, once all submitted tasks have read them."""
        for ref in refs:
            if isinstance(ref, _CompssRef) and ref.content is not None:
                if not ref.external:
                    self._api.compss_delete_object(ref.content)
                ref.content = None
                ref.external = True

    def _cancel(self, scope: Scope) -> None:
        """Wait for all tasks of the application."""
        self._api.compss_barrier()

    def shutdown(self, *, kill: bool = False) -> None:
        """Free this engine's values; running tasks continue to their end."""
        self._check_thread(self._thread)
        self._close()

    def _new_ref(self, content: Any, *, external: bool = False) -> _CompssRef:
        ref = _CompssRef(content, self._dropped, external=external)
        self._refs.add(ref)
        return self._made(ref)

    def _call(
        self, function: Callable[..., Any], args: tuple[Any, ...], *, gpu: bool, first: int = 0
    ) -> tuple[SerializedValue, list[Any]]:
        """Return the call and its inputs; placeholders number the inputs from ``first``."""
        inputs: list[Any] = []

        def placeholder(ref: Ref) -> Placeholder:
            inputs.append(_compss(ref).content)
            return Placeholder(first + len(inputs) - 1)

        call = Call(
            function=function,
            args=map_refs(args, placeholder),
            gpu=gpu,
            settings=self._scope.settings,
        )
        return SerializedValue.of(call), inputs

    def _fetch(self, ref: _CompssRef) -> Any:
        # Waiting for it would remove it from the runtime, and its owner would lose it.
        if ref.external:
            return self._load(self._result_of(copy_value, ref))
        # Waiting for it would wait for the last submitted update, while others may still run.
        if ref.outdated:
            copy = self._result_of(copy_value, ref)
            self._api.compss_delete_object(ref.content)
            ref.content = copy
            ref.outdated = False
        else:
            ref.content = self._wait(ref.content)
        return self._load(ref.content)

    def _result_of(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return a task's serialized result; like any task it sees all updates submitted so far."""
        result = self.submit(function, *args, priority=True)
        result.external = True
        return self._wait(result.content)

    def _wait(self, future: Any) -> Any:
        try:
            value = self._api.compss_wait_on(future, mode="r")
        except Exception as error:  # COMPSs has written an empty file, as for all lost results
            raise lost_task_error() from error
        if value is None:
            raise lost_task_error()
        return value

    def _load(self, serialized: Any) -> Any:
        value = sent_modules.without_notes(serialized.load(), sent_modules.say_once)
        if isinstance(value, Failure):
            error = value.exception(_MODULE_ADVICE)
            raise lost_task_error() if isinstance(error, LostInputError) else error
        return value

    def _check_thread(self, owner: threading.Thread) -> None:
        caller = threading.current_thread()
        if caller is not owner:
            raise RuntimeError(
                f"the compss engine belongs to the thread {owner.name!r}, and {caller.name!r} "
                "called it: PyCOMPSs serves one thread. Run one fit after the other in that "
                "thread, or start a program for each"
            )

    def _check_open(self) -> None:
        self._check_thread(self._thread)
        if not self._close.alive:
            raise EngineClosedError("this COMPSs engine was shut down; make a new one")
        while self._dropped:  # COMPSs removes their files once all submitted tasks have read them
            self._api.compss_delete_object(self._dropped.popleft())


def copy_value(value: Any) -> Any:
    """Return the value: a task that transfers a copy, or a list of values as one result."""
    return value


def _free(
    api: ModuleType,
    refs: weakref.WeakSet[_CompssRef],
    *,
    dropped: deque[Any],
    thread: threading.Thread,
) -> None:
    if threading.current_thread() is thread:  # only this thread may call the runtime
        for content in [*dropped, *(ref.content for ref in refs if not ref.external)]:
            api.compss_delete_object(content)


def _compss(ref: Ref) -> _CompssRef:
    if not isinstance(ref, _CompssRef):
        raise TypeError(f"{ref!r} is not a reference of the compss engine")
    if ref.content is None:
        raise TaskCancelledError
    return ref
