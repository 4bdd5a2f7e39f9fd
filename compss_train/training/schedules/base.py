"""``MergeSchedule``: when workers merge, the interface; ``SubmittedRound``: a round on its way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from compss_train.engines import Engine, Ref
from compss_train.model.measurements import Measured
from compss_train.model.parameters import Parameters
from compss_train.model.parts import Cut
from compss_train.training.callback import MergingWorker
from compss_train.training.merge import Merge, MergeKind
from compss_train.training.merged import Merged, Parts
from compss_train.training.schedules.round_workers import RoundWorkers
from compss_train.training.session import Session
from compss_train.worker.state import WorkerState


@dataclass(eq=False, kw_only=True)
class SubmittedRound:
    """A round whose tasks have been submitted."""

    workers: RoundWorkers
    tasks: list[list[int]]
    """The workers that each task trains."""
    measured: dict[str, list[Ref]]
    """References to lists of measurements: of the ``workers``, and of the validation data, by the
    prefixes of their names.
    """
    merged: Merged
    """The global parameters after the round, and what is kept besides them."""
    states: list[WorkerState | Ref]
    """The state of each worker after the round."""
    weights: dict[int, float] | None = None
    """The weights of workers in the merge, by number, if a callback has set them."""
    trained: Mapping[int, Parts] | None = None
    """What the workers bring to a merge that has not been submitted, by their numbers."""
    unmerged: int = 0
    """Number of workers whose merges have not been submitted; until then ``merged`` is old."""

    @property
    def first_task(self) -> int | None:
        """The number of the task that trained worker 0, its first one, if there is one."""
        return next((number for number, workers in enumerate(self.tasks) if workers[0] == 0), None)

    @property
    def refs(self) -> list[Ref]:
        """All references to measurements."""
        return [ref for refs in self.measured.values() for ref in refs]

    def fetch(self, engine: Engine) -> dict[str, list[Measured]]:
        """Return the measurements by the same keys."""
        values = iter(engine.fetch(self.refs, small=True))
        return {
            name: [part for _ in refs for part in next(values)]
            for name, refs in self.measured.items()
        }


class MergeSchedule(ABC):
    """Submits the training and merging of rounds, and keeps references to what is merged."""

    name: ClassVar[MergeKind]
    rounds_ahead: ClassVar[int] = 1
    """Number of rounds submitted beyond the awaited one, so that no worker idles."""
    by_rounds: ClassVar[bool] = False
    """Whether the parameters of a round never contain contributions of later rounds."""
    shares_tasks: ClassVar[bool] = False
    """Whether several workers may train in one task."""

    def __init__(self, session: Session, merge: Merge, initial: Parameters) -> None:
        """Continue from what the merges of the last fit kept; ``merge`` has every option set."""
        self.session = session
        self.weigh: Callable[[Sequence[MergingWorker]], None] | None = None
        """Changes the weights of workers before they merge, if callbacks may."""
        self.engine = session.engine
        self.merge = merge
        self.merged = session.merged(initial, self.cut(initial))
        """The global parameters after the last round that was submitted, and what is kept."""
        self.bases: dict[int, Ref] = {}
        """What each worker starts from, where that is not the global parameters."""

    def cut(self, parameters: Parameters) -> Cut:
        """Return how the parameters are cut into parts that are merged apart: one by default."""
        return Cut.of(parameters, 1, inside=False)

    @abstractmethod
    def submit(self, workers: RoundWorkers) -> SubmittedRound:
        """Submit the training and merging of a round."""

    def wait(
        self, submitted: SubmittedRound, timeout: float, evaluate: Callable[[SubmittedRound], None]
    ) -> bool:
        """Wait for a round at most ``timeout`` seconds; return whether it is complete.

        Calls ``evaluate`` with each round whose last workers are merged meanwhile.
        """
        return self.engine.wait(submitted.refs, timeout)

    def after(self, submitted: SubmittedRound) -> Parameters:
        """Return the global parameters after the last round that counts."""
        return submitted.merged.fetch_parameters(self.engine)

    def newest(self, submitted: SubmittedRound) -> Parameters:
        """Return the global parameters after the last complete round; waits for its merge."""
        return self.after(submitted)

    def stop(self) -> None:
        """End processes other than tasks; called at the end of every fit."""
        return
