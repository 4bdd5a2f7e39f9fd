"""``Fit``: one object for a fit, from the checks of its arguments to its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

from compss_train.data.partitioning import Position
from compss_train.model.parameters import Parameters
from compss_train.training.callback import CallbackList
from compss_train.training.checkpoints.snapshot import Progress, Snapshot
from compss_train.training.data_source import DataSource
from compss_train.training.fit_options import FitOptions
from compss_train.training.stopping import Stopping
from compss_train.training.training_state import TrainingState

Checkpoint: TypeAlias = tuple[Path, Snapshot]
"""The path of a checkpoint and its content."""


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
class Fit:
    """What callbacks and signals act on while a fit runs; by itself that of ``fit_online``, which has no epochs."""

    callbacks: CallbackList
    stopping: Stopping
    validation: DataSource | None
    running: RunningFit | None = None
    """``None`` before the first task is submitted and after the last one has ended."""

    def progress(self) -> Progress | None:
        """Return what a checkpoint needs for the fit to be resumed, ``None`` if it cannot be."""
        return None


@dataclass(kw_only=True)
class FitOfEpochs(Fit):
    """A fit of ``DistributedTrainer.fit``: its checked arguments, and how far it has come."""

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
    checkpoint: Checkpoint | None = None
    """The checkpoint that the fit resumes from."""

    @property
    def epochs(self) -> range:
        """The epochs of the fit, counted over all fits of the trainer."""
        return range(self.first_epoch, self.first_epoch + self.options.num_epochs)

    def progress(self) -> Progress:
        """Return what a checkpoint needs for the fit to be resumed."""
        return Progress(
            options=self.described,
            sizes=self.data.sizes,
            first_epoch=self.first_epoch,
            reached=self.reached,
            fingerprint=self.data.fingerprint,
        )
