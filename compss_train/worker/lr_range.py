"""The task of a learning-rate finder: a few batches, each with a larger learning rate than the one before."""

import math
from collections.abc import Sequence

from compss_train.data.block import Block
from compss_train.data.reading import FilePart
from compss_train.engines import liveness
from compss_train.model.metrics import MetricAccumulator
from compss_train.model.parameters import Parameters
from compss_train.model.random_state import random_state
from compss_train.model.training_spec import ModelReplica, TrainingSpec
from compss_train.worker.batches import Batch, placed_batches
from compss_train.worker.learner import optimizer_of
from compss_train.worker.optimizer_stepper import OptimizerStepper
from compss_train.worker.preparing import Preparation
from compss_train.worker.source import source_of, taking
from compss_train.worker.work import Work

DIVERGED = 4.0
"""A loss of so many times the lowest one ends the search."""


def losses_by_rate(
    training_spec: TrainingSpec,
    parameters: Parameters,
    xs: Sequence[Block] | FilePart,
    others: Sequence[Block],
    work: Work,
    rates: Sequence[float],
) -> list[float]:
    """Return the loss of each batch before its step with the next of ``rates``; ends where the loss diverges.

    In an optimizer with several parameter groups, the rate is that of the first one, and the others keep their
    ratio to it.
    """
    seed, structure, device = work.reading.seed, work.reading.structure, work.device
    with random_state(seed, device):
        replica = training_spec.replica(parameters, device, training=True)
        optimizer = optimizer_of(replica, None)
        shares = [group["lr"] / optimizer.param_groups[0]["lr"] for group in optimizer.param_groups]
        stepper = OptimizerStepper(replica, optimizer)
        source, losses = source_of(*taking(work, xs, others)), []
        placed = placed_batches(work, source, replica.columns_device, samples=training_spec.samples)
        batches = Preparation(replica, seed, ragged=structure.ragged).of(placed)
        for rate, (_, batch) in zip(rates, batches, strict=False):
            stepper.set_hyperparameters(tuple({"lr": rate * share} for share in shares))
            losses.append(_loss(replica, stepper, batch))
            liveness.beat()
            if not losses[-1] <= DIVERGED * min(losses):
                break
        return losses


def _loss(replica: ModelReplica, stepper: OptimizerStepper, batch: Batch) -> float:
    accumulator = MetricAccumulator(replica.training_spec.measures)
    with replica.annotate_errors(batch.x, batch.y, own_target=batch.y is None):
        stepper.learn(batch, accumulator)
    stepper.finish()
    measured = accumulator.measured()
    return measured.loss / measured.samples if measured.samples else math.nan
