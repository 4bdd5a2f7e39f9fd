"""``Snapshot``: the state of a trainer, as a checkpoint holds it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from compss_train.data.partitioning import ResumePoint
from compss_train.exceptions import BadCheckpointError
from compss_train.model.devices import RandomState
from compss_train.model.parameters import Parameters
from compss_train.worker.state import WorkerState


@dataclass(frozen=True, eq=False, kw_only=True)
class Progress:
    """The progress of a fit, and the values that its rounds depend on."""

    options: dict[str, Any]
    """The options of the fit and its objective, as plain values."""
    sizes: tuple[int, ...]
    """The number of samples of each block or file."""
    first_epoch: int
    """The first epoch of the fit, counted over all fits of the trainer."""
    reached: ResumePoint
    fingerprint: int | None = None
    """The fingerprint of the data, if they were available."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Study:
    """A save of ``fit_online``: one cut through the parameters, the workers and the simulations."""

    content: dict[str, Any]
    """All but the following, as plain values, arrays and tensors."""
    parameters: Parameters
    workers: tuple[WorkerState, ...]
    files: dict[str, Path]
    """The workers' buffers, files by name."""
    averaged: Parameters | None = None
    """The average of the parameters by steps, if one is kept."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Snapshot:
    """The state of a trainer, without what the resuming program provides again."""

    parameters: Parameters
    """The global parameters."""
    workers: tuple[WorkerState, ...]
    """The optimizer and random state of each worker."""
    epoch: int
    """The number of started epochs of all fits."""
    history: list[dict[str, Any]]
    setting: dict[str, Any]
    """The settings of the trainer and its network, to be compared on resuming."""
    progress: Progress | None
    """The progress of the running ``fit``; ``None`` between fits and in ``fit_online``."""
    callbacks: dict[str, Any]
    """The state of each callback that has one."""
    schedule: dict[str, Any]
    """The state of the learning-rate schedule that does not follow from the epoch."""
    merge: dict[str, Any] = field(default_factory=dict)
    """What merges keep besides the parameters."""
    hyperparameters: Sequence[Mapping[str, Any]] = ()
    """What ``trainer.set_hyperparameters`` has set, by the rounds from which it holds."""
    study: dict[str, Any] | None = None
    """The content of the save of ``fit_online`` that it belongs to."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Its files by name, which are copied."""

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot as plain values; ``files`` are paths."""
        progress = None
        if self.progress is not None:
            progress = {**vars(self.progress), "reached": _fields(self.progress.reached)}
        return {
            **vars(self),
            "workers": [worker_to_dict(state) for state in self.workers],
            "progress": progress,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], path: Path) -> Self:
        """Return the snapshot from its plain values, which were read from a checkpoint.

        Raises ``BadCheckpointError`` for what no trainer has written.
        """
        try:
            progress = None
            if content["progress"] is not None:
                reached = ResumePoint(**content["progress"]["reached"])
                progress = Progress(**{**content["progress"], "reached": reached})
            workers = tuple(worker_from_dict(state) for state in content["workers"])
            return cls(**{**content, "workers": workers, "progress": progress})
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            reason = f"its state is not that of a trainer: {error}"
            raise BadCheckpointError(path, reason) from error


class Checkpoint(NamedTuple):
    """A checkpoint that has been read."""

    path: Path
    snapshot: Snapshot


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with slots."""
    return {name: getattr(value, name) for name in value.__slots__}


def worker_to_dict(state: WorkerState) -> dict[str, Any]:
    """Return the state of a worker as plain values."""
    if isinstance(state.random, int):
        return _fields(state)
    version, numbers, gauss = state.random.python
    python = {"version": version, "numbers": np.array(numbers, np.int64), "gauss": gauss}
    return {**_fields(state), "random": {**_fields(state.random), "python": python}}


def worker_from_dict(saved: Mapping[str, Any]) -> WorkerState:
    """Return the state of a worker from its plain values."""
    random = saved["random"]
    if isinstance(random, int):
        return WorkerState(**saved)
    python = random["python"]
    state = (python["version"], tuple(python["numbers"].tolist()), python["gauss"])
    return WorkerState(**{**saved, "random": RandomState(**{**random, "python": state})})
