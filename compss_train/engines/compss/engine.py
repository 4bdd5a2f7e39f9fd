"""The COMPSs engine."""

from __future__ import annotations

import ctypes
import importlib
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any, ClassVar, Self

from compss_train.data.block import RemoteBlock
from compss_train.engines.base import ONE_CPU, Engine, Failure, Ref, Resources, map_refs
from compss_train.engines.compss.context import (
    address_for,
    check_together,
    declared_nodes,
    thread_share,
    under_compss,
)
from compss_train.engines.compss.perform import Call, Packed, Slot, lost
from compss_train.engines.machine import LOOPBACK, SingleMachineEngine
from compss_train.exceptions import EngineClosedError

FEW = 4
"""Values up to which each is waited for by itself, about 10 ms each. COMPSs keeps a file on the worker for each."""


class _Handle(Ref):
    """The COMPSs engine's reference."""

    __slots__ = ("foreign", "held", "stale")

    def __init__(self, held: Any, *, foreign: bool = False) -> None:
        self.held = held
        """What stands for the value in the main program: PyCOMPSs's future, or the value packed."""
        self.foreign = foreign
        """Whether it is somebody else's, so that it is neither deleted nor taken out of the runtime."""
        self.stale = False
        """Whether tasks have changed what is packed here."""


class CompssEngine(Engine):
    """Runs tasks on the nodes of a COMPSs application that ``runcompss`` (or a notebook) has started.

    Values stay with the nodes, as files that COMPSs moves; the coordinator gets what it fetches. Started by plain
    ``python`` where pycompss is installed, tasks run at once in this process, as all of PyCOMPSs does then.

    The runtime belongs to the application: ``shutdown`` frees what this engine holds in it and leaves it running.
    Tasks that have been submitted run, and waiting cannot be cut short: PyCOMPSs has no call for that, and
    cancelling groups of tasks works with some of COMPSs's schedulers only.
    """

    name: ClassVar[str] = "compss"
    replaces_processes: ClassVar[bool] = False
    waiting_stops_threads: ClassVar[bool] = True  # PyCOMPSs's binding holds Python's lock

    def __init__(self) -> None:
        self._api = _import_pycompss()
        self.asynchronous = under_compss()  # type: ignore[misc]  # the one engine that knows when it starts
        self._tasks = importlib.import_module("compss_train.engines.compss.tasks")
        self._nodes = declared_nodes() if self.asynchronous else []
        self._handles: set[_Handle] = set()
        self._open = True
        # PyCOMPSs holds on to all it has been given: an engine that nobody closed frees it when it is garbage.
        weakref.finalize(self, _free, self._api, self._handles, threading.get_ident()).atexit = False
        if self.asynchronous:
            exit_at_once()

    @classmethod
    def start(cls, num_workers: int, threads: int, preload: Sequence[str] = ()) -> Self:
        """Return an engine; the runtime has been sized by whoever started it."""
        return cls()

    @classmethod
    def thread_share(cls, num_workers: int) -> int:
        """Return ``ComputingUnits`` where that is set, else a worker's share of its node's computing units."""
        if not under_compss():
            return SingleMachineEngine.thread_share(num_workers)
        return thread_share(num_workers, declared_nodes())

    @classmethod
    def device(cls, worker: int, num_gpu: int) -> str:
        """Return the CPU or the GPU that COMPSs binds a task to."""
        return "cuda" if num_gpu else "cpu"

    @classmethod
    def check_gpus(cls, num_gpu: int, num_nodes: int) -> None:
        """Raise ``ValueError`` where the nodes have fewer GPUs: COMPSs would wait for more for ever."""
        if not under_compss():
            SingleMachineEngine.check_gpus(num_gpu, num_nodes)
            return
        nodes = declared_nodes()
        available = sum(node.gpus for node in nodes)
        if nodes and num_gpu > available:
            raise ValueError(
                f"num_gpu={num_gpu}, but the resources that COMPSs was started with have {available} GPUs on "
                f"{len(nodes)} nodes; use num_gpu={available}, or start with resources that declare more"
            )

    def publish(self, value: object) -> Ref:
        """Hold the value until a task takes it, and COMPSs writes it to a file; its own blocks are only named."""
        self._check_open()
        if isinstance(value, RemoteBlock) and value.home == self.name:
            return self.adopt(value.future)
        return self._handle(Packed.of(value))

    def adopt(self, future: object) -> Ref:
        """Return a reference to what a future of PyCOMPSs stands for; it remains its owner's to delete."""
        self._check_open()
        return self._handle(future, foreign=True)

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        returns: int = 1,
        resources: Resources = ONE_CPU,
        priority: bool = False,
    ) -> Any:
        """Submit a task of PyCOMPSs.

        Raises ``ValueError`` where it asks for more than any node has, as COMPSs would never run it.
        """
        self._check_open()
        self._check_resources(resources)
        call, inputs = self._call(function, args, bool(resources.gpus))
        task = self._tasks.task_for(function, bool(resources.gpus), priority)
        futures = task(resources.cpus, returns, call, inputs, returns=returns)
        return self._handle(futures) if returns == 1 else [self._handle(future) for future in futures]

    def commute(self, target: Ref, function: Callable[..., Any], *args: Any) -> Ref:
        """Submit an update as a COMMUTATIVE task, which runs before waiting tasks."""
        self._check_open()
        handle = _handle(target)
        call, inputs = self._call(function, (Slot(0), *args), gpu=False, first=1)
        made = self._tasks.commute(1, call, handle.held, inputs, returns=1)
        handle.stale = True
        return self._handle(made)

    def fetch(self, refs: Sequence[Ref], *, small: bool = False) -> list[Any]:
        """Wait for one value after the other; many small ones are gathered by a task and come as one."""
        self._check_open()
        handles = [_handle(ref) for ref in refs]
        if small and self.asynchronous and len(handles) > FEW:
            return list(self._unpacked(self._result_of(gathered, handles)))
        return [self._fetch(handle) for handle in handles]

    def peek(self, ref: Ref, timeout: float = 0.0) -> Any:
        """Return what the coordinator has; with a ``timeout`` it waits for other values, however long.

        ``None`` for a value that tasks update, as COMPSs would wait for all updates submitted.
        """
        self._check_open()
        handle = _handle(ref)
        if isinstance(handle.held, Packed) and not handle.stale:
            value = handle.held.value()
            return None if isinstance(value, Failure) else value
        if timeout == 0 or handle.stale or handle.foreign:
            return None
        try:
            return self._fetch(handle)
        except Exception:  # of the task that made it
            return None

    def wait(self, refs: Sequence[Ref], timeout: float) -> bool:
        """Return ``True``: what waits is ``fetch``, as waiting for a value cannot be cut short."""
        self._check_open()
        return True

    def ended(self, ref: Ref) -> bool | None:
        """Return ``None``: PyCOMPSs can only wait, where it runs tasks elsewhere."""
        self._check_open()
        return None if self.asynchronous else True

    def delete(self, refs: Sequence[Ref]) -> None:
        """Have COMPSs remove the values' files once no submitted task has to read them."""
        self._check_open()
        for ref in refs:
            self._delete(_handle(ref))

    def reserve(self, tasks: Sequence[Resources]) -> None:
        """Raise ``ValueError`` where the declared nodes cannot run these tasks at the same time."""
        self._check_open()
        if not self.asynchronous:
            raise ValueError(
                f"{len(tasks)} tasks are to run at the same time, and without COMPSs's runtime they run one "
                "by one, when they are submitted; start the program with runcompss, or use engine='local'"
            )
        for task in tasks:
            self._check_resources(task)
        if self._nodes:
            check_together(tasks, self._nodes)

    def host(self) -> str:
        """Return the loopback address where all nodes are this machine, else one that other machines reach."""
        self._check_open()
        return address_for(self._nodes) if self.asynchronous else LOOPBACK

    def shutdown(self, *, kill: bool = False) -> None:
        """Free what this engine holds; tasks that run end in their own time."""
        for handle in list(self._handles):
            self._delete(handle)
        self._open = False

    def _check_resources(self, resources: Resources) -> None:
        if resources.gpus > 1:
            raise ValueError(f"a task asks for {resources.gpus} GPUs; tasks of the compss engine take one at most")
        fitting = [node.cpus for node in self._nodes if node.gpus >= resources.gpus]
        if self._nodes and resources.cpus > max(fitting, default=0):
            kind = "the largest node with a GPU" if resources.gpus else "the largest node"
            raise ValueError(
                f"a task asks for {resources.cpus} CPUs and {kind} has {max(fitting, default=0)}; use fewer "
                "threads (DistributedTrainer(threads=), or ComputingUnits in the environment) or larger nodes"
            )

    def _handle(self, held: Any, *, foreign: bool = False) -> _Handle:
        handle = _Handle(held, foreign=foreign)
        self._handles.add(handle)
        return handle

    def _call(
        self, function: Callable[..., Any], args: tuple[Any, ...], gpu: bool, first: int = 0
    ) -> tuple[Packed, list[Any]]:
        """Return the call, and the inputs that its slots stand for, counted from ``first``."""
        inputs: list[Any] = []

        def slot(ref: Ref) -> Slot:
            inputs.append(self._input(_handle(ref).held))
            return Slot(first + len(inputs) - 1)

        return Packed.of(Call(function, map_refs(args, slot), gpu)), inputs

    def _input(self, held: Any) -> Any:
        """Return what a task takes: without the runtime that is a copy, which the task may spoil as elsewhere."""
        return held.copy() if isinstance(held, Packed) and not self.asynchronous else held

    def _fetch(self, handle: _Handle) -> Any:
        if handle.foreign:  # waiting would take it out of the runtime, and its owner would lose it
            return self._unpacked(self._result_of(copied, handle))
        if handle.stale:  # waiting would be for the last update submitted, while others may still run
            copy = self._result_of(copied, handle)
            self._api.compss_delete_object(handle.held)
            handle.held, handle.stale = copy, False
        else:
            handle.held = self._wait(handle.held)
        return self._unpacked(handle.held)

    def _result_of(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what a task makes of values; like any task it sees all updates submitted so far."""
        result = self.submit(function, *args, priority=True)
        self._handles.discard(result)
        return self._wait(result.held)

    def _wait(self, held: Any) -> Any:
        try:
            value = self._api.compss_wait_on(held, mode="r")
        except Exception as error:  # from reading the empty file that COMPSs put in a lost result's place
            raise lost() from error
        if value is None:
            raise lost()
        return value

    @staticmethod
    def _unpacked(held: Any) -> Any:
        value = held.value()
        if isinstance(value, Failure):
            raise value.exception()
        return value

    def _delete(self, handle: _Handle) -> None:
        if not handle.foreign:
            self._api.compss_delete_object(handle.held)
        handle.held = None
        self._handles.discard(handle)

    def _check_open(self) -> None:
        if not self._open:
            raise EngineClosedError("this COMPSs engine was shut down; make a new one")


def copied(value: Any) -> Any:
    """Return the value: the task that brings one here and leaves the original where it is."""
    return value


def gathered(values: list[Any]) -> list[Any]:
    """Return the values: the task that makes one of many."""
    return values


def _free(api: ModuleType, handles: set[_Handle], thread: int) -> None:
    if threading.get_ident() == thread:  # the only one that may call the runtime
        for handle in handles:
            if not handle.foreign:
                api.compss_delete_object(handle.held)


def _handle(ref: Ref) -> _Handle:
    if not isinstance(ref, _Handle):
        raise TypeError(f"{ref!r} is not a reference of the compss engine")
    return ref


def _import_pycompss() -> ModuleType:
    try:
        return importlib.import_module("pycompss.api.api")
    except ImportError as error:
        raise ImportError(
            "the compss engine needs PyCOMPSs, which is not installed in this Python; start the program with "
            "runcompss, install pycompss (docs/compss.md says how), or use engine='local'"
        ) from error


@cache
def exit_at_once() -> None:
    """Have the process end without C++ destructors once ``exit`` is called; a second call does nothing.

    When COMPSs gives an application up, the JVM calls ``exit`` while Python's main thread waits inside the binding
    and holds the interpreter's lock. A destructor of libtorch then waits for that lock, for ever. In a normal exit
    Python has finalized by then, and the JVM has run its shutdown hooks; C's streams are closed here, and the exit
    code stays. What C libraries loaded before have registered for their end is not run. Where libc has no
    ``on_exit`` (it is glibc's), nothing changes.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)  # the last to be registered is the first to run
