"""``TrainerProtocol``: what callbacks may use of the trainer that calls them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import nn

from compss_train.model.parameters import Parameters
from compss_train.reports.history import History
from compss_train.training.snapshot import Snapshot


class TrainerProtocol(Protocol):
    """What the callbacks of this package use of a ``DistributedTrainer``, which documents it."""

    @property
    def num_workers(self) -> int:
        """Number of workers."""

    @property
    def seed(self) -> int:
        """The seed of all random numbers."""

    @property
    def configuration(self) -> dict[str, Any]:
        """The arguments of the trainer, ``build`` and the fit."""

    @property
    def history(self) -> History:
        """A dict for each round of all fits since ``build``."""

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the loss and the metrics in every record."""

    @property
    def whole_measures(self) -> tuple[str, ...]:
        """The names of the metrics of whole validation sets."""

    @property
    def measures_in_steps(self) -> bool:
        """Whether a training step may add measures of its own."""

    @property
    def remarks(self) -> Sequence[str]:
        """What is worth a line at the start of the fit."""

    @property
    def resumed_from(self) -> Path | None:
        """The checkpoint that the fit was resumed from."""

    @property
    def stopped(self) -> str | None:
        """Why the fit ended early, or ``None``."""

    @property
    def state_id(self) -> object:
        """What tells apart the states of ``snapshot``; ``None`` where there is none."""

    def stop(self, reason: str) -> None:
        """End the fit after the current round."""

    def trained_samples(self) -> int | None:
        """Return how many samples the workers have reported; ``None`` if unknown."""

    def get_parameters(self, *, averaged: bool = False) -> Parameters:
        """Return a copy of the global parameters, or of their average."""

    def set_parameters(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Replace the global parameters."""

    def model(self, *, averaged: bool = False) -> nn.Module:
        """Return a new copy of the network with the global parameters."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the global parameters to a file."""

    def snapshot(self) -> Snapshot:
        """Return the state to resume from."""

    def checkpoint_bytes(self) -> int:
        """Return about how many bytes a checkpoint takes."""
