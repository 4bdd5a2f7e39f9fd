"""``Schedule``: a learning rate by epoch, as ``build(schedule=...)`` takes it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.optim.lr_scheduler import LRScheduler

from compss_train._utils.validation import check_choice, check_count

ScheduleFunction: TypeAlias = (
    Callable[[int], float]
    | Callable[[float], float]
    | Callable[[torch.optim.Optimizer], LRScheduler]
)
"""A function of the epoch or step that returns a factor, or one that makes torch's scheduler."""

ScheduleUnit = Literal["epochs", "steps", "batches"]

USAGE = (
    "give a function of the epoch that returns a factor of the learning rate, such as lambda "
    "epoch: 0.9**epoch, or a callable that returns a torch scheduler for an optimizer, such as "
    "functools.partial(StepLR, step_size=10)"
)


@dataclass(frozen=True)
class Schedule:
    """The learning rate by epoch; ``build(schedule=...)``.

    Parameters
    ----------
    function:
        A function of the epoch (0, 1, 2, ... over all fits) that returns a factor, or a callable
        that makes a torch scheduler of an optimizer, such as ``functools.partial(StepLR,
        step_size=10)``.
    steps:
        Number of times an epoch that the schedule is stepped, 1 by default. A torch scheduler
        counts steps.
    unit:
        What the function is called with: the number of ``"epochs"`` (default), fractions of them if
        there are several steps, or of ``"steps"``. ``"batches"`` makes a step for each batch of a
        worker, as a scheduler that is stepped inside a plain loop: an epoch has as many as the
        worker with an average share of it. ``fit_online`` takes this unit only, and counts each
        worker's batches over all fits.
    monitor:
        The number of the records that ``ReduceLROnPlateau`` is stepped with, such as
        ``"val_accuracy"`` with ``mode="max"``. By default ``val_loss``, or ``loss`` without
        validation data.

    Raises ``TypeError`` for an object that cannot be called and a ``monitor`` that is no name,
    ``ValueError`` for other numbers and units, and for ``steps`` with ``unit="batches"``.
    """

    function: ScheduleFunction
    steps: int = 1
    unit: ScheduleUnit = "epochs"
    monitor: str | None = None

    def __post_init__(self) -> None:
        function: object = self.function
        if not callable(function):
            raise TypeError(f"schedule={function!r} is not callable; {USAGE}")
        check_count("steps", self.steps)
        check_choice("unit", self.unit, get_args(ScheduleUnit))
        if self.unit == "batches" and self.steps != 1:
            raise ValueError(
                f"steps={self.steps}: unit='batches' sets the number of steps; leave steps= out"
            )
        if not isinstance(self.monitor, str | None):
            raise TypeError(
                f"monitor={self.monitor!r} is not the name of a number of records, such as "
                "'val_loss'"
            )

    @classmethod
    def of(cls, value: "ScheduleSpec") -> "Schedule":
        """Return the argument ``schedule`` of ``build`` as a schedule."""
        return value if isinstance(value, Schedule) else cls(value)

    def factor(self, step: int) -> float:
        """Return the factor of a step, counted over all epochs, if ``function`` returns factors."""
        function: Callable[[Any], Any] = self.function
        if self.unit == "epochs" and self.steps > 1:
            return float(function(step / self.steps))
        return float(function(step))


ScheduleSpec: TypeAlias = ScheduleFunction | Schedule
"""What ``build(schedule=...)`` takes."""
