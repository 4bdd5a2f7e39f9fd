"""What the trainer, callbacks and signals act on during a fit: a ``Fit`` and its ``FitRun``."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from compss_train.model import parameters as params
from compss_train.training.callback_list import CallbackList
from compss_train.training.data_source import DataSource
from compss_train.training.description import described
from compss_train.training.merge import Merge
from compss_train.training.snapshot import Progress, Study
from compss_train.training.stopping import Stopping
from compss_train.training.training_state import TrainingState


@dataclass(kw_only=True, eq=False)
class Fit(ABC):
    """What a fit was asked for, and what may stop it."""

    callbacks: CallbackList
    stopping: Stopping
    validation: DataSource | None
    merge: Merge
    """How workers merge, every option set."""
    started: float = field(default_factory=time.time, init=False)
    """Unix time."""

    method: ClassVar[str]
    """The method of the trainer that runs it."""
    saves_studies: ClassVar[bool] = False
    """Whether it resumes from saves, and not from every round."""

    @property
    def remarks(self) -> Sequence[str]:
        """What is worth a line at the start, each a sentence."""
        return ()

    @property
    @abstractmethod
    def asked(self) -> Mapping[str, Any]:
        """The options that determine the parameters, and where samples come from, by name."""

    @cached_property
    def described(self) -> dict[str, Any]:
        """What ``trainer.configuration`` has of the fit; nothing of it holds samples."""
        names = [type(callback).__qualname__ for callback in self.callbacks.all]
        return {
            "method": self.method,
            "started": self.started,
            **{name: described(value) for name, value in self.asked.items()},
            "callbacks": [name for name in names if not name.startswith("_")],
        }

    def example(self) -> DataSource | None:
        """Return a few inputs of the fit, or files; ``None`` if that would be costly."""
        return None

    @property
    def save(self) -> Study | None:
        """The save that belongs to the last record, if any."""
        return None

    @property
    def progress(self) -> Progress | None:
        """What a later fit needs to continue from here, or ``None`` if none can."""
        return None


class FitRun(ABC):
    """What the tasks of a fit have trained so far.

    A model has one from before the first task is submitted until after the last one has ended.
    """

    leaves_processes: ClassVar[bool]
    """Whether other tasks can run meanwhile."""

    @abstractmethod
    def newest(self) -> params.Parameters | None:
        """Return the parameters after the last complete round; ``None`` before the first."""

    @abstractmethod
    def state(self) -> tuple[params.Parameters | None, TrainingState]:
        """Return the same parameters, and the state of the training at that moment."""

    @abstractmethod
    def first_open_round(self) -> int:
        """Return the number of the first round that is not submitted, whose values can be set.

        Raises ``RuntimeError`` for a fit without rounds.
        """

    @abstractmethod
    def averaged(self) -> params.Parameters | None:
        """Return the average of the parameters of the last merges; ``None`` without averaging."""
