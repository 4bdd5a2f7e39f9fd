"""The worker's side of the COMPSs engine: what every task does. Knows nothing of PyCOMPSs itself.

An exception that left a task would be tried four times, end the whole application, and never reach the user. So
none does: a task that fails returns a ``Failure`` for each of its results, and whatever takes one returns it too.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from compss_train.data.block import Block, as_block
from compss_train.data.dislib_tensors import is_future
from compss_train.engines.base import Failure
from compss_train.engines.codec import dumps
from compss_train.engines.compss.binding import bound
from compss_train.engines.compss.context import in_worker
from compss_train.engines.machine import prepare_process
from compss_train.exceptions import WorkerLostError


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands among a call's arguments for one of the task's inputs."""

    index: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments, without the inputs that come from other tasks."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    gpu: bool


class _Failed(Exception):  # noqa: N818 - carries a failure out of the arguments, is never seen
    def __init__(self, failure: Failure) -> None:
        self.failure = failure


def perform(results: int, cpus: int, call: Packed, inputs: Sequence[Any]) -> Any:
    """Run a call; returns its result packed, or where ``results`` is above 1, a list of so many of them."""
    try:
        if in_worker():
            _settle()
        packed = _run(results, cpus, call.value(), inputs)
    except _Failed as error:
        packed = [Packed.of(error.failure)] * results
    except BaseException as error:  # SystemExit too: the process serves other tasks
        packed = [Packed.of(Failure.of(error))] * results
    return packed if results > 1 else packed[0]


@cache
def _settle() -> None:
    """Prepare this process, once, and take all that it has imported out of garbage collection.

    PyCOMPSs collects garbage twice after each task. Torch's modules alone make that a quarter of a second.
    """
    prepare_process()
    gc.freeze()


def _run(results: int, cpus: int, call: Call, inputs: Sequence[Any]) -> list[Packed]:
    values = [_unpacked(item) for item in inputs]
    args = [_filled(argument, values) for argument in call.args]
    with bound(cpus, call.gpu):
        result = call.function(*args)
    if results == 1:
        return [Packed.of(result)]
    if len(result) != results:
        raise ValueError(f"{call.function.__name__} returned {len(result)} results where {results} were announced")
    return [Packed.of(item) for item in result]


def _filled(argument: Any, values: Sequence[Any]) -> Any:
    if isinstance(argument, list):
        return [_filled(item, values) for item in argument]
    return values[argument.index] if isinstance(argument, Slot) else argument


def _unpacked(item: Any) -> Any:
    """Return an input's value; one that no task of ours packed is another library's block."""
    if item is None:
        raise lost()
    if not isinstance(item, Packed):
        return _block(item)
    value = item.value()
    if isinstance(value, Failure):
        raise _Failed(value)
    return value


def _block(item: Any) -> Block:
    if is_future(item):
        raise ValueError(
            "a block of this tensor has been collected or deleted since its BlockedTensor was made; make it again "
            "with BlockedTensor.from_dislib, or give the dislib Tensor itself to each call"
        )
    return as_block(item)


def lost() -> WorkerLostError:
    """Return the error for a value that the runtime says will never come."""
    return WorkerLostError(
        "COMPSs lost a task: its worker process died, most often because memory ran out, or could not start it. "
        "The files job*.err in the application's folder below ~/.COMPSs (runcompss --log_dir) say more with "
        "runcompss --log_level=debug; where compss_train or torch is missing on a node, compss-train doctor tells"
    )


def update(cpus: int, call: Packed, target: Packed, inputs: Sequence[Any]) -> Packed:
    """Run a call whose first input is the target and keep its result in the target; returns that result too."""
    made: Packed = perform(1, cpus, call, [target, *inputs])
    if isinstance(target, Packed):  # not where an update before this one was lost
        target.become(made)
    return made


Buffer: TypeAlias = "memoryview | bytes | bytearray"


class Packed:
    """A value as a pickle and the buffers of its arrays, which PyCOMPSs writes to a file as they are.

    Packing and unpacking happen inside the task, where what goes wrong can be caught, and classes and functions of
    the main script work, which PyCOMPSs's own pickles cannot take to another process. Each is an object of its own,
    by whose identity the runtime tells values apart.
    """

    __slots__ = ("__weakref__", "buffers", "data")

    def __init__(self, data: Buffer, buffers: Sequence[Buffer]) -> None:
        self.data = data
        self.buffers = buffers

    @classmethod
    def of(cls, value: object) -> Packed:
        """Pack a value; its arrays are shared until they are written."""
        return cls(*dumps(value))

    def value(self) -> Any:
        """Return the value; its arrays are views of the buffers."""
        return pickle.loads(self.data, buffers=self.buffers)

    def copy(self) -> Packed:
        """Return the same value in memory of its own."""
        return Packed(self.data, [bytearray(buffer) for buffer in self.buffers])

    def become(self, other: Packed) -> None:
        """Hold what the other one holds: an update in place, as PyCOMPSs has them."""
        self.data, self.buffers = other.data, other.buffers

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        buffers = [pickle.PickleBuffer(buffer) for buffer in self.buffers]
        return Packed, (pickle.PickleBuffer(self.data), buffers)
