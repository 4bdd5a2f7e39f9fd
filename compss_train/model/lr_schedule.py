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

Hyperparameters: TypeAlias = tuple[dict[str, Any], ...]
"""For each parameter group of an optimizer, the values to set in it by name, such as ``lr``."""


TimedHyperparameters: TypeAlias = tuple[tuple[Fraction, Hyperparameters], ...]
"""Hyperparameters in turn, each with the fraction of a worker's batches at which they take
effect.
"""


WHOLE = Fraction(0), Fraction(1)
"""Start and end of an epoch."""


MUCH_LONGER = 4
"""A fit that ends before this fraction of its schedule probably counts something else than the
schedule does.
"""


_LENGTHS = ("total_steps", "T_max", "total_iters")
"""Attributes of torch's schedulers with their number of steps."""


PREPARED_STEPS = 20_000
"""Steps of a schedule that are computed before a fit: about a second of work."""


_CONSTRUCTOR_ARGUMENTS = (
    *("mode", "mode_worse", "factor", "patience", "threshold", "threshold_mode", "cooldown"),
    *("min_lrs", "default_min_lr", "eps"),
)
"""Attributes that a scheduler's constructor sets and a resumed fit may change; the others are its
state.
"""


class LrSchedule:
    """The hyperparameters of each step of the schedule; epochs are counted from 0 over all fits of
    a trainer.

    A scheduler is stepped without arguments at equal fractions of each epoch. ``ReduceLROnPlateau``
    is stepped with the loss of the last round when the next epoch begins: once an epoch, or once
    for a round of several epochs, which then have the same hyperparameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Schedule) -> None:
        self._groups = optimizer.param_groups
        # The scheduler changes some at once.
        self._initial = [_numeric_values(group) for group in self._groups]
        self._changed = [{"lr"} for _ in self._groups]
        self._scheduler = _make_scheduler(schedule, optimizer)
        self.waits = isinstance(self._scheduler, ReduceLROnPlateau)
        """Whether the hyperparameters of an epoch depend on the metrics of the rounds before it."""
        self.steps = schedule.steps
        """Number of steps an epoch."""
        self.unit = schedule.unit
        self._known = [self._current()]
        self._failure: Exception | None = None
        self._epoch = 0
        self._measured: float | None = None

    def at(self, step: int) -> Hyperparameters:
        """Return the hyperparameters of a step, counted over all epochs; a ``waits`` schedule is
        asked in order.
        """
        if self.waits:
            if step > self._epoch:
                if self._measured is not None:
                    self._scheduler.step(self._measured)  # type: ignore[arg-type]
                self._epoch = step
                self._measured = None
            return self._current()
        while len(self._known) <= step and self._failure is None:
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
        if step < len(self._known):
            return self._known[step]
        epoch = f"{len(self._known) / self.steps:g}"
        raise ValueError(
            f"schedule= fails in epoch {epoch} (counted from 0 over all fits since build): "
            f"{self._failure}"
        ) from self._failure

    def during(
        self, epoch: int, start: Fraction = WHOLE[0], stop: Fraction = WHOLE[1]
    ) -> TimedHyperparameters:
        """Return the hyperparameters of the steps between two fractions of an epoch, in turn."""
        return tuple(
            (
                max(Fraction(0), (Fraction(step, self.steps) - start) / (stop - start)),
                self.at(epoch * self.steps + step),
            )
            for step in range(math.floor(self.steps * start), math.ceil(self.steps * stop))
        )

    def rates(self, epoch: int, stop: Fraction = WHOLE[1]) -> dict[str, float]:
        """Return the learning rates of the parameter groups in the last step before a fraction of
        an epoch.
        """
        now = self.at(epoch * self.steps + math.ceil(self.steps * stop) - 1)
        return rates({**group, **values} for group, values in zip(self._groups, now, strict=True))

    def prepare(self, stop: int, batches: int, workers: int) -> None:
        """Raise ``ValueError`` unless all epochs before ``stop`` have hyperparameters.

        Warns if the schedule is much longer, or as long as one of the ``workers`` alone would need.
        At most the first ``PREPARED_STEPS`` steps are computed; later ones when they are reached.
        ``batches`` is the number of batches of a worker in an epoch.
        """
        self.steps = batches if self.unit == "batches" else self.steps
        length = max((getattr(self._scheduler, name, 0) for name in _LENGTHS), default=0)
        steps = stop * self.steps
        shared = self.unit == "batches" and workers > 1
        if shared and isinstance(self._scheduler, LambdaLR):  # one that falls to 0 ends there
            later = range(steps + 1, min(steps * workers + steps // 10 + 2, PREPARED_STEPS))
            with suppress(ValueError):  # one that fails after the fit does not fail in it
                length = next(
                    (step for step in later if not any(group["lr"] for group in self.at(step))), 0
                )
        of_one = shared and abs(length / steps - workers) < workers / 10
        if of_one or length > MUCH_LONGER * steps:
            a_step = {1: "once an epoch"}.get(self.steps, f"{self.steps} times an epoch")
            advice = (
                "give its length in epochs, or step it with every batch by "
                "Schedule(function, unit='batches')"
            )
            if self.unit == "batches":
                advice = "give it as many steps as the fit has"
            if of_one:
                advice = f"divide its length by {workers}, as the workers share the batches"
            warn_user(
                f"schedule= is a {type(self._scheduler).__name__} of {length} steps, and the fit "
                f"ends after {steps}, as it is stepped {a_step}: {advice}"
            )
        if not self.waits:
            self.at(min(stop * self.steps, PREPARED_STEPS) - 1)

    def observe(self, record: Mapping[str, Any]) -> None:
        """Remember the validation loss of a round that has ended, or the training loss without
        validation data.
        """
        self._measured = record.get("val_loss", record["loss"])

    def state_dict(self) -> dict[str, Any]:
        """Return the state that does not follow from the epoch: numbers and strings, in dicts and
        lists.
        """
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
        """Restore what ``state_dict`` returned; the state of another kind of schedule is
        ignored.
        """
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
        """Return, for each parameter group, ``lr`` and the other hyperparameters that have ever
        changed.

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
        both = zip(current, self._changed, strict=True)
        return tuple({name: values[name] for name in sorted(changed)} for values, changed in both)


def _numeric_values(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's hyperparameters that are numbers or tuples: the ones that schedulers
    change.
    """
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
    spec: Any = schedule.function
    result = _try_call(spec, optimizer)
    if not isinstance(result, LRScheduler):
        factor = _try_call(spec, 0)
        if not isinstance(factor, Real | torch.Tensor):
            of_optimizer, of_epoch = (
                f"raised {type(each).__name__} ({each})"
                if isinstance(each, Exception)
                else (f"returned {each!r}")
                for each in (result, factor)
            )
            raise ValueError(
                f"schedule= {of_optimizer} when called with an optimizer, and {of_epoch} when "
                f"called with epoch 0; {USAGE}"
            )
        return LambdaLR(optimizer, schedule.factor)
    if getattr(result, "optimizer", optimizer) is not optimizer:
        raise ValueError(
            "schedule= returns a scheduler of another optimizer than the one it is called with, "
            "which would have no effect; write lambda optimizer: StepLR(optimizer, step_size=10)"
        )
    if isinstance(result, ReduceLROnPlateau) and (
        (schedule.steps, result.mode) != (1, "min") or schedule.unit == "batches"
    ):
        raise ValueError(
            f"Schedule(steps={schedule.steps}, unit={schedule.unit!r}) of a ReduceLROnPlateau "
            f"with mode={result.mode!r}: it is stepped once an epoch, with the validation loss, "
            "or else the training loss; leave out steps=, unit= and mode="
        )
    return result


def _try_call(spec: Callable[[Any], Any], argument: object) -> Any:
    """Return the result of a call, or the exception that it raises."""
    try:
        return spec(argument)
    except Exception as error:
        return error


def rates(groups: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the learning rate of the first group as ``lr``, and those of others and named ones as
    ``lr/NAME``.
    """
    found: dict[str, float] = {}
    for number, group in enumerate(groups):
        found.setdefault("lr", float(group["lr"]))
        if number or "name" in group:
            found[f"lr/{group.get('name', number)}"] = float(group["lr"])
    return found
