"""The state of training: what merges and workers keep in the engine from task to task, and what checkpoints hold.

In a fit the states of the workers of each group are one value of the engine: what the group's last task returned.
``Snapshot`` is the state of a trainer, with its conversion to the plain values of a checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np

from compss_train.data.partitioning import ResumePoint
from compss_train.engines import Engine, Ref
from compss_train.exceptions import BadCheckpointError
from compss_train.model.devices import RandomState
from compss_train.model.parameters import Parameters
from compss_train.worker.state import GroupState, WorkerState


@dataclass(frozen=True, eq=False, kw_only=True)
class MergeState:
    """What merges keep besides the parameters: values, or references to them during a fit."""

    moments: Any = None
    """The mean of the workers' optimizer states, as named arrays, with ``optimizer_state="average"``."""
    outer: Any = None
    """The state of the outer optimizer."""
    averaged: Any = None
    """The average of the parameters of the last merges, with ``Merge(averaging=...)``."""

    def refs(self) -> Iterator[Ref]:
        """Iterate over the references."""
        return (value for value in vars(self).values() if isinstance(value, Ref))

    def published(self, engine: Engine) -> "MergeState":
        """Return references to the values."""
        values = {name: value for name, value in vars(self).items() if value is not None}
        return MergeState(**{name: v if isinstance(v, Ref) else engine.publish(v) for name, v in values.items()})

    def fetched(self, engine: Engine) -> Self:
        """Return the values, waiting for the tasks that compute them."""
        names = [each.name for each in fields(self) if isinstance(getattr(self, each.name), Ref)]
        return replace(self, **dict(zip(names, engine.fetch(list(self.refs())), strict=True)))


NOTHING_KEPT = MergeState()


@dataclass(frozen=True, eq=False)
class TrainingState:
    """What a fit passes on to the next fit and to a checkpoint, besides the parameters."""

    workers: tuple[WorkerState, ...] = ()
    """The state of each worker; workers without a state start fresh."""
    merge: MergeState = NOTHING_KEPT


States: TypeAlias = Sequence[GroupState | Ref]
"""The states of each group."""


def state_refs(states: States) -> list[Ref]:
    """Return the references to states."""
    return [each for each in states if isinstance(each, Ref)]


def fetch_states(engine: Engine, states: States) -> list[WorkerState]:
    """Return the state of each worker, waiting for the tasks that compute them."""
    fetched = iter(engine.fetch(state_refs(states)))
    return [state for each in states for state in (next(fetched) if isinstance(each, Ref) else each)]


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

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot as plain values."""
        progress = self.progress and {**vars(self.progress), "reached": _fields(self.progress.reached)}
        return {**vars(self), "workers": [worker_to_dict(state) for state in self.workers], "progress": progress}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], path: Path) -> Self:
        """Return the snapshot from its plain values, which were read from a checkpoint.

        Raises ``BadCheckpointError`` for workers or progress that no trainer has written, with a right checksum.
        """
        try:
            saved = content["progress"]
            progress = None if saved is None else Progress(**{**saved, "reached": ResumePoint(**saved["reached"])})
            workers = tuple(worker_from_dict(state) for state in content["workers"])
            return cls(**{**content, "workers": workers, "progress": progress})
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise BadCheckpointError(path, f"its state is not that of a trainer: {error}") from error


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
