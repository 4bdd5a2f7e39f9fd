"""Snapshot: a trainer at one moment, and the same as the tree of plain values that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compss_train.data.partitioning import Position
from compss_train.model.parameters import Parameters
from compss_train.model.random_state import RandomState
from compss_train.training.worker import WorkerState


@dataclass(frozen=True, eq=False)
class Progress:
    """How far a fit has come, and what its rounds depend on."""

    options: dict[str, Any]
    """Of the fit, as ``FitOptions.described`` gives them."""
    sizes: tuple[int, ...]
    """Samples of each block or file."""
    first_epoch: int
    """Of the fit, counted over all fits of the trainer."""
    reached: Position
    fingerprint: int | None = None
    """Of the data, where they were at hand."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All of a trainer that is not given to it anew by the program that resumes it."""

    parameters: Parameters
    """The global parameters."""
    workers: tuple[WorkerState, ...]
    """Each worker's optimizer and random state."""
    epoch: int
    """Epochs begun, of all fits."""
    history: list[dict[str, Any]]
    setting: dict[str, Any]
    """What the trainer and its network are, to compare with those that resume."""
    progress: Progress | None
    """Of the ``fit`` that is running; ``None`` between fits, and in an online one."""
    callbacks: dict[str, Any]
    """The state of each callback that has one."""
    schedule: dict[str, Any]
    """The state of the learning rate's schedule, as far as it does not follow from the epoch."""

    def to_dict(self) -> dict[str, Any]:
        """Return this as plain values."""
        progress = self.progress and {**vars(self.progress), "reached": _fields(self.progress.reached)}
        return {**vars(self), "workers": [_of_worker(state) for state in self.workers], "progress": progress}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Snapshot:
        """Return what ``content`` described."""
        saved = content["progress"]
        progress = None if saved is None else Progress(**{**saved, "reached": Position(**saved["reached"])})
        workers = tuple(_to_worker(state) for state in content["workers"])
        return cls(**{**content, "workers": workers, "progress": progress})


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with slots."""
    return {name: getattr(value, name) for name in value.__slots__}


def _of_worker(state: WorkerState) -> dict[str, Any]:
    if isinstance(state.random, int):
        return {"optimizer": state.optimizer, "random": state.random}
    version, numbers, gauss = state.random.python
    python = {"version": version, "numbers": np.array(numbers, np.int64), "gauss": gauss}
    return {"optimizer": state.optimizer, "random": {**_fields(state.random), "python": python}}


def _to_worker(saved: Mapping[str, Any]) -> WorkerState:
    random = saved["random"]
    if isinstance(random, int):
        return WorkerState(saved["optimizer"], random)
    python = random["python"]
    state = (python["version"], tuple(python["numbers"].tolist()), python["gauss"])
    return WorkerState(saved["optimizer"], RandomState(**{**random, "python": state}))
