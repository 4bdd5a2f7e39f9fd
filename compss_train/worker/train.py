"""The training of one worker in one round: a model copy goes through its batches."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch

from compss_train._utils.nested import leaves
from compss_train.engines import liveness
from compss_train.exceptions import DivergedError
from compss_train.model import parameters as params
from compss_train.model.compression import Contribution, compress_arrays
from compss_train.model.gradients import OnNan
from compss_train.model.lr_schedules import Hyperparameters
from compss_train.model.measured import Measured
from compss_train.model.metrics import MetricAccumulator
from compss_train.model.parameters import Parameters
from compss_train.model.random_state import RandomState, random_state
from compss_train.model.several_optimizers import make_optimizer
from compss_train.model.training_spec import ModelReplica, TrainingSpec
from compss_train.worker.batches import Batch, PlacedBatch, batches_in_epoch, placed_batches
from compss_train.worker.buffered import CarriedBuffer
from compss_train.worker.callback_runner import CallbackRunner
from compss_train.worker.callbacks import WorkerContext
from compss_train.worker.moments import load_moments, moments_of, split_moments
from compss_train.worker.optimizer_stepper import OptimizerStepper
from compss_train.worker.own_buffers import changed_buffers, restore_buffers
from compss_train.worker.preparing import Preparation
from compss_train.worker.source import source_of
from compss_train.worker.trace import Tracer
from compss_train.worker.work import OptimizerState, Work

LEAST_SCALE = 1e-4
"""Losses of fp16 are never scaled by less: gradients that overflow nevertheless are NaN, or have diverged."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What a worker keeps from task to task: the states of its optimizer and its random number generators."""

    optimizer: dict[str, Any] | None
    """The optimizer's state_dict; ``None`` makes a new optimizer."""
    random: RandomState | int
    """A state, or the seed of a new worker."""
    buffer: dict[str, Any] | None = None
    """The state of a buffer that merges by batches do not empty, inside an epoch."""
    error: Parameters | None = None
    """What compression has left out of the changes so far, with ``Merge(dtype=...)``."""
    batches: int = 0
    """How many batches the worker has trained, for training steps."""
    buffers: dict[str, torch.Tensor] | None = None
    """The worker's own buffers that have changed (``own_buffers``)."""
    scaler: dict[str, Any] | None = None
    """The state of the scaler of losses, in fp16."""
    callbacks: dict[str, Any] | None = None
    """The states of worker callbacks, by their names."""

    def with_options(self, options: Sequence[dict[str, Any]]) -> WorkerState:
        """Return this state with other options of the optimizer's parameter groups, such as ``lr``."""
        if self.optimizer is None:
            return self
        saved = self.optimizer["param_groups"]
        groups = [{**group, **changed} for group, changed in zip(saved, options, strict=True)]
        return replace(self, optimizer={**self.optimizer, "param_groups": groups})

    def on_cpu(self) -> WorkerState:
        """Return this state without that of a GPU's random number generator."""
        return self if isinstance(self.random, int) else replace(self, random=replace(self.random, cuda=None))


class Result(NamedTuple):
    """What comes of the work of one worker in one round."""

    parameters: Contribution
    """The new parameters (with the moments, if these are averaged too), or their compressed changes."""
    state: WorkerState
    measured: Measured


def train(
    training_spec: TrainingSpec,
    parameters: Parameters,
    state: WorkerState,
    work: Work,
    values: Sequence[Any],
    moments: Parameters | None = None,
) -> Result:
    """Train a model copy on the batches of a worker; accumulated gradients are applied at the end of each epoch.

    ``values`` are the blocks or pieces that ``work.reading`` describes, and ``moments`` the optimizer state of a
    worker that has none of its own.
    """
    liveness.describe(f"{work.name}, which compiles its network," if training_spec.compile else work.name)
    started, began = time.time(), time.perf_counter()
    with random_state(state.random, work.device):
        part = _WorkerRound(training_spec, parameters, state, work, moments)
        measured = part.train(values)
        sent, after = part.result(measured)
        measured.started, measured.seconds = started, time.perf_counter() - began
        return Result(sent, after, measured)


class _WorkerRound:
    """A worker's part of a round: its copy of the model, and what trains it."""

    def __init__(
        self,
        training_spec: TrainingSpec,
        parameters: Parameters,
        state: WorkerState,
        work: Work,
        moments: Parameters | None,
    ) -> None:
        self._spec, self._state, self._work, device = training_spec, state, work, work.device
        self._before = {**parameters, **(moments or {})}
        self._replica = training_spec.replica(parameters, device, training=True)
        self._net = self._replica.training_spec.net
        restore_buffers(self._net, state.buffers, device)
        self._optimizer = _starting_optimizer(self._replica, state.optimizer, moments, work.step.optimizer_state)
        self._accumulator = MetricAccumulator(self._replica.training_spec.measures)
        self._stepper = OptimizerStepper(
            self._replica,
            self._optimizer,
            check_outputs=work.step.check_outputs,
            batches=state.batches,
            scaler=state.scaler,
        )
        context = WorkerContext(
            worker=work.worker, round=work.step.round, model=self._net, optimizer=self._optimizer
        )
        self._callbacks = CallbackRunner(work.step.callbacks, context, self._accumulator, state.callbacks)
        self._buffer = CarriedBuffer(state.buffer)

    def train(self, values: Sequence[Any]) -> Measured:
        """Train on the batches, and return the measurements."""
        work, replica = self._work, self._replica
        source = source_of(work, values)
        placed = placed_batches(work, source, replica.columns_device, self._buffer, self._spec.samples)
        self._callbacks.round_start()
        batches = Preparation(replica, work.reading.seed, ragged=work.reading.structure.ragged).of(placed)
        with Tracer(work.device, wanted=work.worker in work.step.traced) as tracer:
            drawn = self._learn(batches, tracer)
        self._callbacks.round_end()
        measured = replace(
            self._accumulator.measured(),
            **source.measured(),
            **self._stepper.warnings,
            weightless=self._stepper.weightless,
            trace=tracer.trace(),
        )
        samples = self._spec.samples
        if samples is not None and samples.is_stream:
            return replace(measured, given=drawn, left_out=max(0, work.samples - drawn))
        return replace(measured, given=_given(work, drawn, measured.left_out))

    def _learn(self, batches: Iterable[PlacedBatch], tracer: Tracer) -> int:
        """Train on the batches, and return the number of their samples."""
        drawn = 0
        anew = self._work.step.optimizer_state == "reset_blocks"
        for epoch, epoch_batches in groupby(batches, lambda placed: placed[0].epoch):
            changes = _hyperparameter_changes(self._work, epoch)
            current: Hyperparameters | None = None
            for number, (place, batch) in enumerate(epoch_batches):
                current = changes.get(number, current)
                if anew and place.position == 0:
                    self._renew_optimizer(current)
                elif number in changes:
                    self._stepper.set_hyperparameters(changes[number])
                with tracer.batch(self._stepper.batches):
                    self._learn_batch(batch, epoch)
                drawn += batch.samples
                liveness.beat(batch.samples)
            self._stepper.finish()
        return drawn

    def _renew_optimizer(self, hyperparameters: Hyperparameters | None) -> None:
        """Train the next block with a new optimizer, as dislib does; accumulated gradients are applied before."""
        self._stepper.finish()
        self._optimizer = optimizer_of(self._replica, None)
        self._stepper.optimizer = self._callbacks.context.optimizer = self._optimizer
        if hyperparameters is not None:
            self._stepper.set_hyperparameters(hyperparameters)

    def _learn_batch(self, batch: Batch, epoch: int) -> None:
        self._callbacks.batch_start(batch, epoch, self._stepper.batches)
        with self._replica.annotate_errors(batch.x, batch.y, own_target=batch.y is None):
            result = self._stepper.learn(batch, self._accumulator, epoch)
        self._callbacks.batch_end(batch, result)

    def result(self, measured: Measured) -> tuple[Contribution, WorkerState]:
        """Return what goes to the merge, and the new state."""
        trained = params.from_module(self._net)
        _check_finite(measured, trained, self._work.name, self._spec.gradients.on_nan)
        _check_scale(self._stepper.scaler.get_scale(), self._work.name)
        averaged = self._work.step.optimizer_state == "average"
        whole = {**trained, **moments_of(self._optimizer)} if averaged else trained
        sent, error = _compressed(self._spec, self._work, self._before, whole, self._state, measured)
        return sent, WorkerState(
            optimizer=None if averaged else to_cpu(self._optimizer.state_dict()),
            random=RandomState.capture(self._work.device),
            buffer=self._buffer.after,
            error=error,
            batches=self._stepper.batches,
            buffers=changed_buffers(self._net, self._spec.net),
            scaler=self._stepper.scaler.state_dict() or None,
            callbacks=self._callbacks.states(),
        )


def _compressed(
    training_spec: TrainingSpec,
    work: Work,
    before: Parameters,
    after: Parameters,
    state: WorkerState,
    measured: Measured,
) -> tuple[Contribution, Parameters | None]:
    """Return what goes to the merge, and what it lacks: with ``Merge(dtype=...)``, changes of weights and moments.

    A worker without samples has no vote, so that its error stays. Moments are averages that forget, and need none.
    """
    dtype = work.step.dtype
    if dtype is None or not measured.given:
        return after, None if dtype is None else state.error
    changes, errors = compress_arrays(before, after, training_spec.names.weights, dtype, state.error)
    bad = None if training_spec.gradients.on_nan == "ignore" else params.first_not_finite(errors)
    if bad is not None:
        raise DivergedError(
            f"the change of {bad!r} in {work.name} is too large for Merge(dtype={dtype!r}); lower the learning rate"
        )
    moments = split_moments(after)[1]
    return {**after, **changes, **compress_arrays(before, moments, moments, "bf16")[0]}, errors


def _starting_optimizer(
    replica: ModelReplica, state: dict[str, Any] | None, moments: Parameters | None, option: OptimizerState | None
) -> torch.optim.Optimizer:
    """Return the optimizer of a task: with the worker's own state, else with the moments, else new."""
    optimizer = optimizer_of(replica, None if option == "reset" else state)
    if option != "reset" and state is None and moments:
        load_moments(optimizer, moments)
    return optimizer


def _given(work: Work, drawn: int, left_out: int) -> int:
    """Return the number of samples that the worker was to train; a reservoir's repetitions do not count."""
    if work.draws is not None and work.reading.buffer is not None:
        return drawn if work.reading.buffer.draws_in_step else min(drawn, work.draws.samples)
    return sum(block_pass.size for block_pass in work.block_passes) - left_out


def _hyperparameter_changes(work: Work, epoch: int) -> dict[int, Hyperparameters]:
    """Return the hyperparameters that a learning-rate schedule sets in an epoch, by the number of the batch."""
    timed = (work.hyperparameters or {}).get(epoch, ())
    planned = batches_in_epoch(work, epoch) if len(timed) > 1 else 0
    return {math.ceil(begin * planned): hyperparameters for begin, hyperparameters in timed}


def _check_finite(measured: Measured, trained: Parameters, name: str, on_nan: OnNan) -> None:
    """Raise in the task rather than in the coordinator, so that the parameters are never merged."""
    if measured.skipped_batches and not measured.batches:
        raise DivergedError(
            f"loss or gradients were NaN or infinite in all {measured.skipped_batches} batches of {name}, so that "
            "nothing was learnt; lower the learning rate, or check the data"
        )
    if on_nan == "ignore":
        return
    if not math.isfinite(measured.loss):
        raise DivergedError(
            f"the loss became {measured.loss / measured.samples} in {name}; lower the learning rate, or check the "
            "data for NaN and for values that are far too large"
        )
    if (bad := params.first_not_finite(trained)) is not None:  # by the last step, which no loss follows
        raise DivergedError(f"parameter {bad!r} became NaN or infinite in {name}; lower the learning rate")


def _check_scale(scale: float, name: str) -> None:
    """Raise ``DivergedError`` if the scale of losses in fp16 has fallen so far that it is not their overflow."""
    if scale < LEAST_SCALE:
        raise DivergedError(
            f"gradients were NaN or infinite in so many batches that the loss scale of fp16 fell to {scale:.1g} in "
            f"{name}; lower the learning rate, or train with precision='bf16'"
        )


def optimizer_of(replica: ModelReplica, state: dict[str, Any] | None) -> torch.optim.Optimizer:
    """Return an optimizer of the replica's parameters, with the given state if it is not ``None``."""
    optimizer = make_optimizer(replica.training_spec.optimizer, replica.training_spec.net)
    if state is not None:
        # A copy, as optimizers update loaded tensors in place, and tasks must not change their arguments.
        optimizer.load_state_dict(_with_tensors(torch.Tensor.clone, state, {}))
    return optimizer


def to_cpu(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state_dict with its tensors on the CPU."""
    on_cpu: dict[str, Any] = _with_tensors(torch.Tensor.cpu, state, {})
    return on_cpu


def _with_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a state_dict with results of the function as tensors, which go to the ``memo`` of deepcopy.

    Deepcopy would take several times as long for dicts, lists and numbers.
    """
    if isinstance(value, torch.Tensor):
        if id(value) not in memo:
            memo[id(value)] = function(value)
        return memo[id(value)]
    if type(value) is dict:
        return {key: _with_tensors(function, item, memo) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(function, item, memo) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    for tensor in filter(torch.is_tensor, leaves(value)):
        _with_tensors(function, tensor, memo)
    return copy.deepcopy(value, memo)
