"""Bodies of the COMPSs engine's tasks: load the inputs, bind threads and GPU, run the function, serialize results.

Independent of PyCOMPSs. An exception that left a task would be retried four times, end the whole application, and
never reach the user. So a task that fails returns a ``Failure`` for each of its results, and each task that gets a
``Failure`` as an input returns it, too.
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
from compss_train.engines.calls import Failure, map_args, results_of
from compss_train.engines.codec import dumps
from compss_train.engines.compss.binding import bound_resources
from compss_train.engines.compss.context import in_worker, keep_answer_pipe_open
from compss_train.engines.machine import prepare_process
from compss_train.exceptions import WorkerLostError

Buffer: TypeAlias = memoryview | bytes | bytearray


class SerializedValue:
    """A value as a pickle and the buffers of its arrays, which PyCOMPSs writes to a file unchanged.

    Values are serialized inside tasks, where errors can be caught. This also works for classes and functions of the
    main script, which PyCOMPSs's own pickles cannot transfer to another process. Each instance is a separate
    object, since the runtime distinguishes values by identity.
    """

    __slots__ = ("__weakref__", "buffers", "data")

    def __init__(self, data: Buffer, buffers: Sequence[Buffer]) -> None:
        self.data = data
        self.buffers = buffers

    @classmethod
    def of(cls, value: object) -> SerializedValue:
        """Serialize a value; the memory of its arrays is shared until they are written."""
        return cls(*dumps(value))

    def load(self) -> Any:
        """Return the value; its arrays are views of the buffers."""
        return pickle.loads(self.data, buffers=self.buffers)

    def assign(self, other: SerializedValue) -> None:
        """Take over the content of another instance: PyCOMPSs's tasks update objects in place."""
        self.data, self.buffers = other.data, other.buffers

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        buffers = [pickle.PickleBuffer(buffer) for buffer in self.buffers]
        return SerializedValue, (pickle.PickleBuffer(self.data), buffers)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Represents one of the task's inputs among the arguments of a call."""

    index: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments, with placeholders for inputs that come from other tasks."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    gpu: bool


class LostInputError(WorkerLostError):
    """An input will never be available, since COMPSs lost the task that computes it; the coordinator says why."""


class _FailedInput(Exception):  # noqa: N818 - only carries a failure to run_task
    def __init__(self, failure: Failure) -> None:
        self.failure = failure


def run_task(results: int, cpus: int, call: SerializedValue, inputs: Sequence[Any]) -> Any:
    """Run a call; return its serialized result, or a list of them if ``results`` is above 1."""
    try:
        if in_worker():
            _prepare_worker()
        serialized = _run(results, cpus, call.load(), inputs)
    except _FailedInput as error:
        serialized = [SerializedValue.of(error.failure)] * results
    except BaseException as error:  # SystemExit too: the process serves other tasks
        serialized = [SerializedValue.of(Failure.of(error))] * results
    return serialized if results > 1 else serialized[0]


def run_update(cpus: int, call: SerializedValue, target: SerializedValue, inputs: Sequence[Any]) -> SerializedValue:
    """Run a call whose first input is the target, assign its result to the target, and return it."""
    result: SerializedValue = run_task(1, cpus, call, [target, *inputs])
    if isinstance(target, SerializedValue):  # False if an earlier update was lost
        target.assign(result)
    return result


@cache
def _prepare_worker() -> None:
    """Prepare this process, once: its pipe, and all imported objects, which garbage collection leaves out here.

    PyCOMPSs collects garbage twice after each task, which takes a quarter of a second for torch's modules alone.
    """
    keep_answer_pipe_open()
    prepare_process()
    gc.freeze()


def _run(results: int, cpus: int, call: Call, inputs: Sequence[Any]) -> list[SerializedValue]:
    values = [_load_input(item) for item in inputs]
    args = map_args(call.args, lambda value: values[value.index] if isinstance(value, Placeholder) else value)
    with bound_resources(cpus, call.gpu):
        made = results_of(call.function, args, results)
    return [SerializedValue.of(item) for item in made]


def _load_input(item: Any) -> Any:
    """Return an input's value; an input that was not serialized here is another library's block."""
    if item is None:
        raise LostInputError
    if not isinstance(item, SerializedValue):
        return _as_block(item)
    value = item.load()
    if isinstance(value, Failure):
        raise _FailedInput(value)
    return value


def _as_block(item: Any) -> Block:
    if is_future(item):
        raise ValueError(
            "a block of this tensor was collected or deleted after its BlockedTensor was made; make it again "
            "with BlockedTensor.from_dislib, or pass the dislib Tensor itself to each call"
        )
    return as_block(item)


TASK_NAMES = {
    "train_group": "train",
    "train_alone": "train",
    "train_and_exchange": "train",
    "train_online": "train",
    "simulate_and_send": "simulate",
    "evaluate": "evaluate",
    "predict": "predict",
    "partial_sum": "average",
    "finish": "average",
    "split_rows": "shuffle",
    "describe": "describe",
    "copy_value": "copy",
    "gather_values": "gather",
}
"""The names of tasks in COMPSs's graph, by the names of this package's functions; other functions are ``run``."""


def task_name(function: Callable[..., Any]) -> str:
    """Return the name under which COMPSs shows the tasks of a function."""
    own = getattr(function, "__module__", "").startswith("compss_train.")
    return TASK_NAMES.get(function.__name__, "run") if own else "run"
