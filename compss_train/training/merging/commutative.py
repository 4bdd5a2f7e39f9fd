"""Commutative merging: each worker's change is added to the global parameters on arrival.

Additions commute, so that the order of arrival changes rounding only. With an outer optimizer this also holds for
the steps that the workers' changes make at once. Momentum is applied after as many arrivals as there are workers
(``model/delayed_nesterov.py``): which changes it then contains, and which workers start from the parameters that it
has moved, depends on the order of arrival where some workers are ahead of others.
"""

import copy
from collections.abc import Collection

from compss_train.data.partitioning import Round
from compss_train.engines import Engine, Ref
from compss_train.model import parameters as params
from compss_train.model.delayed_nesterov import DelayedNesterov, step_on_arrival
from compss_train.model.parameters import Parameters
from compss_train.training.merge import Rule
from compss_train.training.merging.base import Merger, SubmittedRound
from compss_train.training.training_state import NOTHING_KEPT, MergeState
from compss_train.training.worker_group import WorkerGroup

ROUNDS_AHEAD = 8
"""The most rounds by which the fastest worker may be ahead of the slowest before submission pauses."""


class CommutativeMerger(Merger):
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
        optimizer: DelayedNesterov | None = None,
        state: MergeState = NOTHING_KEPT,
    ) -> None:
        self.engine = engine
        self._buffers = frozenset(buffers)
        self._rule = rule
        self._optimizer = optimizer
        self.state = state
        self._moments = state.moments
        self._initial = engine.publish(initial)
        self._bases = [self._initial] * num_workers
        saved = None if optimizer is None else state.fetched(engine).outer
        self.parameters = engine.publish(initial if optimizer is None else optimizer.starting(initial, saved))

    def submit(self, workers: WorkerGroup, round_: Round) -> SubmittedRound:
        """Train each worker from its own base, then update the global parameters."""
        counts = round_.counts
        total, active = sum(counts), len(counts) - counts.count(0)
        measured: dict[int, Ref] = {}
        for worker, count in enumerate(counts):
            if count:
                trained, sums = workers.train_alone(worker, round_, self._bases[worker], self._moments)
                measured[worker] = sums
                self._update(worker, trained, sums if workers.data.may_skip else count, total, active)
        self._moments = None  # from now on workers have their own
        return SubmittedRound(
            round=round_,
            tasks=[[worker] for worker in measured],
            measured=[*measured.values()],
            parameters=self.parameters,
            states=tuple(workers.states),
        )

    def _update(self, worker: int, trained: Ref, count: int | Ref, total: int, active: int) -> None:
        """Merge what a worker trained on ``count`` of the ``total`` samples of all ``active`` workers."""
        base = self._bases[worker]
        if self._rule == "halving":
            self._bases[worker] = self.engine.commute(self.parameters, params.halve, trained)
        elif self._optimizer is not None:
            merged = base, trained, count, total, active, self._buffers
            self._bases[worker] = self.engine.commute(self.parameters, step_on_arrival, self._optimizer, *merged)
        else:
            self._bases[worker] = self.engine.commute(
                self.parameters, params.apply_delta, base, trained, count, total, self._buffers
            )
        self.engine.delete([trained] if base is self._initial else [trained, base])

    def current(self, submitted: SubmittedRound) -> Parameters:
        """Return the newest value, later contributions included: waiting would delay the other workers."""
        newest: Parameters | None = self.engine.peek(self.parameters)
        return self.engine.fetch([self.parameters])[0] if newest is None else newest

    def state_of(self, submitted: SubmittedRound, parameters: Parameters) -> MergeState:
        """Return the state of the outer optimizer, which the parameters carry."""
        outer = getattr(parameters, "outer", None)
        return NOTHING_KEPT if outer is None else MergeState(outer=copy.deepcopy(outer))  # the engine's memory

    def retire(self, submitted: SubmittedRound) -> None:
        """Do nothing: all rounds share one value."""

    def close(self) -> None:
        """Free the global parameters and the bases of the workers."""
        self.engine.delete([*{self.parameters, self._initial, *self._bases}])
