"""Merging: how the parameters of the workers become global parameters. Independent of the engine.

Synchronous merging averages the workers' parameters, weighted by the samples of each in the round, as in local SGD
(Stich 2019) and federated averaging (McMahan et al. 2017). Commutative merging adds each worker's weighted change
to the global parameters on arrival, so that no worker waits for another. Merging through a parameter server does
so layer by layer, without the engine.

``Merger`` is the interface of all kinds. It works on references, and waits only where it says so. ``agreement``
estimates the gradient noise from the workers' changes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from compss_train.data.partitioning import Round
from compss_train.engines import Engine, Ref
from compss_train.model.metrics import Measured
from compss_train.model.parameters import Parameters
from compss_train.training.merge import Merge, MergeKind
from compss_train.training.training_state import NOTHING_KEPT, MergeState
from compss_train.training.workers import Workers
from compss_train.training.workplace import Session
from compss_train.worker.state import GroupState


@dataclass(eq=False, kw_only=True)
class SubmittedRound:
    """A round whose tasks have been submitted."""

    round: Round
    tasks: list[list[int]]
    """The workers that each task trains."""
    measured: dict[str, list[Ref]]
    """References to lists of measurements: of the ``workers``, preceded by the merge's if that is measured; and of
    the validation data, by the prefixes of their names."""
    parameters: Ref
    """The global parameters after the round."""
    states: list[GroupState | Ref]
    """The states of each group of workers after the round."""
    merge_state: MergeState = NOTHING_KEPT
    """What merges keep besides the parameters, after the round."""
    merge_measured: bool = False
    """Whether the first measurement is the merge's."""
    unmerged: int = 0
    """Number of workers whose merges have not been submitted; until then ``parameters`` are older ones."""

    @property
    def refs(self) -> list[Ref]:
        """All references to measurements."""
        return [ref for refs in self.measured.values() for ref in refs]

    def fetch(self, engine: Engine) -> dict[str, list[Measured]]:
        """Return the measurements by the same keys, the merge's under ``"merge"``."""
        values = iter(engine.fetch(self.refs, small=True))
        lists = {name: [*chain.from_iterable(next(values) for _ in refs)] for name, refs in self.measured.items()}
        merges = int(self.merge_measured)
        return {**lists, "merge": lists["workers"][:merges], "workers": lists["workers"][merges:]}


class Merger(ABC):
    """Submits the training and merging of rounds, and keeps the reference to the global parameters."""

    name: ClassVar[MergeKind]
    rounds_ahead: ClassVar[int] = 1
    """Number of rounds submitted beyond the awaited one, so that no worker idles."""
    by_rounds: ClassVar[bool] = False
    """Whether the parameters of a round never contain contributions of later rounds."""

    def __init__(self, session: Session, merge: Merge, initial: Parameters) -> None:
        """Continue from what the merges of the last fit kept; ``merge`` is filled."""
        self.engine = session.engine
        self.parameters = self.engine.publish(initial)
        """The global parameters after the last round that was submitted."""
        self.state = session.merge_state.published(self.engine)
        """What is kept besides the parameters."""
        self.bases: dict[int, Ref] = {}
        """What each worker starts from, where that is not the global parameters."""

    @abstractmethod
    def train_and_merge(self, workers: Workers) -> SubmittedRound:
        """Submit the training and merging of the round that has been set for the workers."""

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


def agreement(changes: Sequence[Measured], merged: Measured) -> dict[str, float]:
    """Return the record fields ``worker_agreement`` and ``noise_scale`` of a round that several workers trained.

    ``changes`` are the workers' measurements, with the squared norm of each worker's ``change`` and the samples
    ``given``; ``merged`` has the squared norm of the mean change. ``worker_agreement`` is the norm of the mean
    divided by the root mean square of the norms: the cosine between the changes and their mean if all are equally
    long. It is 1 if all workers agree, and about 1 / √workers if their changes are pure noise. ``noise_scale`` is
    the number of samples at which the noise of a mean gradient is as large as the gradient, estimated from the
    norms of the changes of one worker and of all (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1), as if a
    change were a gradient over the worker's samples; it is left out if the estimate is not positive. Workers
    without samples do not count, and fewer than two workers give no fields.
    """
    trained = [(each.given, each.change) for each in changes if each.given]
    if len(trained) < 2:
        return {}
    total = sum(count for count, _ in trained)
    single = sum(count * change for count, change in trained) / total
    if not (single > 0 and math.isfinite(single)):
        return {}
    mean, few = merged.change, total / len(trained)
    found = {"worker_agreement": math.sqrt(mean / single)}
    signal = (total * mean - few * single) / (total - few)
    noise = (single - mean) / (1 / few - 1 / total)
    return {**found, "noise_scale": noise / signal} if signal > 0 and noise > 0 else found
