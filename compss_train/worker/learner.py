"""``Learner``: trains a worker's copy of the model, from and to a ``WorkerState``."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from compss_train.engines import liveness
from compss_train.exceptions import DivergedError
from compss_train.model import devices
from compss_train.model import parameters as params
from compss_train.model.attributes.changes import changed_attributes
from compss_train.model.attributes.reader import OPTIMIZER, AttributeReader
from compss_train.model.attributes.writer import AttributeWriter
from compss_train.model.joined_optimizer import JoinedOptimizer
from compss_train.model.loss_warnings import batch_warning
from compss_train.model.lr_schedule import Hyperparameters
from compss_train.model.measurements import Measured, MetricAccumulator
from compss_train.model.model_state import (
    ModelState,
    changed_buffers,
    model_state,
    restore_buffers,
)
from compss_train.model.net_optimizers import make_optimizer
from compss_train.model.parts import Moments
from compss_train.model.replica import ModelReplica
from compss_train.model.task_globals import changed_global, global_values
from compss_train.model.training_step import StepResult
from compss_train.worker.batches import Batch, batches_in_epoch
from compss_train.worker.callbacks import CallbackRunner, WorkerContext
from compss_train.worker.optimizer_state import (
    load_moments,
    load_optimizer,
    named_state,
    numbered_state,
)
from compss_train.worker.state import WorkerState
from compss_train.worker.step_average import StepAverage
from compss_train.worker.stepping import stepper_of
from compss_train.worker.work import Job, Work

LEAST_SCALE = 1e-4
"""Minimum loss scale of fp16: gradients that overflow even then are NaN, or have diverged."""


class Learner:
    """A worker's copy of the model, and its training, in ``fit`` and in ``fit_online``.

    Parameters
    ----------
    job:
        The network and how it is trained; not modified.
    parameters:
        The global parameters that the copy starts from.
    state:
        The worker's state after its last task.
    work:
        What the worker does: its number, device, callbacks.
    moments:
        The optimizer state for a worker that has none.
    averaged:
        The average by steps that it continues; ``None`` begins one with its first step.
    """

    def __init__(
        self,
        job: Job,
        parameters: params.Parameters,
        state: WorkerState,
        work: Work,
        *,
        moments: Moments | None = None,
        averaged: params.Parameters | None = None,
    ) -> None:
        self._job = job
        self._work = work
        self.replica = ModelReplica(job.spec, parameters, work.device, training=True)
        """The copy of the model."""
        self.replica.compares_step = work.check_outputs
        net = self.replica.net
        if state.module_buffers is not None:
            restore_buffers(net, state.module_buffers, work.device)
        self._accumulator = MetricAccumulator(self.replica.measures)
        self._callbacks: CallbackRunner | None = None
        if job.callbacks:
            context = WorkerContext(
                worker=work.worker, round=work.round, model=net, epoch=work.epoch
            )
            self._callbacks = CallbackRunner(
                job.callbacks, context, self._accumulator, state.callbacks or {}
            )
        reset = job.optimizer_state == "reset"
        self._globals: Sequence[Any] = ()
        """The values of global variables that tasks must not change."""
        if job.checks_globals:
            self._globals = global_values(job.spec.global_users)
        self._new_optimizer_attributes: AttributeReader | None = None
        """The attributes of a new optimizer, if it is none of torch's own."""
        optimizer = self._new_optimizer(None if reset else state.optimizer)
        if moments and not reset and state.optimizer is None:
            load_moments(optimizer, net, moments)
        self._average = None
        if job.averaging is not None:
            self._average = StepAverage(net, job.averaging, averaged)
        if state.attributes or work.attributes:
            attributes = {**(state.attributes or {}), **(work.attributes or {})}
            self._set_attributes(attributes, optimizer, reset=reset)
        self._stepper = stepper_of(self.replica, optimizer, state, average=self._average)
        self._batches = state.batches
        """Number of batches trained, including by earlier tasks of the worker."""
        self._random = state.random
        self._checks_outputs = work.check_outputs and not isinstance(optimizer, JoinedOptimizer)
        self._output_warning = ""
        """What is wrong with the first outputs."""
        self.skipped = 0
        """Number of batches skipped since the last one that was learnt."""
        self.on_losses: Callable[[Batch, torch.Tensor], None] | None = None
        """Gets each learnt batch and its samples' losses, which are computed only for it."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the copy's parameters."""
        return self._stepper.optimizer

    @property
    def finite(self) -> bool:
        """Whether all that was learnt is finite; known at the end, unless batches are checked."""
        return self._stepper.finite

    @property
    def batches(self) -> int:
        """Number of batches trained, including by earlier tasks of the worker."""
        return self._batches

    def set_hyperparameters(self, hyperparameters: Hyperparameters) -> None:
        """Train the next batches with these values of a schedule."""
        _set_hyperparameters(self.optimizer, hyperparameters)

    def learn_all(self, batches: Iterator[Batch]) -> int:
        """Learn prepared batches, and return the number of their samples.

        The next batch is taken after the step on the previous one. Accumulated gradients are
        applied at the end of each epoch.
        """
        learnt = 0
        unbegun = self._blocks_that_begin()
        if self._callbacks is not None:
            self._callbacks.round_start()
        for epoch, epoch_batches in groupby(batches, lambda batch: batch.epoch):
            changes = self._hyperparameters_in(epoch)
            hyperparameters: Hyperparameters | None = None
            samples = 0
            for number, batch in enumerate(epoch_batches):
                hyperparameters = changes.get(number, hyperparameters)
                if (epoch, batch.block) in unbegun:
                    unbegun.remove((epoch, batch.block))
                    self._renew_optimizer(hyperparameters)
                elif number in changes:
                    self.set_hyperparameters(changes[number])
                self.learn(batch)
                samples += batch.samples
                liveness.beat(batch.samples)
            self._stepper.step_accumulated()  # the gradients that the end of the epoch has left
            ended = self.replica.end_epoch(
                self.replica.training_step, training=True, epoch=epoch, number=self._batches
            )
            self._accumulator.measure(ended, samples)
            learnt += samples
        if self._callbacks is not None:
            self._callbacks.round_end()
        return learnt

    def _blocks_that_begin(self) -> set[tuple[int, int]]:
        """Return the epoch and number of each block that begins here, if optimizers are reset.

        A block begins with the first batch that is trained: earlier ones may not be readable.
        """
        if self._job.optimizer_state != "reset_blocks":
            return set()
        block_passes = self._work.block_passes
        return {
            (block_pass.epoch, block_pass.block)
            for block_pass in block_passes
            if not block_pass.start
        }

    def _hyperparameters_in(self, epoch: int) -> dict[int, Hyperparameters]:
        """Return a schedule's hyperparameters in an epoch, by the batch from which they hold."""
        timed = (self._work.hyperparameters or {}).get(epoch, ())
        planned = batches_in_epoch(self._job, self._work, epoch) if len(timed) > 1 else 0
        return {math.ceil(begin * planned): hyperparameters for begin, hyperparameters in timed}

    def learn(self, batch: Batch) -> None:
        """Train on a prepared batch; the optimizer steps every ``accumulate`` batches."""
        samples = batch.samples
        replica = self.replica
        number = self._batches
        if self._callbacks is not None:
            self._callbacks.batch_start(batch.x, batch.y, samples, epoch=batch.epoch, number=number)
        self._batches += 1
        try:
            with replica.annotate_errors(batch.x, batch.y, own_target=batch.y is None):
                result = self._stepper.step(batch, number)
                if result is None:
                    self._accumulator.skip(samples)
                else:
                    self._check_outputs(result)
                    self._accumulator.add(samples, result, batch.weight)
                    if self.on_losses is not None:
                        self.on_losses(batch, replica.losses_by_sample(result, samples))
        except torch.OutOfMemoryError as error:
            error.add_note(
                f"{replica.device} has too little memory for batches of {samples} samples in "
                f"{self._work.name}: choose a smaller batch_size (Gradients(accumulate=...) "
                "keeps the size of the steps), precision='bf16', or fewer workers on a GPU."
            )
            raise
        self.skipped = 0 if result is not None else self.skipped + 1
        if self._callbacks is not None:
            self._callbacks.batch_end(samples, result)

    def _check_outputs(self, result: StepResult) -> None:
        """Keep a warning if the first outputs do not suit the loss or the metrics."""
        if not self._checks_outputs:
            return
        self._checks_outputs = False
        self._output_warning = batch_warning(
            self._job.spec.loss,
            self.replica.measures.metrics,
            output=result.output,
            target=result.target,
        )

    def _renew_optimizer(self, hyperparameters: Hyperparameters | None) -> None:
        """Train the next block with a new optimizer, as dislib does.

        Gradients that are accumulated are applied before.
        """
        self._stepper.step_accumulated()
        parameters = self.replica.net.parameters()
        for parameter, built in zip(parameters, self._job.spec.net.parameters(), strict=True):
            # A callback may have changed it for the last block.
            parameter.requires_grad_(built.requires_grad)
        optimizer = self._new_optimizer(None)
        if hyperparameters is not None:
            _set_hyperparameters(optimizer, hyperparameters)
        self._stepper.use(optimizer)

    def _new_optimizer(self, state: dict[str, Any] | None) -> torch.optim.Optimizer:
        """Return a new optimizer of the copy's parameters, with a state unless it is ``None``."""
        optimizer = make_optimizer(self.replica.optimizer_factory, self.replica.net)
        if self._callbacks is not None:
            self._callbacks.optimizer(optimizer)
        if not type(optimizer).__module__.startswith("torch.optim."):
            self._new_optimizer_attributes = self._attributes_of(optimizer)
            self._new_optimizer_attributes.freeze()
        if state is not None:
            load_optimizer(optimizer, numbered_state(state, optimizer, self.replica.net))
        return optimizer

    def _attributes_of(self, optimizer: torch.optim.Optimizer) -> AttributeReader:
        return AttributeReader(self.replica.net, {OPTIMIZER: optimizer})

    def _set_attributes(
        self, kept: Mapping[str, Any], optimizer: torch.optim.Optimizer, *, reset: bool
    ) -> None:
        """Set the attributes that the worker kept; a ``reset`` optimizer has new ones."""
        of_optimizer = {name: kept[name] for name in kept if name.startswith(f"{OPTIMIZER}.")}
        of_model = {name: kept[name] for name in kept if name not in of_optimizer}
        device = self._work.device
        if of_model:
            AttributeWriter(self.replica.attributes(), device).set(of_model)
        if of_optimizer and not reset:
            AttributeWriter(self._attributes_of(optimizer), device).set(of_optimizer)

    def _changed_attributes(self) -> dict[str, Any] | None:
        """Return the attributes that a new copy has not."""
        worker = self._work.worker
        self.check_globals()
        kept = self.replica.changed_attributes(worker)
        if self._work.attributes:
            self._check_set_attributes(self._work.attributes, kept)
        if self._new_optimizer_attributes is not None:
            before = self._new_optimizer_attributes
            after = AttributeReader(self.replica.net, {OPTIMIZER: self.optimizer}, before)
            kept |= changed_attributes(before, after, worker)
        return kept or None

    def _check_set_attributes(
        self, attributes: Mapping[str, float], kept: Mapping[str, Any]
    ) -> None:
        """Raise ``ValueError`` for an attribute that was set and has changed since."""
        built = self.replica.spec.attributes.values
        for path, value in attributes.items():
            new = kept.get(path, built.get(path))
            if new != value:
                raise ValueError(
                    f"{path} was set to {value} by set_hyperparameters, and changed to {new} in "
                    f"{self._work.name}: it would be set again in every round; let either the "
                    "object or set_hyperparameters change it, such as another attribute that it "
                    "multiplies by"
                )

    def check_globals(self) -> None:
        """Raise ``TypeError`` for a global variable that has changed since the worker began."""
        if not self._globals:
            return
        name = changed_global(self._job.spec.global_users, self._globals)
        if name is not None:
            raise TypeError(
                f"{name} changed in {self._work.name}, and each process has its own: workers "
                "would share it or not, and a task that runs again find it changed. Make the "
                "function an object that keeps it in an attribute, such as self.count in "
                "__call__; that is kept for each worker, and in checkpoints"
            )

    def _changed_buffers(self) -> dict[str, torch.Tensor] | None:
        """Return the worker's own buffers that a new copy has not."""
        return changed_buffers(self.replica.net, self._job.spec.net, self._job.buffers.worker)

    def model_state(self) -> ModelState | None:
        """Return what evaluation sees of the copy besides its parameters."""
        steps = self._job.spec.validation_step is not None
        return model_state(self._changed_buffers(), self._changed_attributes(), steps=steps)

    def finish(
        self, before: params.Parameters, measured: Measured | None = None
    ) -> params.Parameters:
        """Apply the gradients that are still accumulated, and return the parameters.

        Raises ``DivergedError`` in the task rather than in the coordinator, so that NaN is never
        merged. ``before`` are the global parameters that the worker has continued from;
        ``measured`` has the measurements since the last merge, if they have already been taken.
        """
        self._stepper.step_accumulated()
        trained = params.from_module(self.replica.net)
        name = self._work.name
        if self._job.spec.gradients.on_nan != "ignore":
            if measured is None:
                loss, count = self._accumulator.loss()
            else:
                loss, count = measured.loss, measured.count
            if not math.isfinite(loss):
                raise DivergedError(
                    f"the loss became {loss / count} in {name}; lower the learning "
                    "rate, or check the data for NaN and for values that are far too large"
                )
            # By the last step, which no loss follows.
            diverged = params.first_diverged(trained, before)
            if diverged is not None:
                raise DivergedError(
                    f"parameter {diverged!r} became NaN or infinite in {name}; lower the learning "
                    "rate"
                )
        scale = self._stepper.scaler.get_scale()
        if scale < LEAST_SCALE:  # so far that it is not their overflow
            raise DivergedError(
                "gradients were NaN or infinite in so many batches that the loss scale of fp16 "
                f"fell to {scale:.1g} in {name}; lower the learning rate, or train with "
                "precision='bf16'"
            )
        return trained

    def averaged(self) -> params.Parameters | None:
        """Return the average that ``Merge(averaging_unit="steps")`` keeps, if any."""
        return None if self._average is None else self._average.arrays()

    def continue_average(self, averaged: params.Parameters) -> None:
        """Continue this average by steps in place of the learner's."""
        if self._average is not None:
            self._average.continue_from(averaged)

    def pending(self) -> dict[str, Any] | None:
        """Return the gradients that wait for a step, for ``set_pending``, or ``None``."""
        return self._stepper.accumulated()

    def set_pending(self, saved: Mapping[str, Any]) -> None:
        """Continue with gradients that wait for a step."""
        self._stepper.set_accumulated(saved)

    def measured(self) -> Measured:
        """Return what was measured since the last call."""
        measured = self._accumulator.measured()
        if self._output_warning:
            measured.warnings = [self._output_warning]
            self._output_warning = ""
        measured.conversions = sorted(self.replica.conversions)
        self._accumulator = MetricAccumulator(self.replica.measures)
        return measured

    def state(self, **fields: Any) -> WorkerState:
        """Return what the worker keeps; ``fields`` are those that the learner does not know."""
        return WorkerState(
            optimizer=named_state(self.optimizer, self.replica.net),
            random=devices.RandomState.capture(self._work.device, self._random),
            batches=self._batches,
            module_buffers=self._changed_buffers(),
            attributes=self._changed_attributes(),
            scaler=self._stepper.scaler.state_dict() or None,
            callbacks=self._callbacks.states() if self._callbacks is not None else None,
            **fields,
        )


def _set_hyperparameters(
    optimizer: torch.optim.Optimizer, hyperparameters: Hyperparameters
) -> None:
    """Set the learning rate, and other values that change, in each parameter group.

    Groups that callbacks have added follow the first one.
    """
    groups = optimizer.param_groups
    first = hyperparameters[0]
    added = []
    for group in groups[len(hyperparameters) :]:
        values = dict(first)
        if "lr" in first:
            values["lr"] = first["lr"] * group["factor"]
        added.append(values)
    for group, values in zip(groups, (*hyperparameters, *added), strict=True):
        for name, value in values.items():
            if isinstance(group[name], torch.Tensor):
                group[name].fill_(value)
            else:
                group[name] = value
