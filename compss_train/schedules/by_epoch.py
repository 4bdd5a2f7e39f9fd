"""Schedules that the number of the epoch decides alone."""

from __future__ import annotations

import warnings

from torch.optim.lr_scheduler import LRScheduler

from compss_train.schedules.base import LrSchedule
from compss_train.schedules.groups import Groups
from compss_train.worker.shard import Hyperparameters


class ByEpoch(LrSchedule):
    """A torch scheduler that is stepped once an epoch and asks for nothing else."""

    def __init__(self, scheduler: LRScheduler, groups: Groups) -> None:
        self._scheduler, self._groups = scheduler, groups
        self._known = [groups.hyperparameters()]
        self._failed: Exception | None = None

    def at(self, epoch: int) -> Hyperparameters:
        """Return what so many steps make of the hyperparameters."""
        while len(self._known) <= epoch:
            self._known.append(self._next())
        return self._known[epoch]

    def _next(self) -> Hyperparameters:
        if self._failed is None:
            try:
                return self._stepped()
            except Exception as error:
                self._failed = error  # a step that has failed half-way cannot be made again
        raise ValueError(
            f"schedule= cannot go on to epoch {len(self._known)} (counted from 0 over all fits since build): "
            f"{self._failed}"
        ) from self._failed

    def _stepped(self) -> Hyperparameters:
        with warnings.catch_warnings():  # torch misses the optimizer's steps, which workers make
            warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler.step\(\)` before")
            self._scheduler.step()
        return self._groups.hyperparameters()

    def prepare(self, stop: int) -> None:
        """Go so far."""
        self.at(stop - 1)
