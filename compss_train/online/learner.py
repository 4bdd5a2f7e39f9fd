"""A model copy that learns batch by batch and is merged with others through the parameter server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from compss_train.exceptions import DivergedError
from compss_train.model import parameters as params
from compss_train.model.parameters import Parameters
from compss_train.model.random_state import RandomState
from compss_train.model.training_spec import TrainingSpec
from compss_train.parameter_server import ParameterServer
from compss_train.training.worker.batches import Batch
from compss_train.training.worker.metric_accumulator import MetricAccumulator, annotate_errors
from compss_train.training.worker.optimizer_stepper import OptimizerStepper
from compss_train.training.worker.server_exchange import Exchange
from compss_train.training.worker.train import WorkerState, optimizer_of, to_cpu

MOST_SKIPPED = 100
"""Batches in a row that may be skipped because they are not finite."""


@dataclass(frozen=True)
class ServerShare:
    """One worker's part in the global parameters."""

    exchange: Exchange
    server: ParameterServer
    worker: int
    share: float
    """How much it counts, of 1 for all workers together."""

    def push_change(self, base: Parameters, trained: Parameters) -> None:
        """Push what the worker made of its base."""
        self.exchange.push_change(self.server, self.worker, base, trained, self.share)

    def pull(self) -> Parameters:
        """Return the global parameters."""
        return self.exchange.pull(self.server)


class OnlineLearner:
    """Begins with the global parameters."""

    def __init__(
        self, training_spec: TrainingSpec, vote: ServerShare, optimizer: dict[str, Any] | None, device: str
    ) -> None:
        self._vote, self._device = vote, device
        self._base = vote.pull()
        self._replica = training_spec.replica(self._base, device, training=True)
        self._optimizer = optimizer_of(self._replica, optimizer)
        self._stepper = OptimizerStepper(self._replica, self._optimizer)
        self._tally = MetricAccumulator(training_spec.measures)
        self._skipped = 0  # batches, one after the other
        self._merged = True

    def learn(self, batch: Batch) -> None:
        """Train on one batch."""
        with annotate_errors(batch.x, self._replica, batch.y, own_target=batch.y is None):
            learnt = self._stepper.learn(batch, self._tally)
        self._skipped = 0 if learnt else self._skipped + 1
        if self._skipped == MOST_SKIPPED:
            raise DivergedError(
                f"loss or gradients were NaN or infinite in {MOST_SKIPPED} batches one after the other; lower the "
                "learning rate, or check what the simulations give"
            )
        self._merged = False

    def merge(self) -> None:
        """Add the share of what was learnt since the last merge to the global parameters, and go on from those."""
        if self._merged:
            return
        self._stepper.finish()
        net = self._replica.training_spec.net
        trained = params.from_module(net)
        if self._replica.training_spec.step_options.on_nan != "ignore":
            self._check_finite(trained)
        self._vote.push_change(self._base, trained)
        self._base = self._vote.pull()
        params.load_into(net, self._base)
        self._merged = True

    def _check_finite(self, trained: Parameters) -> None:
        """Raise before anything of it reaches the global parameters."""
        loss = self._tally.loss
        infinite = params.first_not_finite(trained)
        if infinite is not None or not math.isfinite(loss):
            what = "the loss" if infinite is None else f"parameter {infinite!r}"
            raise DivergedError(
                f"{what} became NaN or infinite; lower the learning rate, or check what the simulations give for "
                "NaN and for values that are far too large"
            )

    def measured(self) -> dict[str, Any]:
        """Return what the tally has summed up since this was last asked."""
        accumulator, self._tally = self._tally, MetricAccumulator(self._replica.training_spec.measures)
        return accumulator.sums()

    def state(self) -> WorkerState:
        """Return the state of the optimizer and of the random numbers."""
        return WorkerState(to_cpu(self._optimizer.state_dict()), RandomState.now(self._device))
