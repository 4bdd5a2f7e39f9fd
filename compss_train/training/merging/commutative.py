"""Commutative merging: each worker's change is added to the global parameters on arrival.

Additions commute, so that the order of arrival changes rounding only. With an outer optimizer this also holds for
the steps that the workers' changes make at once. Momentum is applied after as many arrivals as there are workers
(``model/delayed_nesterov.py``): which changes it then contains, and which workers start from the parameters that it
has moved, depends on the order of arrival where some workers are ahead of others.
"""

import copy
from collections.abc import Collection
from typing import Any

from compss_train.engines import Engine, Ref
from compss_train.model import parameters as params
from compss_train.model.delayed_nesterov import DelayedNesterov, step_on_arrival
from compss_train.model.parameters import Parameters
from compss_train.training.merge import Rule
from compss_train.training.merging.base import ArrivalMerger, SubmittedRound
from compss_train.training.training_state import NOTHING_KEPT, MergeState
from compss_train.training.worker_group import WorkerGroup


class CommutativeMerger(ArrivalMerger):
    """Every worker adds its change to the global parameters and continues from the result."""

    name = "commutative"

    def __init__(
        self,
        engine: Engine,
        initial: Parameters,
        state: MergeState,
        *,
        rule: Rule,
        buffers: Collection[str],
        optimizer: DelayedNesterov | None,
    ) -> None:
        super().__init__(engine, initial, state)
        self._rule, self._optimizer, self._buffers = rule, optimizer, frozenset(buffers)
        saved = None if optimizer is None else state.fetched(engine).outer
        self.parameters = engine.publish(initial if optimizer is None else optimizer.starting(initial, saved))

    def _train(self, workers: WorkerGroup, worker: int, base: Ref, total: int, active: int) -> Ref:
        trained, measured = workers.train_alone(worker, base, self._moments)
        count = measured if workers.data.source.may_skip else workers.round.counts[worker]
        update: tuple[Any, ...] = params.apply_delta, base, trained, count, total, self._buffers
        if self._rule == "halving":
            update = params.halve, trained
        elif self._optimizer is not None:
            update = step_on_arrival, self._optimizer, base, trained, count, total, active, self._buffers
        self._bases[worker] = self.engine.commute(self.parameters, *update)
        self._free([trained, base])
        return measured

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
        self.engine.delete([*{self.parameters, self._initial, *self._bases.values()}])
