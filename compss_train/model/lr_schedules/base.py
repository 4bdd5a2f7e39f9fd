"""What all schedules have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, ClassVar, TypeAlias

import torch

Hyperparameters: TypeAlias = "tuple[dict[str, Any], ...]"
"""For each parameter group of an optimizer, the values to set in it by name, such as ``lr``."""


class LrSchedule(ABC):
    """The hyperparameters of each epoch, counted from 0 over all fits of a trainer."""

    waits: ClassVar[bool] = False
    """Whether an epoch's hyperparameters depend on what the rounds before it have measured."""

    @abstractmethod
    def at(self, epoch: int) -> Hyperparameters:
        """Return what is to be set in the optimizer's parameter groups when an epoch begins."""

    def of(self, epochs: Iterable[int]) -> dict[int, Hyperparameters]:
        """Return the same of several epochs."""
        return {epoch: self.at(epoch) for epoch in sorted(set(epochs))}

    def lr(self, epoch: int) -> float:
        """Return the first parameter group's learning rate in an epoch."""
        return float(self.at(epoch)[0]["lr"])

    def prepare(self, stop: int) -> None:
        """Raise ``ValueError`` unless there are hyperparameters of all epochs before ``stop``."""
        return

    def observe(self, record: Mapping[str, Any]) -> None:
        """Take the record of a round that has ended."""
        return

    def state_dict(self) -> dict[str, Any]:
        """Return what does not follow from the epoch alone: numbers and texts, in dicts and lists."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state."""
        return


class Groups:
    """Tells what a scheduler makes of the hyperparameters.

    Made before the scheduler, which changes some as soon as it is made.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._groups = optimizer.param_groups
        self._initial = [_numbers(group) for group in self._groups]
        self._changed = [{"lr"} for _ in self._groups]

    def hyperparameters(self) -> Hyperparameters:
        """Return the values of those that have ever been changed; raises ``ValueError`` for a rate that is none."""
        now = [_numbers(group) for group in self._groups]
        for initial, values, changed in zip(self._initial, now, self._changed, strict=True):
            changed.update(name for name, value in initial.items() if values[name] != value)
            if not 0 <= values["lr"] < math.inf:
                raise ValueError(f"schedule= makes a learning rate of {values['lr']}")
        return tuple(
            {name: values[name] for name in sorted(changed)}
            for values, changed in zip(now, self._changed, strict=True)
        )

    def set_lrs(self, lrs: Iterable[float]) -> None:
        """Set the learning rate of each group."""
        for group, lr in zip(self._groups, lrs, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's hyperparameters that are numbers, or tuples of such: what schedulers change."""
    values = {
        name: value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        for name, value in group.items()
    }
    return {name: value for name, value in values.items() if isinstance(value, Real | tuple)}
