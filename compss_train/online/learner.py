"""A model replica that is trained batch by batch and merged through the parameter server."""

import math
from dataclasses import dataclass, replace

from compss_train.exceptions import DivergedError
from compss_train.model import parameters as params
from compss_train.model.measured import Measured
from compss_train.model.metrics import MetricAccumulator
from compss_train.model.parameters import Parameters
from compss_train.model.random_state import RandomState
from compss_train.model.training_spec import TrainingSpec
from compss_train.parameter_server import ParameterServer
from compss_train.worker.batches import Batch
from compss_train.worker.optimizer_stepper import OptimizerStepper
from compss_train.worker.own_buffers import changed_buffers, restore_buffers
from compss_train.worker.preparing import Preparation
from compss_train.worker.server_exchange import Exchange
from compss_train.worker.train import WorkerState, optimizer_of, to_cpu

MAX_SKIPPED = 100
"""Maximum number of consecutive batches that are skipped because loss or gradients are not finite."""


@dataclass(frozen=True)
class ServerShare:
    """One worker's share of the global parameters on the parameter server."""

    exchange: Exchange
    server: ParameterServer
    worker: int
    share: float
    """Weight of this worker's changes; the weights of all workers add up to 1."""

    def push_change(self, base: Parameters, trained: Parameters) -> None:
        """Push the difference between the trained parameters and their base."""
        self.exchange.push_change(self.server, self.worker, base, trained, self.share)

    def pull(self) -> Parameters:
        """Return the global parameters."""
        return self.exchange.pull(self.server)


class OnlineLearner:
    """Trains a replica that starts from the global parameters."""

    def __init__(
        self,
        training_spec: TrainingSpec,
        server_share: ServerShare,
        initial: WorkerState,
        device: str,
        seed: int,
    ) -> None:
        self._server_share, self._device, self._initial_net = server_share, device, training_spec.net
        self._base = server_share.pull()
        self._replica = training_spec.replica(self._base, device, training=True)
        restore_buffers(self._replica.training_spec.net, initial.buffers, device)
        self.preparation = Preparation(self._replica, seed)
        """Transforms batches before they are trained."""
        self._optimizer = optimizer_of(self._replica, initial.optimizer)
        self._stepper = OptimizerStepper(self._replica, self._optimizer, check_outputs=True, scaler=initial.scaler)
        self._accumulator = MetricAccumulator(training_spec.measures)
        self._skipped = 0  # consecutive batches
        self._merged = True

    def learn(self, batch: Batch) -> None:
        """Train on one batch, prepared already."""
        with self._replica.annotate_errors(batch.x, batch.y, own_target=batch.y is None):
            learnt = self._stepper.learn(batch, self._accumulator)
        self._skipped = self._skipped + 1 if learnt is None else 0
        if self._skipped == MAX_SKIPPED:
            raise DivergedError(
                f"loss or gradients were NaN or infinite in {MAX_SKIPPED} consecutive batches; lower the "
                "learning rate, or check the samples of the simulations"
            )
        self._merged = False

    def merge(self) -> None:
        """Push the weighted change since the last merge, and continue from the global parameters."""
        if self._merged:
            return
        self._stepper.finish()
        net = self._replica.training_spec.net
        trained = params.from_module(net)
        if self._replica.training_spec.gradients.on_nan != "ignore":
            self._check_finite(trained)
        self._server_share.push_change(self._base, trained)
        self._base = self._server_share.pull()
        params.load_into(net, self._base)
        self._merged = True

    def _check_finite(self, trained: Parameters) -> None:
        """Raise ``DivergedError`` before NaN reaches the global parameters."""
        loss = self._accumulator.loss
        infinite = params.first_not_finite(trained)
        if infinite is not None or not math.isfinite(loss):
            what = "the loss" if infinite is None else f"parameter {infinite!r}"
            raise DivergedError(
                f"{what} became NaN or infinite; lower the learning rate, or check the samples of the simulations "
                "for NaN and extreme values"
            )

    def pop_measured(self) -> Measured:
        """Return what was measured since the last call, and begin anew."""
        accumulator, self._accumulator = self._accumulator, MetricAccumulator(self._replica.training_spec.measures)
        warnings, self._stepper.warnings = self._stepper.warnings, {}
        return replace(accumulator.measured(), **warnings)

    def state(self) -> WorkerState:
        """Return the state of the optimizer and of the random number generators, and the worker's own buffers."""
        own = changed_buffers(self._replica.training_spec.net, self._initial_net)
        optimizer = to_cpu(self._optimizer.state_dict())
        scaler = self._stepper.scaler.state_dict() or None
        return WorkerState(optimizer, RandomState.capture(self._device), buffers=own, scaler=scaler)
