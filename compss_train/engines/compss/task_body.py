"""Bodies of the COMPSs engine's tasks.

They load the inputs, bind threads and GPU, run the function, and serialize the results.

Independent of PyCOMPSs. If an exception left a task, COMPSs would retry the task four times and end
the whole application, and the user would never see the exception. A task that fails therefore
returns a ``Failure`` for each of its results, and each task that gets a ``Failure`` as an input
also returns it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from compss_train.data.block import as_block
from compss_train.data.remote_block import is_future
from compss_train.engines import calls
from compss_train.engines.codec import SerializedValue
from compss_train.engines.compss import runtime, sent_modules
from compss_train.exceptions import WorkerLostError
from compss_train.model.program_settings import ProgramSettings


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments, with placeholders for inputs that come from other tasks."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    gpu: bool
    settings: ProgramSettings | None


class LostInputError(WorkerLostError):
    """An input is lost because COMPSs lost the task that computes it; the coordinator says why."""


class _FailedInput(Exception):  # noqa: N818 - only carries a failure to run_task
    def __init__(self, failure: calls.Failure) -> None:
        self.failure = failure


def run_task(
    results: int,
    cpus: int,
    call: SerializedValue,
    sources: SerializedValue,
    inputs: Sequence[Any],
) -> Any:
    """Run a call; return its serialized result, or a list of them if ``results`` is above 1.

    ``sources`` are those of the program's modules, for what this node lacks.
    """
    try:
        if runtime.in_worker():
            _prepare_worker()
            sent_modules.receive(sources.load())  # before anything of the user is unpickled
        serialized = _run(results, cpus, call.load(), inputs)
    except _FailedInput as error:
        serialized = [_serialized(error.failure)] * results
    except BaseException as error:  # SystemExit too: the process serves other tasks
        serialized = [_serialized(calls.Failure.of(error))] * results
    return serialized if results > 1 else serialized[0]


def run_update(
    cpus: int,
    call: SerializedValue,
    sources: SerializedValue,
    target: SerializedValue,
    inputs: Sequence[Any],
) -> SerializedValue:
    """Run a call whose first input is the target; assign the result to the target and return it."""
    result: SerializedValue = run_task(1, cpus, call, sources, [target, *inputs])
    if isinstance(target, SerializedValue):  # False if an earlier update was lost
        target.assign(result)
    return result


@cache
def _prepare_worker() -> None:
    """Prepare this process, once.

    PyCOMPSs collects garbage twice after each task, which would take a quarter of a second for
    torch's modules alone: ``prepare_process`` leaves them out.
    """
    runtime.keep_answer_pipe_open()
    calls.prepare_process()


def _run(results: int, cpus: int, call: Call, inputs: Sequence[Any]) -> list[SerializedValue]:
    values = [_load_input(item) for item in inputs]
    with bound_resources(cpus, call.gpu):
        args = calls.filled(call.args, values)
        outputs = calls.results_of(call.function, args, results, settings=call.settings)
    return [_serialized(output) for output in outputs]


def _serialized(output: Any) -> SerializedValue:
    return SerializedValue.of(sent_modules.with_notes(output))


def _load_input(item: Any) -> Any:
    """Return an input's value; an input that was not serialized here is another library's block."""
    if item is None:
        raise LostInputError
    if not isinstance(item, SerializedValue):
        if is_future(item):
            raise ValueError(
                "a block of this tensor was collected or deleted after its BlockedTensor was "
                "made; make it again with BlockedTensor.from_dislib, or pass the dislib Tensor "
                "itself to each call"
            )
        return as_block(item)
    value = sent_modules.without_notes(item.load(), sent_modules.note)
    if isinstance(value, calls.Failure):
        raise _FailedInput(value)
    return value


@contextmanager
def bound_resources(cpus: int, gpu: bool) -> Iterator[None]:
    """Use ``cpus`` intra-op threads on the cores that COMPSs has bound; with ``gpu`` its bound GPU.

    COMPSs moves only the main thread. Threads that torch started for an earlier task would stay on
    that task's cores, which may now belong to another task.
    """
    cores = {int(core) for core in os.environ.get("COMPSS_BINDED_CPUS", "").split(",") if core}
    if cores and cpus > 1:
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # the thread has just ended
                os.sched_setaffinity(int(thread), cores)
    devices = os.environ.get("COMPSS_BINDED_GPUS")
    # Where COMPSs binds none, the user's CUDA_VISIBLE_DEVICES applies.
    if gpu and devices is not None:
        calls.select_gpu(devices, "COMPSs")
    with calls.intra_op_threads(cpus):
        yield
