"""What a fit passes on to the next fit and to checkpoints, besides the parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from compss_train.engines import Ref
from compss_train.model.parameters import Parameters
from compss_train.model.parts import Moments
from compss_train.worker.state import WorkerState


@dataclass(frozen=True, eq=False, kw_only=True)
class MergeState:
    """What merges keep besides the parameters."""

    moments: Moments | None = None
    """The merged optimizer states of the workers, with ``optimizer_state="average"``."""
    outer: dict[str, Any] | None = None
    """The state of the outer optimizer."""
    averaged: Parameters | None = None
    """The average of the parameters of the last merges, with ``Merge(averaging=...)``."""


NOTHING_KEPT = MergeState()


@dataclass(frozen=True, eq=False)
class TrainingState:
    """What a fit passes on to the next fit and to a checkpoint, besides the parameters."""

    workers: tuple[WorkerState, ...] = ()
    """The state of each worker; workers without a state start fresh."""
    merge: MergeState = NOTHING_KEPT


States: TypeAlias = Sequence[WorkerState | Ref]
"""The state of each worker."""
