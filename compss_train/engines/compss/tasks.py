"""The tasks of PyCOMPSs. They all do the same, under names that tell the task graph's nodes apart.

PyCOMPSs finds a task on the worker by module and name. Its decorators look at the runtime when they are applied,
so that this module is imported once the runtime runs. All inputs of a task are one collection, whose elements
COMPSs follows, moves and locates one by one. A task that COMPSs loses is ignored rather than tried again, as
otherwise the fourth attempt ends the whole application without a word to the user: its results are ``None``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycompss.api.constraint import constraint
from pycompss.api.on_failure import on_failure
from pycompss.api.parameter import COLLECTION_IN, COMMUTATIVE, IN_DELETE
from pycompss.api.task import task

from compss_train.engines.compss.perform import Packed, perform, update

Task = Callable[..., Any]

_ONE_GPU = {"processors": [{"processorType": "GPU", "computingUnits": "1"}]}


def _decorated(name: str, body: Task, constraints: dict[str, Any], **options: Any) -> Task:
    body.__name__ = body.__qualname__ = name
    directed = task(call=IN_DELETE, inputs=COLLECTION_IN, returns=1, **options)(body)
    made: Task = constraint(computing_units="cpus", **constraints)(on_failure(management="IGNORE")(directed))
    return made


def _task(name: str, *, gpu: bool = False, priority: bool = False) -> Task:
    def body(cpus: int, results: int, call: Packed, inputs: list[Any]) -> Any:
        return perform(results, cpus, call, inputs)

    return _decorated(name, body, _ONE_GPU if gpu else {}, priority=priority)


def _commute(cpus: int, call: Packed, target: Packed, inputs: list[Any]) -> Packed:
    return update(cpus, call, target, inputs)


train = _task("train")
train_gpu = _task("train_gpu", gpu=True)
evaluate = _task("evaluate")
evaluate_gpu = _task("evaluate_gpu", gpu=True)
predict = _task("predict")
predict_gpu = _task("predict_gpu", gpu=True)
average = _task("average", priority=True)
shuffle = _task("shuffle")
describe = _task("describe")
simulate = _task("simulate")
copy = _task("copy", priority=True)
gather = _task("gather", priority=True)
run = _task("run")
run_gpu = _task("run_gpu", gpu=True)
run_first = _task("run_first", priority=True)
commute = _decorated("commute", _commute, {}, target=COMMUTATIVE, priority=True)

_NAMES = {
    "train": "train",
    "train_online_in_child": "train",
    "simulate_in_child": "simulate",
    "evaluate": "evaluate",
    "predict": "predict",
    "average": "average",
    "partial_sum": "average",
    "add": "average",
    "mean": "average",
    "split_rows": "shuffle",
    "describe": "describe",
    "copied": "copy",
    "gathered": "gather",
}


def task_for(function: Callable[..., Any], gpu: bool, priority: bool) -> Task:
    """Return the task to run a function as, by the function's name."""
    ours = getattr(function, "__module__", "").startswith("compss_train.")
    name = _NAMES.get(function.__name__, "run") if ours else "run"
    if gpu:
        return _GPU.get(name, run_gpu)
    return run_first if name == "run" and priority else _CPU[name]


_CPU = {
    task.__name__: task
    for task in (train, evaluate, predict, average, shuffle, describe, simulate, copy, gather, run)
}
_GPU = {"train": train_gpu, "evaluate": evaluate_gpu, "predict": predict_gpu}
