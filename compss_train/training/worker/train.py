"""The training task: train a model copy on a shard."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from compss_train.data.block import Block
from compss_train.data.reading import FilePart
from compss_train.exceptions import DivergedError
from compss_train.model import parameters as params
from compss_train.model.parameters import Parameters
from compss_train.model.random_state import RandomState, random_state
from compss_train.model.training_spec import ModelReplica, OnNan, TrainingSpec
from compss_train.training.worker.batches import epochs
from compss_train.training.worker.metric_accumulator import MetricAccumulator, explained
from compss_train.training.worker.optimizer_stepper import OptimizerStepper
from compss_train.training.worker.shard import Shard
from compss_train.training.worker.source import source_of


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What stays with a worker from task to task: optimizer state and random state."""

    optimizer: dict[str, Any] | None
    """The optimizer's state_dict; ``None`` makes a new optimizer."""
    random: RandomState | int
    """A state, or the seed to begin with."""

    def with_options(self, options: Sequence[dict[str, Any]]) -> WorkerState:
        """Return this with other options of the optimizer's groups of parameters, such as ``lr``."""
        if self.optimizer is None:
            return self
        saved = self.optimizer["param_groups"]
        groups = [{**group, **changed} for group, changed in zip(saved, options, strict=True)]
        return replace(self, optimizer={**self.optimizer, "param_groups": groups})

    def on_cpu(self) -> WorkerState:
        """Return this without the state of a GPU's random numbers."""
        return self if isinstance(self.random, int) else replace(self, random=replace(self.random, cuda=None))


def train(
    training_spec: TrainingSpec,
    parameters: Parameters,
    state: WorkerState,
    xs: Sequence[Block] | FilePart,
    others: Sequence[Block],
    shard: Shard,
    device: str,
) -> tuple[Parameters, WorkerState, dict[str, Any]]:
    """Train a model copy on the shard's batches; a step of several batches ends with the epoch, and with the task.

    ``xs`` are the blocks that the shard names, and ``others`` those of y and of weights, or ``xs`` is what reads
    its files. Returns the new parameters and state and the sums of what was measured: ``samples`` and ``batches``
    trained, ``skipped_batches`` where there are any, samples ``given``, ``loss`` (a sum over samples), states of
    ``metrics``, ``started`` (unix seconds) and ``seconds``, and of files what the source tells.
    """
    started, began = time.time(), time.perf_counter()
    with random_state(state.random, device):
        replica = training_spec.replica(parameters, device, training=True)
        optimizer = optimizer_of(replica, None if shard.new_optimizer else state.optimizer)
        accumulator = MetricAccumulator(replica.training_spec.measures)
        stepper = OptimizerStepper(replica, optimizer)
        source = source_of(shard, xs, others)
        for epoch, in_epoch in epochs(shard, source, device):
            if epoch in shard.hyperparameters:
                stepper.set(shard.hyperparameters[epoch])
            for batch in in_epoch:
                with explained(batch.x, replica, batch.y, own_target=batch.y is None):
                    stepper.learn(batch, accumulator)
            stepper.finish()
        sums = {**accumulator.sums(), **source.measured()}
        sums["given"] = sum(block_pass.size for block_pass in shard.share) - sums.get("left_out", 0)
        trained = params.from_module(replica.training_spec.net)
        _check_finite(sums, trained, shard.name, training_spec.step_options.on_nan)
        after = WorkerState(to_cpu(optimizer.state_dict()), RandomState.now(device))
        return trained, after, {**sums, "started": started, "seconds": time.perf_counter() - began}


def _check_finite(sums: dict[str, Any], trained: Parameters, name: str, on_nan: OnNan) -> None:
    """Raise here rather than in the coordinator, so that nothing of it is ever merged."""
    if sums.get("skipped_batches") and not sums["batches"]:
        raise DivergedError(
            f"loss or gradients were NaN or infinite in all {sums['skipped_batches']} batches of {name}, so that "
            "nothing was learnt; lower the learning rate, or check the data"
        )
    if on_nan == "ignore":
        return
    if not math.isfinite(sums["loss"]):
        raise DivergedError(
            f"the loss became {sums['loss'] / sums['samples']} in {name}; lower the learning rate, or check the "
            "data for NaN and for values that are far too large"
        )
    if (bad := params.first_not_finite(trained)) is not None:  # by the last step, after which there is no loss
        raise DivergedError(f"parameter {bad!r} became NaN or infinite in {name}; lower the learning rate")


def optimizer_of(replica: ModelReplica, state: dict[str, Any] | None) -> torch.optim.Optimizer:
    """Return the replica's optimizer, in that state if there is one."""
    optimizer = replica.training_spec.optimizer(replica.training_spec.net.parameters())
    if state is not None:
        # A copy: optimizers update loaded tensors in place, and a task does not change its arguments.
        optimizer.load_state_dict(copy.deepcopy(state))
    return optimizer


def to_cpu(value: Any) -> Any:
    """Return a state_dict with its tensors on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: to_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(to_cpu, value))
    return value
