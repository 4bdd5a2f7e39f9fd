"""``Merger``: the interface of all ways to merge. A merge works on references; it waits only where it says so."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from compss_train.data.partitioning import Round
from compss_train.engines import Ref
from compss_train.model.parameters import Parameters
from compss_train.training.group_states import States
from compss_train.training.merge import MergeKind
from compss_train.training.task_submission import WorkerGroup
from compss_train.training.training_state import NOTHING_KEPT, MergeState


@dataclass(frozen=True, eq=False, kw_only=True)
class SubmittedRound:
    """A round whose tasks have been submitted."""

    round: Round
    tasks: Sequence[Sequence[int]]
    """The workers that each task trains."""
    measured: list[Ref]
    """References to lists of measurements: of the merge, if it is measured, and of the workers in that order."""
    parameters: Ref
    """The global parameters after the round."""
    states: States
    """The states of each group of workers after the round."""
    merge_state: MergeState = NOTHING_KEPT
    """What merges keep beside the parameters, after the round."""
    merge_measured: bool = False
    """Whether the first measurement is that of a merge."""


class Merger(ABC):
    """Submits the training and merging of rounds, and keeps the reference to the global parameters."""

    name: ClassVar[MergeKind]
    parameters: Ref
    """The global parameters after the last round that was submitted."""
    state: MergeState = NOTHING_KEPT
    """What is kept beside them."""
    rounds_ahead: ClassVar[int] = 1
    """Rounds submitted beyond the one whose measurements are awaited, so that no worker idles."""
    by_rounds: ClassVar[bool] = False
    """Whether the parameters of a round never contain contributions of later rounds."""

    @abstractmethod
    def submit(self, workers: WorkerGroup, round_: Round) -> SubmittedRound:
        """Submit the training and merging of a round."""

    @abstractmethod
    def current(self, submitted: SubmittedRound) -> Parameters:
        """Return the global parameters after a complete round; waits for its merge if necessary."""

    def state_of(self, submitted: SubmittedRound, parameters: Parameters) -> MergeState:
        """Return what is kept beside ``parameters``, which are those after this round."""
        return submitted.merge_state

    @abstractmethod
    def settled(self, submitted: SubmittedRound) -> Parameters:
        """Return the global parameters after a round; no later round was submitted, or later ones do not count."""

    def go_back(self, submitted: SubmittedRound | None) -> None:
        """Discard the rounds submitted after this one; ``None`` stands for the start of the fit.

        The caller passes each discarded round to ``retire`` afterwards.
        """
        return

    @abstractmethod
    def retire(self, submitted: SubmittedRound) -> None:
        """Free the parameters of a round, once those of a later round are available."""

    @abstractmethod
    def close(self) -> None:
        """Free the remaining references after the last round."""

    def stop(self) -> None:
        """End the processes beside the tasks; called at the end of every fit, and before ``close``."""
        return
