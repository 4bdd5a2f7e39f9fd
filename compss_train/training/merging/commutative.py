"""Commutative merging: each worker's change is added to the global parameters on arrival."""

from collections.abc import Collection

from compss_train.data.partitioning import Round
from compss_train.engines import Engine, Ref
from compss_train.model import parameters as params
from compss_train.model.parameters import Parameters
from compss_train.training.fit_options import Rule
from compss_train.training.merging.base import Merge, SubmittedRound
from compss_train.training.task_submission import WorkerGroup

ROUNDS_AHEAD = 8
"""The most rounds by which the fastest worker may be ahead of the slowest before submission pauses."""


class CommutativeMerge(Merge):
    """Every worker adds its change to the global parameters and continues from the result."""

    name = "commutative"
    rounds_ahead = ROUNDS_AHEAD

    def __init__(
        self,
        engine: Engine,
        initial: Parameters,
        num_workers: int,
        *,
        rule: Rule = "weighted",
        buffers: Collection[str] = (),
    ) -> None:
        self._engine = engine
        self._buffers = frozenset(buffers)
        self._rule = rule
        self._initial = engine.publish(initial)
        self._bases = [self._initial] * num_workers
        self.parameters = engine.publish(initial)

    def submit(self, workers: WorkerGroup, round_: Round) -> SubmittedRound:
        """Train each worker from its own base, then update the global parameters."""
        counts = round_.counts
        measured = {}
        for worker, count in enumerate(counts):
            if count:
                trained, measured[worker] = workers.train(worker, round_, self._bases[worker])
                self._update(worker, trained, measured[worker] if workers.data.may_skip else count, sum(counts))
        return SubmittedRound(
            round=round_, measured=measured, parameters=self.parameters, states=tuple(workers.states)
        )

    def _update(self, worker: int, trained: Ref, count: int | Ref, total: int) -> None:
        base = self._bases[worker]
        if self._rule == "halving":
            self._bases[worker] = self._engine.commute(self.parameters, params.halve, trained)
        else:
            self._bases[worker] = self._engine.commute(
                self.parameters, params.apply_delta, base, trained, count, total, self._buffers
            )
        self._engine.delete([trained] if base is self._initial else [trained, base])

    def current(self, submitted: SubmittedRound) -> Parameters:
        """Return the newest value, later contributions included: waiting would delay the other workers."""
        newest: Parameters | None = self._engine.peek(self.parameters)
        return self._engine.fetch([self.parameters])[0] if newest is None else newest

    def settled(self, submitted: SubmittedRound) -> Parameters:
        """Wait for everything that was submitted, and return the value."""
        value: Parameters = self._engine.fetch([self.parameters])[0]
        return value

    def retire(self, submitted: SubmittedRound) -> None:
        """Do nothing: all rounds share one value."""

    def close(self) -> None:
        """Free the global parameters and the bases of the workers."""
        self._engine.delete([*{self.parameters, self._initial, *self._bases}])
