"""The tasks of PyCOMPSs; their names distinguish them in the task graph.

All have the same body.

PyCOMPSs finds a task on the worker by module and name. Its decorators check for the runtime when
they are applied, so this module is imported after the runtime has started. The inputs of a task are
a collection, whose elements COMPSs tracks, moves and locates one by one. The sources of the
program's modules are the same object for all tasks, so that a node gets them once. A task that
COMPSs loses is ignored instead of retried, because a fourth failed attempt would end the whole
application without any message to the user; its results are ``None``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycompss.api.constraint import constraint
from pycompss.api.on_failure import on_failure
from pycompss.api.parameter import COLLECTION_IN, COMMUTATIVE, IN_DELETE
from pycompss.api.task import task

from compss_train.engines.calls import FIRST, ON_GPUS, OTHERS, task_name
from compss_train.engines.codec import SerializedValue
from compss_train.engines.compss.task_body import run_task, run_update

Task = Callable[..., Any]

_ONE_GPU = {"processors": [{"processorType": "GPU", "computingUnits": "1"}]}


def _decorated(name: str, body: Task, *, gpu: bool, **options: Any) -> Task:
    body.__name__ = body.__qualname__ = name
    directed = task(call=IN_DELETE, inputs=COLLECTION_IN, returns=1, **options)(body)
    resources = _ONE_GPU if gpu else {}
    constrained: Task = constraint(computing_units="cpus", **resources)(
        on_failure(management="IGNORE")(directed)
    )
    return constrained


def _task(name: str, *, gpu: bool = False, priority: bool = False) -> Task:
    def body(
        cpus: int,
        results: int,
        call: SerializedValue,
        sources: SerializedValue,
        inputs: list[Any],
    ) -> Any:
        return run_task(results, cpus, call, sources, inputs)

    return _decorated(name, body, gpu=gpu, priority=priority)


def _commute(
    cpus: int,
    call: SerializedValue,
    sources: SerializedValue,
    target: SerializedValue,
    inputs: list[Any],
) -> SerializedValue:
    return run_update(cpus, call, sources, target, inputs)


commute = _decorated("commute", _commute, gpu=False, target=COMMUTATIVE, priority=True)
_TASKS = {name: _task(name) for name in (*ON_GPUS, *OTHERS)}
_TASKS |= {name: _task(name, priority=True) for name in (*FIRST, "run_first")}
_TASKS |= {f"{name}_gpu": _task(f"{name}_gpu", gpu=True) for name in ON_GPUS}
globals().update(_TASKS)  # where PyCOMPSs finds them


def task_for(function: Callable[..., Any], *, gpu: bool, priority: bool) -> Task:
    """Return the task that runs a function, chosen by the function's name."""
    name = task_name(function)
    if gpu:
        return _TASKS.get(f"{name}_gpu", _TASKS["run_gpu"])
    return _TASKS["run_first" if name == "run" and priority else name]
