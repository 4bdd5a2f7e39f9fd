"""The worker's side of the COMPSs engine: what every task does. Knows nothing of PyCOMPSs itself.

An exception that left a task would be tried four times, end the whole application, and never reach the user. So
none does: a task that fails returns a ``Failure`` for each of its results, and whatever takes one returns it too.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from compss_train.data.block import Block, as_block
from compss_train.engines.compss.binding import bound
from compss_train.engines.compss.context import in_worker, is_future
from compss_train.engines.compss.packed import Packed
from compss_train.engines.failure import Failure
from compss_train.engines.prepare import prepare_process
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
