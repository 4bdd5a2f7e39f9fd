"""What all schedules have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from compss_train.worker.shard import Hyperparameters


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
