"""Learning-rate schedules in steps: at fractions of an epoch, or by the metrics of rounds.

The epoch is the only clock, so that a schedule means the same for any number of workers and rounds:
a schedule is stepped once an epoch, or several times, at equal fractions of each worker's batches;
``ReduceLROnPlateau`` by the metrics of rounds. The coordinator steps the scheduler with an
optimizer that trains nothing, and sends each training task the hyperparameters of its epochs: the
learning rate, and others that the scheduler changes, such as the momentum that OneCycleLR cycles.
No part of the schedule is in a worker's state.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fractions import Fraction
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from compss_train._utils.validation import warn_user
from compss_train.model.net_optimizers import NetOptimizer, make_optimizer
from compss_train.model.schedule import USAGE, Schedule, ScheduleSpec
from compss_train.reports.records import monitored_number

Hyperparameters: TypeAlias = tuple[dict[str, Any], ...]
"""For each parameter group of an optimizer, the values to set in it by name, such as ``lr``."""

TimedHyperparameters: TypeAlias = tuple[tuple[Fraction, Hyperparameters], ...]
"""Hyperparameters in turn, each with the fraction of a worker's batches from which they hold."""

MUCH_LONGER = 4
"""Times the length of a fit from which a schedule probably counts something else than the fit."""

PREPARED_STEPS = 20_000
"""Steps of a schedule that are computed before a fit: about a second of work."""

_START = Fraction(0)
_END = Fraction(1)

_LENGTHS = ("total_steps", "T_max", "total_iters")
"""Attributes of torch's schedulers with their number of steps."""

_LOSSES = ("loss", "val_loss")

_CONSTRUCTOR_ARGUMENTS = {
    "cooldown",
    "default_min_lr",
    "eps",
    "factor",
    "min_lrs",
    "mode",
    "mode_worse",
    "patience",
    "threshold",
    "threshold_mode",
}
"""Attributes of a scheduler that a resumed fit may change; the others are its state."""


class LrSchedule:
    """The hyperparameters of each step of a schedule.

    Epochs are counted from 0 over all fits of a trainer. A scheduler is stepped without arguments
    at equal fractions of each epoch. ``ReduceLROnPlateau`` is stepped with a number of the last
    round when the next epoch begins: once an epoch, or once for a round of several epochs, which
    then have the same hyperparameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Schedule) -> None:
        self._groups = optimizer.param_groups
        # Before the scheduler is made, which changes some at once.
        self._initial = [_numeric_values(group) for group in self._groups]
        self._changed = [{"lr"} for _ in self._groups]
        """For each parameter group, the names of the hyperparameters that have ever changed."""
        self._scheduler = _make_scheduler(schedule, optimizer)
        self.waits = isinstance(self._scheduler, ReduceLROnPlateau)
        """Whether the hyperparameters of an epoch depend on the metrics of the rounds before it."""
        self.steps = schedule.steps
        """Number of steps an epoch."""
        self.unit = schedule.unit
        self._monitor = schedule.monitor
        self._known = [self._current()]
        """The hyperparameters of each step so far, from the first one that is not forgotten."""
        self._forgotten = 0
        """How many earlier steps are."""
        self._failure: Exception | None = None
        self._epoch = 0
        self._measured: float | None = None

    def at(self, step: int) -> Hyperparameters:
        """Return the hyperparameters of a step, counted over all epochs.

        A schedule that ``waits`` is asked in order. Raises ``ValueError`` if the schedule fails.
        """
        if self.waits:
            if step > self._epoch:
                if self._measured is not None:
                    self._scheduler.step(self._measured)  # type: ignore[arg-type]
                self._epoch = step
                self._measured = None
            return self._current()
        while self._reached <= step and self._failure is None:
            try:
                # Torch misses the steps of the optimizer, which workers make.
                with warnings.catch_warnings():
                    warnings.filterwarnings(
                        "ignore", r"Detected call of `lr_scheduler.step\(\)` before"
                    )
                    self._scheduler.step()
                self._known.append(self._current())
            except Exception as error:
                self._failure = error  # a step that failed half-way cannot be repeated
        if step < self._reached:
            return self._known[step - self._forgotten]
        if self.unit == "batches" and self.steps == 1:
            raise ValueError(
                f"schedule= fails in batch {self._reached} of a worker (counted from 0 over all "
                f"fits since build): {self._failure}; give it more steps, or the fit max_batches="
            ) from self._failure
        epoch = f"{self._reached / self.steps:g}"
        raise ValueError(
            f"schedule= fails in epoch {epoch} (counted from 0 over all fits since build): "
            f"{self._failure}"
        ) from self._failure

    @property
    def _reached(self) -> int:
        """The number of steps whose hyperparameters were computed."""
        return self._forgotten + len(self._known)

    def forget(self, stop: int) -> None:
        """Forget the steps before ``stop`` that were computed: they are not asked for again."""
        forgotten = max(0, min(stop, self._reached - 1) - self._forgotten)
        del self._known[:forgotten]
        self._forgotten += forgotten

    def during(
        self, epoch: int, start: Fraction = _START, stop: Fraction = _END
    ) -> TimedHyperparameters:
        """Return the hyperparameters of the steps between two fractions of an epoch, in turn."""
        steps = range(math.floor(self.steps * start), math.ceil(self.steps * stop))
        times = [(Fraction(step, self.steps) - start) / (stop - start) for step in steps]
        return tuple(
            (max(_START, time), self.at(epoch * self.steps + step))
            for time, step in zip(times, steps, strict=True)
        )

    def rates(
        self,
        epoch: int,
        stop: Fraction = _END,
        change: Callable[[Hyperparameters], Hyperparameters] | None = None,
    ) -> dict[str, float]:
        """Return the learning rates in the last step before a fraction of an epoch.

        ``change`` is what makes other hyperparameters of those of the schedule, if anything does.
        """
        last = self.at(epoch * self.steps + math.ceil(self.steps * stop) - 1)
        groups = zip(self._groups, last if change is None else change(last), strict=True)
        return rates({**group, **hyperparameters} for group, hyperparameters in groups)

    @property
    def base_rates(self) -> list[float]:
        """The learning rate of each parameter group that the schedule's rates are factors of."""
        return [float(group.get("initial_lr", group["lr"])) for group in self._groups]

    def check_settable(self, names: Iterable[str]) -> None:
        """Raise ``ValueError`` for hyperparameters that the schedule alone decides."""
        kind = type(self._scheduler).__name__
        changed = set[str]().union(*self._changed) - {"lr"}
        for name in names:
            if name in changed:
                raise ValueError(
                    f"set_hyperparameters({name}=...): the {kind} of schedule= changes {name!r} "
                    "itself; build without it, or give it another range"
                )
            if name == "lr" and self.waits:
                raise ValueError(
                    f"set_hyperparameters(lr=...): the {kind} of schedule= decides the learning "
                    "rate by the results of rounds; build without schedule= to set it yourself"
                )
            built = [float(values["lr"]) for values in self._initial]
            if name == "lr" and (built != self.base_rates or 0 in built):
                raise ValueError(
                    f"set_hyperparameters(lr=...) multiplies the rates of schedule= by lr over the "
                    f"optimizer's lr {built}, but the {kind} begins with {self.base_rates}: "
                    "build without schedule= to set the rate yourself"
                )

    def prepare(self, stop: int, batches: int, workers: int) -> None:
        """Raise ``ValueError`` unless all epochs before ``stop`` have hyperparameters.

        Warns if the schedule is much longer, or as long as one of the ``workers`` alone would need.
        At most the first ``PREPARED_STEPS`` steps are computed; later ones when they are reached.
        ``batches`` is the number of batches of a worker in an epoch.
        """
        if self.unit == "batches":
            self.steps = batches
        steps = stop * self.steps
        self._warn_of_length(steps, workers)
        if not self.waits:
            self.at(min(steps, PREPARED_STEPS) - 1)

    def _warn_of_length(self, steps: int, workers: int) -> None:
        """Warn if the schedule is made for much more than the ``steps`` of a fit."""
        workers_share_steps = self.unit == "batches" and workers > 1
        length = max(getattr(self._scheduler, name, 0) for name in _LENGTHS)
        if workers_share_steps and isinstance(self._scheduler, LambdaLR):
            length = self._first_step_without_rate(
                steps + 1, min(steps * workers + steps // 10 + 2, PREPARED_STEPS)
            )
        is_of_one_worker = workers_share_steps and abs(length / steps - workers) < workers / 10
        if not is_of_one_worker and length <= MUCH_LONGER * steps:
            return
        if is_of_one_worker:
            advice = f"divide its length by {workers}, as the workers share the batches"
        elif self.unit == "batches":
            advice = "give it as many steps as the fit has"
        else:
            advice = (
                "give its length in epochs, or step it with every batch by "
                "Schedule(function, unit='batches')"
            )
        frequency = "once an epoch" if self.steps == 1 else f"{self.steps} times an epoch"
        warn_user(
            f"schedule= is a {type(self._scheduler).__name__} of {length} steps, and the fit "
            f"ends after {steps}, as it is stepped {frequency}: {advice}"
        )

    def _first_step_without_rate(self, start: int, stop: int) -> int:
        """Return the step in which a function falls to 0, where it seems to end; 0 if it does not.

        A schedule that fails after a fit does not fail in it.
        """
        with suppress(ValueError):
            for step in range(start, stop):
                if not any(group["lr"] for group in self.at(step)):
                    return step
        return 0

    def observe(self, record: Mapping[str, Any]) -> None:
        """Remember the monitored number of a round that has ended.

        By default it is the validation loss, or else the training loss. Raises ``ValueError`` if
        the record has no number of that name.
        """
        if self._monitor is None:
            self._measured = record.get("val_loss", record["loss"])
        elif self.waits:
            self._measured = monitored_number(record, self._monitor)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that does not follow from the epoch, as JSON can hold it."""
        if not self.waits:
            return {}
        state = self._scheduler.state_dict()
        return {
            "scheduler": {
                name: value for name, value in state.items() if name not in _CONSTRUCTOR_ARGUMENTS
            },
            "lrs": [values["lr"] for values in self._current()],
            "epoch": self._epoch,
            "measured": self._measured,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; ignore the state of another kind of schedule."""
        if not self.waits or not state:
            return
        self._scheduler.load_state_dict(dict(state["scheduler"]))
        for group, lr in zip(self._groups, state["lrs"], strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        self._epoch = state["epoch"]
        self._measured = state["measured"]

    def _current(self) -> Hyperparameters:
        """Return for each group ``lr`` and the other hyperparameters that have ever changed.

        Raises ``ValueError`` for a learning rate that is negative or not finite.
        """
        current = [_numeric_values(group) for group in self._groups]
        for initial, values, changed in zip(self._initial, current, self._changed, strict=True):
            changed.update(name for name, value in initial.items() if values[name] != value)
            if not 0 <= values["lr"] < math.inf:
                raise ValueError(
                    f"schedule= sets the learning rate to {values['lr']}; it must be finite and "
                    "at least 0"
                )
        return tuple(
            {name: values[name] for name in sorted(changed)}
            for values, changed in zip(current, self._changed, strict=True)
        )


def _numeric_values(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a group that schedulers change: numbers and tuples."""
    values = {
        name: value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        for name, value in group.items()
    }
    return {name: value for name, value in values.items() if isinstance(value, Real | tuple)}


def make_schedule(
    spec: ScheduleSpec, net: nn.Module, optimizer_factory: NetOptimizer
) -> LrSchedule:
    """Return the schedule; ``net`` is any copy of the network and is not modified.

    Raises ``ValueError`` for an object that is neither a function of the epoch nor a factory of a
    scheduler.
    """
    return LrSchedule(make_optimizer(optimizer_factory, net), Schedule.of(spec))


def _make_scheduler(schedule: Schedule, optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Return torch's scheduler; raise ``ValueError`` if ``function`` makes none that suits."""
    if any(group.get("lr") is None for group in optimizer.param_groups):
        raise ValueError(
            f"schedule= changes the learning rate, and {type(optimizer).__name__} has none: give "
            "it one, or leave schedule= out"
        )
    function: Any = schedule.function
    scheduler: Any = _result_or_error(function, optimizer)
    if not isinstance(scheduler, LRScheduler):
        factor = _result_or_error(function, 0)
        if not isinstance(factor, Real | torch.Tensor):
            raise ValueError(
                f"schedule= {_outcome(scheduler)} when called with an optimizer, and "
                f"{_outcome(factor)} when called with epoch 0; {USAGE}"
            )
        scheduler = LambdaLR(optimizer, schedule.factor)
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ValueError(
            "schedule= returns a scheduler of another optimizer than the one it is called with, "
            "which would have no effect; write lambda optimizer: StepLR(optimizer, step_size=10)"
        )
    made: LRScheduler = scheduler
    _check_monitoring(schedule, made)
    return made


def _check_monitoring(schedule: Schedule, scheduler: LRScheduler) -> None:
    """Raise ``ValueError`` for a scheduler that cannot be stepped with what it is to monitor."""
    if not isinstance(scheduler, ReduceLROnPlateau):
        if schedule.monitor is not None:
            raise ValueError(
                f"monitor={schedule.monitor!r}: a {type(scheduler).__name__} looks at no number, "
                "only ReduceLROnPlateau does; leave monitor= out"
            )
        return
    if schedule.steps != 1 or schedule.unit == "batches":
        raise ValueError(
            f"Schedule(steps={schedule.steps}, unit={schedule.unit!r}) of a ReduceLROnPlateau: it "
            "is stepped once an epoch; leave out steps= and unit="
        )
    monitor = schedule.monitor
    if scheduler.mode == "max" and (monitor is None or monitor in _LOSSES):
        stepped_with = "val_loss, or else the loss" if monitor is None else monitor
        raise ValueError(
            f"ReduceLROnPlateau(mode='max') is stepped with {stepped_with}, which falls while a "
            "network learns, so that the learning rate would fall, too: leave mode= out, or "
            "monitor what rises, Schedule(..., monitor='val_accuracy')"
        )


def _result_or_error(function: Callable[[Any], Any], argument: object) -> Any:
    """Return the result of a call, or the exception that it raises."""
    try:
        return function(argument)
    except Exception as error:
        return error


def _outcome(result: object) -> str:
    """Return what a call returned or raised, for a message."""
    if isinstance(result, Exception):
        return f"raised {type(result).__name__} ({result})"
    return f"returned {result!r}"


def rates(groups: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the learning rates of parameter groups by their names in records.

    That of the first group is ``lr``; those of others, and of all with a name, are ``lr/NAME``.
    Optimizers that find their steps otherwise may have none.
    """
    named: dict[str, float] = {}
    for number, group in enumerate(groups):
        if group.get("lr") is None:
            continue
        named.setdefault("lr", float(group["lr"]))
        if number > 0 or "name" in group:
            named[f"lr/{group.get('name', number)}"] = float(group["lr"])
    return named
