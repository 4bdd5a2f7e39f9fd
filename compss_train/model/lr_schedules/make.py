"""Making a schedule of what a trainer is given: a function of the epoch, or what makes a torch scheduler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from compss_train.model.lr_schedules.base import Groups, LrSchedule
from compss_train.model.lr_schedules.kinds import ByEpoch, OnPlateau
from compss_train.model.optimizers import OptimizerFactory

ScheduleSpec: TypeAlias = "Callable[[int], float] | Callable[[torch.optim.Optimizer], LRScheduler]"

_HOW = (
    "give a function of the epoch that returns a factor of the learning rate, such as lambda epoch: 0.9**epoch, or "
    "what makes a torch scheduler of an optimizer, such as functools.partial(StepLR, step_size=10)"
)


def make_schedule(spec: object, net: nn.Module, optimizer_factory: OptimizerFactory) -> LrSchedule:
    """Return the schedule; ``net`` is any copy of the network, which is not changed.

    Raises ``TypeError`` and ``ValueError`` for what is neither a function of the epoch nor makes a scheduler, and
    whatever a scheduler's class raises.
    """
    _check_callable(spec)
    optimizer = optimizer_factory(net.parameters())
    groups = Groups(optimizer)
    scheduler = _scheduler(spec, optimizer)
    if not isinstance(scheduler, ReduceLROnPlateau):
        return ByEpoch(scheduler, groups)
    if scheduler.mode != "min":
        raise ValueError(
            f"schedule= is a ReduceLROnPlateau with mode={scheduler.mode!r}; it is told the validation's loss, or "
            "that of training where there is none, so leave mode='min'"
        )
    return OnPlateau(scheduler, groups)


def _check_callable(spec: object) -> None:
    if isinstance(spec, LRScheduler):
        name = type(spec).__name__
        raise TypeError(
            f"schedule= is a {name} of an optimizer that trains nothing here; {_HOW}, or "
            f"lambda optimizer: {name}(optimizer, ...)"
        )
    if not callable(spec):
        raise TypeError(f"schedule={spec!r} cannot be called; {_HOW}")


def _scheduler(spec: Any, optimizer: torch.optim.Optimizer) -> LRScheduler:
    made = _called(spec, optimizer)
    if isinstance(made, Exception) and _is_scheduler_class(spec):
        made.add_note(f"Raised by schedule=, which is called with an optimizer alone; {_HOW}.")
        raise made
    if not isinstance(made, LRScheduler):
        _check_factor(_called(spec, 0), made)
        return LambdaLR(optimizer, lambda epoch: float(spec(epoch)))
    if getattr(made, "optimizer", optimizer) is not optimizer:
        raise ValueError(
            "schedule= makes a scheduler of another optimizer than the one it is called with, which would change "
            "nothing; write lambda optimizer: StepLR(optimizer, step_size=10)"
        )
    return made


def _check_factor(factor: object, made: object) -> None:
    if not isinstance(factor, Real | torch.Tensor):
        raise ValueError(
            f"schedule= {_told(made)} when called with an optimizer, and {_told(factor)} when called with epoch 0; "
            f"{_HOW}"
        )


def _called(spec: Callable[[Any], Any], argument: object) -> Any:
    """Return what a call returns, or the exception that it raises."""
    try:
        return spec(argument)
    except Exception as error:
        return error


def _told(result: object) -> str:
    if isinstance(result, Exception):
        return f"raised {type(result).__name__} ({result})"
    return f"returned {result!r}"


def _is_scheduler_class(spec: object) -> bool:
    made = spec.func if isinstance(spec, partial) else spec
    return isinstance(made, type) and issubclass(made, LRScheduler)
