"""Merging each worker by itself, on arrival, in the engine: ``Merge("commutative", quorum=0)``.

Additions commute, so that the order of arrival changes rounding only.
"""

from abc import abstractmethod

from compss_train.engines import Ref
from compss_train.engines.mapping import MappedChunk
from compss_train.model import parameters as params
from compss_train.training.merge import Merge
from compss_train.training.merged import Merged, Parts
from compss_train.training.schedules.base import MergeSchedule, SubmittedRound
from compss_train.training.schedules.round_workers import RoundWorkers
from compss_train.training.session import Session
from compss_train.worker.merging.on_arrival import add_change, halve_with, only_worker
from compss_train.worker.train import training


class ArrivalSchedule(MergeSchedule):
    """Each worker trains from its own base parameters, and merges when it arrives."""

    rounds_ahead = 8
    """Maximum number of rounds that the fastest worker may be ahead of the slowest."""

    def __init__(self, session: Session, merge: Merge, initial: params.Parameters) -> None:
        super().__init__(session, merge, initial)
        (self._initial,) = self.merged.parameters
        self._moments: Parts | None = self.merged.moments

    def submit(self, workers: RoundWorkers) -> SubmittedRound:
        """Train each worker from its own base, and merge it."""
        counts = workers.round.counts
        active = [worker for worker, count in enumerate(counts) if count]
        mapped = [
            self._train(workers, worker, self.bases.get(worker, self._initial), sum(counts))
            for worker in active
        ]
        # Workers have their own moments from now on, and such merges keep nothing of those before.
        self._moments = None
        self.merged = Merged(cut=self.merged.cut, parameters=self.merged.parameters)
        return SubmittedRound(
            workers=workers,
            tasks=[[worker] for worker in active],
            measured={"workers": [of_worker.reports for of_worker in mapped]},
            merged=self.merged,
            states=[*self.session.states],
        )

    @abstractmethod
    def _train(self, workers: RoundWorkers, worker: int, base: Ref, total: int) -> MappedChunk:
        """Train one of the workers, which have ``total`` samples in all, and set its next base."""


class CommutativeSchedule(ArrivalSchedule):
    """Every worker adds its change to the global parameters and continues from the result."""

    name = "commutative"

    def __init__(self, session: Session, merge: Merge, initial: params.Parameters) -> None:
        super().__init__(session, merge, initial)
        # Updates change the value, and workers begin from the first one.
        self.merged = self.merged.with_parameters(self.engine, initial)

    def _train(self, workers: RoundWorkers, worker: int, base: Ref, total: int) -> MappedChunk:
        chunk = range(worker, worker + 1)
        start = [[base], None if self._moments is None else [*self._moments]]
        (mapped,) = workers.train([chunk], training, start, combine=only_worker)
        (current,) = self.merged.parameters
        (trained,) = mapped.results
        if self.merge.rule == "halving":
            self.bases[worker] = self.engine.commute(current, halve_with, trained)
        else:
            buffers = self.session.names.buffers
            self.bases[worker] = self.engine.commute(
                current, add_change, base, trained, total, buffers
            )
        return mapped

    def newest(self, submitted: SubmittedRound) -> params.Parameters:
        """Return the newest value, with later changes: waiting would delay the other workers."""
        (current,) = self.merged.parameters
        value: params.Parameters | None = self.engine.peek(current)
        return submitted.merged.fetch_parameters(self.engine) if value is None else value
