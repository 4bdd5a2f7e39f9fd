"""The state of a fit in progress: one object that the trainer holds from the fit's start to its end."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from compss_train.data.partitioning import Position
from compss_train.model.parameters import Parameters
from compss_train.training.callback import CallbackList
from compss_train.training.data_source import DataSource
from compss_train.training.fit_options import FitOptions
from compss_train.training.stopping import Stopping
from compss_train.training.training_state import TrainingState


@dataclass(kw_only=True)
class FitProgress:
    """How far a fit has come, and what its rounds depend on."""

    options: FitOptions
    data: DataSource
    first_epoch: int
    """The first epoch of the fit, counted over all fits of the trainer."""
    reached: Position
    """Where the next round starts."""
    skipped: tuple[str, ...] = ()
    """Files that could not be read."""
    described: dict[str, Any] = field(default_factory=dict)
    """The options and the objective, which must be the same when the fit is resumed."""


class RunningFit(Protocol):
    """A fit whose tasks are running, as the trainer sees it: the rounds of ``fit``, or those of ``fit_online``."""

    occupies_workers: ClassVar[bool]
    """Whether its tasks run until the fit ends, so that no other tasks can."""

    def current(self) -> Parameters | None:
        """Return the global parameters after the last complete round, ``None`` before the first."""

    def settled(self) -> tuple[Parameters | None, TrainingState]:
        """Return the same parameters, and the state of the training at that moment."""

    def averaged(self) -> Parameters | None:
        """Return the average of the parameters of the last merges, ``None`` without one."""


@dataclass(kw_only=True)
class ActiveFit:
    """A fit from the checks of its arguments to its end."""

    stopping: Stopping
    callbacks: CallbackList
    progress: FitProgress | None = None
    """``None`` in an online fit, which has no epochs."""
    running: RunningFit | None = None
    """``None`` before the first task is submitted and after the last one has ended."""
