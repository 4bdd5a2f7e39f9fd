"""``Schedule``, the learning rate by epoch: a function of the epoch or a factory of a scheduler."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from compss_train._utils.validation import check_choice, check_count
from compss_train.model.lr_schedules import EpochSchedule, LrSchedule, ParameterGroups, PlateauSchedule
from compss_train.model.several_optimizers import NetOptimizer, make_optimizer

ScheduleFunction: TypeAlias = (
    Callable[[int], float] | Callable[[float], float] | Callable[[torch.optim.Optimizer], LRScheduler]
)
ScheduleUnit = Literal["epochs", "steps"]

_USAGE = (
    "give a function of the epoch that returns a factor of the learning rate, such as lambda epoch: 0.9**epoch, or "
    "a callable that returns a torch scheduler for an optimizer, such as functools.partial(StepLR, step_size=10)"
)


@dataclass(frozen=True)
class Schedule:
    """The learning rate by epoch; ``build(schedule=...)``.

    Parameters
    ----------
    function:
        A function of the epoch (0, 1, 2, ... over all fits) that returns a factor, or a callable that makes a torch
        scheduler of an optimizer, such as ``functools.partial(StepLR, step_size=10)``.
    steps:
        Number of times an epoch that the schedule is stepped, 1 by default. A torch scheduler counts steps.
    unit:
        What the function is called with: the number of ``"epochs"`` (default), fractions of them if there are
        several steps, or of ``"steps"``.

    Raises ``TypeError`` for an object that cannot be called, ``ValueError`` for other numbers and units.
    """

    function: ScheduleFunction
    steps: int = 1
    unit: ScheduleUnit = "epochs"

    def __post_init__(self) -> None:
        _check_callable(self.function)
        check_count("steps", self.steps)
        check_choice("unit", self.unit, get_args(ScheduleUnit))

    @classmethod
    def of(cls, value: "ScheduleSpec") -> "Schedule":
        """Return the argument ``schedule`` of ``build`` as a schedule."""
        return value if isinstance(value, Schedule) else cls(value)

    def factor(self, step: int) -> float:
        """Return the factor of a step, counted over all epochs, if ``function`` returns factors."""
        function: Callable[[Any], Any] = self.function
        in_steps = self.unit == "steps" or self.steps == 1
        return float(function(step if in_steps else step / self.steps))


ScheduleSpec: TypeAlias = ScheduleFunction | Schedule
"""What ``build(schedule=...)`` takes."""


def make_schedule(spec: ScheduleSpec, net: nn.Module, optimizer_factory: NetOptimizer) -> LrSchedule:
    """Return the schedule; ``net`` is any copy of the network, which is not changed.

    Raises ``TypeError`` and ``ValueError`` for an object that is neither a function of the epoch nor a factory of a
    scheduler, and the exceptions of the scheduler's class.
    """
    schedule = Schedule.of(spec)
    optimizer = make_optimizer(optimizer_factory, net)
    groups = ParameterGroups(optimizer)
    scheduler = _make_scheduler(schedule, optimizer)
    if not isinstance(scheduler, ReduceLROnPlateau):
        return EpochSchedule(scheduler, groups, schedule.steps)
    if schedule.steps != 1:
        raise ValueError(
            f"Schedule(steps={schedule.steps}): a ReduceLROnPlateau is stepped once an epoch, with its loss; leave "
            "steps= out"
        )
    if scheduler.mode != "min":
        raise ValueError(
            f"schedule= is a ReduceLROnPlateau with mode={scheduler.mode!r}; it is stepped with the validation "
            "loss, or the training loss without validation data, so leave mode='min'"
        )
    return PlateauSchedule(scheduler, groups)


def _check_callable(spec: object) -> None:
    if isinstance(spec, LRScheduler):
        name = type(spec).__name__
        raise TypeError(
            f"schedule= is a {name} of an optimizer that the trainer does not use; {_USAGE}, or "
            f"lambda optimizer: {name}(optimizer, ...)"
        )
    if not callable(spec):
        raise TypeError(f"schedule={spec!r} is not callable; {_USAGE}")


def _make_scheduler(schedule: Schedule, optimizer: torch.optim.Optimizer) -> LRScheduler:
    spec: Any = schedule.function
    result = _try_call(spec, optimizer)
    if isinstance(result, Exception) and _is_scheduler_class(spec):
        result.add_note(f"Raised by schedule=, which is called with an optimizer only; {_USAGE}.")
        raise result
    if not isinstance(result, LRScheduler):
        _check_factor(_try_call(spec, 0), result)
        return LambdaLR(optimizer, schedule.factor)
    if getattr(result, "optimizer", optimizer) is not optimizer:
        raise ValueError(
            "schedule= returns a scheduler of another optimizer than the one it is called with, which would have "
            "no effect; write lambda optimizer: StepLR(optimizer, step_size=10)"
        )
    return result


def _check_factor(factor: object, scheduler: object) -> None:
    if not isinstance(factor, Real | torch.Tensor):
        raise ValueError(
            f"schedule= {_describe_result(scheduler)} when called with an optimizer, and "
            f"{_describe_result(factor)} when called with epoch 0; {_USAGE}"
        )


def _try_call(spec: Callable[[Any], Any], argument: object) -> Any:
    """Return the result of a call, or the exception that it raises."""
    try:
        return spec(argument)
    except Exception as error:
        return error


def _describe_result(result: object) -> str:
    if isinstance(result, Exception):
        return f"raised {type(result).__name__} ({result})"
    return f"returned {result!r}"


def _is_scheduler_class(spec: object) -> bool:
    function = spec.func if isinstance(spec, partial) else spec
    return isinstance(function, type) and issubclass(function, LRScheduler)
