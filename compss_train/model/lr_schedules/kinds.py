"""Schedules that the number of the epoch decides alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from compss_train.model.lr_schedules.base import Groups, Hyperparameters, LrSchedule


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


_GIVEN = (
    *("mode", "mode_worse", "factor", "patience", "threshold", "threshold_mode", "cooldown"),
    *("min_lrs", "default_min_lr", "eps"),
)
"""What a scheduler was made with, of which a resumed fit may have another; all else is what it counts."""


class OnPlateau(LrSchedule):
    """``ReduceLROnPlateau``: stepped with what the last round has measured, when another epoch begins after it.

    So it is stepped once an epoch, and once a round of several epochs, which then have their hyperparameters in
    common.
    """

    waits = True

    def __init__(self, scheduler: ReduceLROnPlateau, groups: Groups) -> None:
        self._scheduler, self._groups = scheduler, groups
        self._epoch = 0
        self._measured: float | None = None

    def at(self, epoch: int) -> Hyperparameters:
        """Return the hyperparameters; epochs are asked for in turn."""
        if epoch > self._epoch:
            if self._measured is not None:
                self._scheduler.step(self._measured)
            self._epoch, self._measured = epoch, None
        return self._groups.hyperparameters()

    def observe(self, record: Mapping[str, Any]) -> None:
        """Take the loss of the validation, or that of training where there is none."""
        self._measured = record.get("val_loss", record["loss"])

    def state_dict(self) -> dict[str, Any]:
        """Return what the scheduler counts, the learning rates, and what the last round has measured."""
        state = self._scheduler.state_dict()
        return {
            "scheduler": {name: value for name, value in state.items() if name not in _GIVEN},
            "lrs": [values["lr"] for values in self._groups.hyperparameters()],
            "epoch": self._epoch,
            "measured": self._measured,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; from the beginning where the state is that of another kind of schedule."""
        if not state:
            return
        self._scheduler.load_state_dict(dict(state["scheduler"]))
        self._groups.set_lrs(state["lrs"])
        self._epoch, self._measured = state["epoch"], state["measured"]
