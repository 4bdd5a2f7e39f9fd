"""The optimizer and the learning-rate schedule of an estimator, which may be given by name."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from compss_train._utils.validation import suggestion
from compss_train.model.optimizers import OptimizerSpec
from compss_train.model.schedule import ScheduleSpec

LEARNING_RATE = 1e-3
"""Of optimizers with a name, where none is given."""


def as_options(name: str, value: object) -> dict[str, Any]:
    """Return the value of a parameter that is a dict; an optimizer may be given by name instead.

    Raises ``TypeError`` for other values, which have no options.
    """
    if name == "optimizer" and (value is None or isinstance(value, str)):
        return {"optimizer": value or "adam"}
    if value is None or isinstance(value, Mapping):
        return dict(value or {})
    raise TypeError(
        f"{name}__... sets an option of {name}, but {name}={value!r} is not a dict; give a dict"
        + (" or a name, such as 'sgd'" if name == "optimizer" else "")
    )


def make_optimizer(optimizer: OptimizerSpec | str | None, lr: float | None) -> OptimizerSpec:
    """Return the optimizer for ``DistributedTrainer.build``, with the learning rate ``lr`` if it is not ``None``.

    Raises ``ValueError`` if the optimizer has a learning rate of its own, or could have.
    """
    if optimizer is not None and not isinstance(optimizer, str | Mapping):
        if lr is not None:
            raise ValueError(f"lr={lr} is for an optimizer with a name; set it in optimizer={optimizer!r}")
        return optimizer
    options = as_options("optimizer", optimizer)
    if lr is not None and "lr" in options:
        raise ValueError(f"lr={lr} and optimizer={options}: give the learning rate in one of them")
    if lr is None and not isinstance(options.get("optimizer"), str):
        return options  # a class of torch has its own default
    return {"lr": LEARNING_RATE if lr is None else lr, **options}


def make_schedule(schedule: ScheduleSpec | str, num_epochs: int) -> ScheduleSpec:
    """Return the schedule for ``DistributedTrainer.build``; those with a name end after ``num_epochs``."""
    if not isinstance(schedule, str):
        return schedule
    if schedule not in SCHEDULES:
        hint = suggestion(schedule, SCHEDULES)
        raise ValueError(f"unknown schedule {schedule!r}; choose one of {', '.join(SCHEDULES)}, or give one{hint}")
    return partial(SCHEDULES[schedule], num_epochs=num_epochs)


def _cosine(epoch: float, *, num_epochs: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * min(1.0, epoch / num_epochs)))


def _linear(epoch: float, *, num_epochs: int) -> float:
    return max(0.0, 1 - epoch / num_epochs)


SCHEDULES: Mapping[str, Callable[..., float]] = {"cosine": _cosine, "linear": _linear}
"""Factors of the learning rate that fall from 1 to 0 over the epochs of a fit; half a cosine is that of Loshchilov
and Hutter 2017, without restarts."""
