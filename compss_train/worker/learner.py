"""``Learner``: a worker's copy of the model with its training, from and to a ``WorkerState``."""

import math
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from compss_train.engines import liveness
from compss_train.exceptions import DivergedError
from compss_train.model import devices, metrics, schedule
from compss_train.model import parameters as params
from compss_train.model.optimizers import make_optimizer
from compss_train.model.training_spec import ModelReplica, TrainingSpec
from compss_train.worker.batches import Batch, PlacedBatch, batches_in_epoch
from compss_train.worker.callbacks import CallbackRunner, WorkerContext
from compss_train.worker.optimizer_stepper import OptimizerStepper
from compss_train.worker.preparing import prepared
from compss_train.worker.state import (
    WorkerState,
    changed_buffers,
    load_moments,
    on_host,
    restore_buffers,
    with_tensors,
)
from compss_train.worker.work import Work

LEAST_SCALE = 1e-4
"""Minimum loss scale of fp16: gradients that overflow even then are NaN, or have diverged."""


MOST_BATCHES = 100
"""Maximum number of batches in a trace, from the start of a round: each adds up to a megabyte."""


class Tracer:
    """Context manager that traces the first batches of a task with ``torch.profiler`` if ``wanted``."""

    def __init__(self, device: str, *, wanted: bool) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        kind = torch.device(device).type.upper()  # CUDA, XPU; there is none for MPS
        activities += [getattr(torch.profiler.ProfilerActivity, kind)] if kind in ("CUDA", "XPU") else []
        self._profiler = torch.profiler.profile(activities=activities, record_shapes=True) if wanted else None
        self._left = MOST_BATCHES

    def __enter__(self) -> None:
        if self._profiler is not None:
            self._profiler.start()

    def __exit__(self, *error: object) -> None:
        if self._profiler is not None and self._left >= 0:
            self._profiler.stop()

    def batch(self, number: int) -> AbstractContextManager[object]:
        """Return the context of a batch, which labels it with its number in the trace."""
        if self._profiler is None or self._left < 0:
            return nullcontext()
        self._left -= 1
        if self._left < 0:
            self._profiler.stop()
            return nullcontext()
        return torch.profiler.record_function(f"batch {number}")

    def trace(self) -> bytes | None:
        """Return the finished trace as compressed JSON, or ``None`` if it was not ``wanted``."""
        if self._profiler is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json.gz")
            self._profiler.export_chrome_trace(str(path))
            return path.read_bytes()


class Learner:
    """A worker's copy of the model, which it trains batch by batch.

    ``fit`` and ``fit_online`` share it; they differ only in where batches come from and where results go.

    Parameters
    ----------
    training_spec:
        The network and how it is trained; not modified.
    parameters:
        The global parameters that the copy starts from.
    state:
        The worker's state after its last task.
    work:
        What the worker does: its number, device, callbacks, hyperparameters.
    moments:
        The optimizer state for a worker that has none.
    """

    def __init__(
        self,
        training_spec: TrainingSpec,
        parameters: params.Parameters,
        state: WorkerState,
        work: Work,
        moments: params.Parameters | None = None,
    ) -> None:
        self._spec, self._work = training_spec, work
        self.replica = training_spec.replica(parameters, work.device, training=True)
        self.net = self.replica.training_spec.net
        restore_buffers(self.net, state.buffers, work.device)
        reset = work.step.optimizer_state == "reset"
        self.optimizer = optimizer_of(self.replica, None if reset else state.optimizer)
        if moments and not reset and state.optimizer is None:
            load_moments(self.optimizer, moments)
        self._accumulator = metrics.MetricAccumulator(self.replica.training_spec.measures)
        self.stepper = OptimizerStepper(
            self.replica,
            self.optimizer,
            check_outputs=work.step.check_outputs,
            batches=state.batches,
            scaler=state.scaler,
        )
        context = WorkerContext(worker=work.worker, round=work.step.round, model=self.net, optimizer=self.optimizer)
        self._callbacks = CallbackRunner(work.step.callbacks, context, self._accumulator, state.callbacks)
        self._tracer = Tracer(work.device, wanted=work.worker in work.step.traced)
        self.skipped = 0
        """Number of batches skipped since the last training step."""

    def train(self, placed: Iterator[PlacedBatch]) -> int:
        """Train on batches, and return the number of their samples.

        The next batch is taken after the step on the previous one. Accumulated gradients are applied at the end of
        each epoch.
        """
        drawn = 0
        self._callbacks.round_start()
        with self._tracer:
            for epoch, epoch_batches in groupby(self.prepared(placed), lambda each: each[0].epoch):
                drawn += self._train_epoch(epoch, epoch_batches)
        self._callbacks.round_end()
        return drawn

    def prepared(self, placed: Iterator[PlacedBatch]) -> Iterator[PlacedBatch]:
        """Iterate over batches prepared for the training step."""
        reading = self._work.reading
        return prepared(placed, self.replica, reading.seed, ragged=reading.structure.ragged)

    def _train_epoch(self, epoch: int, batches: Iterator[PlacedBatch]) -> int:
        drawn = 0
        anew = self._work.step.optimizer_state == "reset_blocks"
        timed = (self._work.hyperparameters or {}).get(epoch, ())  # by a learning-rate schedule
        planned = batches_in_epoch(self._work, epoch) if len(timed) > 1 else 0
        changes = {math.ceil(begin * planned): hyperparameters for begin, hyperparameters in timed}
        current: schedule.Hyperparameters | None = None
        for number, (place, batch) in enumerate(batches):
            current = changes.get(number, current)
            if anew and place.position == 0:
                self._renew_optimizer(current)
            elif number in changes:
                self.stepper.set_hyperparameters(changes[number])
            with self._tracer.batch(self.stepper.batches):
                samples = self.learn(batch, epoch)
            drawn += samples
            liveness.beat(samples)
        self.stepper.finish()
        return drawn

    def _renew_optimizer(self, hyperparameters: schedule.Hyperparameters | None) -> None:
        """Train the next block with a new optimizer, as dislib does; accumulated gradients are applied before."""
        self.stepper.finish()
        self.optimizer = optimizer_of(self.replica, None)
        self.stepper.optimizer = self._callbacks.context.optimizer = self.optimizer
        if hyperparameters is not None:
            self.stepper.set_hyperparameters(hyperparameters)

    def learn(self, batch: Batch, epoch: int) -> int:
        """Train on a prepared batch, and return the number of its samples."""
        samples = batch.samples
        self._callbacks.batch_start(batch.x, batch.y, samples, epoch=epoch, number=self.stepper.batches)
        try:
            with self.replica.annotate_errors(batch.x, batch.y, own_target=batch.y is None):
                result = self.stepper.learn(batch, self._accumulator, epoch)
        except torch.OutOfMemoryError as error:
            error.add_note(
                f"{self._work.device} has too little memory for batches of {samples} samples in {self._work.name}: "
                "choose a smaller batch_size (Gradients(accumulate=...) keeps the size of the steps), "
                "precision='bf16', or fewer workers on a GPU."
            )
            raise
        self.skipped = 0 if result is not None else self.skipped + 1
        self._callbacks.batch_end(samples, result)
        return samples

    def finish(self, measured: metrics.Measured | None = None) -> params.Parameters:
        """Apply the gradients that are still accumulated, and return the parameters.

        Raises ``DivergedError`` in the task rather than in the coordinator, so that NaN is never merged.
        ``measured`` has the measurements since the last merge, if they have already been taken.
        """
        self.stepper.finish()
        trained, name = params.from_module(self.net), self._work.name
        if self._spec.gradients.on_nan != "ignore":
            sums = self._accumulator if measured is None else measured
            if not math.isfinite(sums.loss):
                raise DivergedError(
                    f"the loss became {sums.loss / sums.samples} in {name}; lower the learning rate, or check the "
                    "data for NaN and for values that are far too large"
                )
            if (bad := params.first_not_finite(trained)) is not None:  # by the last step, which no loss follows
                raise DivergedError(f"parameter {bad!r} became NaN or infinite in {name}; lower the learning rate")
        scale = self.stepper.scaler.get_scale()
        if scale < LEAST_SCALE:  # so far that it is not their overflow
            raise DivergedError(
                f"gradients were NaN or infinite in so many batches that the loss scale of fp16 fell to "
                f"{scale:.1g} in {name}; lower the learning rate, or train with precision='bf16'"
            )
        return trained

    def measured(self) -> metrics.Measured:
        """Return what was measured since the last call."""
        stepper = self.stepper
        measured = self._accumulator.measured()
        measured.probabilities, stepper.probabilities = stepper.probabilities, False
        measured.trace = self._tracer.trace()
        self._accumulator.clear()
        return measured

    def state(self) -> WorkerState:
        """Return what the worker keeps."""
        return WorkerState(
            optimizer=on_host(self.optimizer.state_dict()),
            random=devices.RandomState.capture(self._work.device),
            batches=self.stepper.batches,
            buffers=changed_buffers(self.net, self._spec.net),
            scaler=self.stepper.scaler.state_dict() or None,
            callbacks=self._callbacks.states(),
        )


def optimizer_of(replica: ModelReplica, state: dict[str, Any] | None) -> torch.optim.Optimizer:
    """Return an optimizer of the replica's parameters, with the given state if it is not ``None``."""
    optimizer = make_optimizer(replica.training_spec.optimizer, replica.training_spec.net)
    if state is not None:
        # A copy, as optimizers update loaded tensors in place, and tasks must not change their arguments.
        optimizer.load_state_dict(with_tensors(torch.Tensor.clone, state))
    return optimizer
