"""Merging: how the parameters of the workers become global parameters. Independent of the engine.

Synchronous merging averages the workers' parameters, weighted by the samples of each in the round, as in local SGD
(Stich 2019) and federated averaging (McMahan et al. 2017). Commutative merging does so with the workers that have
arrived, and adds the changes of late ones to later merges; without a quorum it adds each worker's weighted change
on arrival. Merging through a parameter server does that layer by layer, without the engine.

``Merger`` is the interface of all kinds. It works on references, and waits only where it says so.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from compss_train.data.partitioning import Round
from compss_train.engines import Engine, Ref
from compss_train.model.metrics import Measured
from compss_train.model.parameters import Parameters
from compss_train.training.merge import Merge, MergeKind
from compss_train.training.session import Session
from compss_train.training.training_state import NOTHING_KEPT, MergeState
from compss_train.training.workers import RoundWorkers
from compss_train.worker.state import GroupState


@dataclass(eq=False, kw_only=True)
class SubmittedRound:
    """A round whose tasks have been submitted."""

    round: Round
    tasks: list[list[int]]
    """The workers that each task trains."""
    measured: dict[str, list[Ref]]
    """References to lists of measurements: of the ``workers``, and of the validation data, by the prefixes of their
    names."""
    parameters: Ref
    """The global parameters after the round."""
    states: list[GroupState | Ref]
    """The states of each group of workers after the round."""
    merge_state: MergeState = NOTHING_KEPT
    """What merges keep besides the parameters, after the round."""
    unmerged: int = 0
    """Number of workers whose merges have not been submitted; until then ``parameters`` are older ones."""

    @property
    def refs(self) -> list[Ref]:
        """All references to measurements."""
        return [ref for refs in self.measured.values() for ref in refs]

    def fetch(self, engine: Engine) -> dict[str, list[Measured]]:
        """Return the measurements by the same keys."""
        values = iter(engine.fetch(self.refs, small=True))
        return {name: [part for _ in refs for part in next(values)] for name, refs in self.measured.items()}


class Merger(ABC):
    """Submits the training and merging of rounds, and keeps the reference to the global parameters."""

    name: ClassVar[MergeKind]
    rounds_ahead: ClassVar[int] = 1
    """Number of rounds submitted beyond the awaited one, so that no worker idles."""
    by_rounds: ClassVar[bool] = False
    """Whether the parameters of a round never contain contributions of later rounds."""

    def __init__(self, session: Session, merge: Merge, initial: Parameters) -> None:
        """Continue from what the merges of the last fit kept; ``merge`` is filled."""
        self.session, self.engine = session, session.engine
        self.parameters = self.engine.publish(initial)
        """The global parameters after the last round that was submitted."""
        self.state = session.merge_state.published(self.engine)
        """What is kept besides the parameters."""
        self.bases: dict[int, Ref] = {}
        """What each worker starts from, where that is not the global parameters."""

    @abstractmethod
    def train_and_merge(self, workers: RoundWorkers) -> SubmittedRound:
        """Submit the training and merging of a round."""

    def wait(self, submitted: SubmittedRound, timeout: float, evaluate: Callable[[SubmittedRound], None]) -> bool:
        """Wait for a round at most ``timeout`` seconds; return whether it is complete, with its measurements.

        Calls ``evaluate`` with each round whose last workers are merged meanwhile.
        """
        return self.engine.wait(submitted.refs, timeout)

    def settled(self, submitted: SubmittedRound) -> Parameters:
        """Return the global parameters after a round; no later round was submitted, or later rounds are ignored."""
        value: Parameters = self.engine.fetch([submitted.parameters])[0]
        return value

    def current(self, submitted: SubmittedRound) -> Parameters:
        """Return the global parameters after a complete round; waits for its merge if necessary."""
        return self.settled(submitted)

    def stop(self) -> None:
        """End processes other than tasks; called at the end of every fit."""
        return
