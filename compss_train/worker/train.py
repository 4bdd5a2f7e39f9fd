"""The training of one worker in one round: a model copy goes through its batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from compss_train.engines import liveness
from compss_train.exceptions import DivergedError
from compss_train.model import parameters as params
from compss_train.model.compression import Contribution, compress_arrays
from compss_train.model.measured import Measured
from compss_train.model.parameters import Parameters
from compss_train.model.random_state import random_state
from compss_train.model.training_spec import TrainingSpec
from compss_train.worker.batches import placed_batches
from compss_train.worker.buffered import CarriedBuffer
from compss_train.worker.learner import Learner, WorkerState
from compss_train.worker.moments import moments_of, split_moments
from compss_train.worker.source import source_of
from compss_train.worker.work import Work


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
        learner = Learner(training_spec, parameters, state, work, moments)
        source, buffer = source_of(work, values), CarriedBuffer(state.buffer)
        samples = training_spec.samples
        placed = placed_batches(work, source, learner.replica.columns_device, buffer, samples)
        drawn = learner.train(placed)
        measured = replace(learner.measured(), **source.measured())
        if samples is not None and samples.is_stream:
            measured.given, measured.left_out = drawn, max(0, work.samples - drawn)
        else:
            measured.given = _given(work, drawn, measured.left_out)
        if measured.skipped_batches and not measured.batches:
            raise DivergedError(
                f"loss or gradients were NaN or infinite in all {measured.skipped_batches} batches of {work.name}, "
                "so that nothing was learnt; lower the learning rate, or check the data"
            )
        trained, after = learner.finish(measured), learner.state()
        if work.step.optimizer_state == "average":
            trained, after = trained | moments_of(learner.optimizer), replace(after, optimizer=None)
        before = {**parameters, **(moments or {})}
        sent, error = _compressed(training_spec, work, before, trained, state, measured)
        measured.started, measured.seconds = started, time.perf_counter() - began
        return Result(sent, replace(after, buffer=buffer.after, error=error), measured)


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


def _given(work: Work, drawn: int, left_out: int) -> int:
    """Return the number of samples that the worker was to train; a reservoir's repetitions do not count."""
    if work.draws is not None and work.reading.buffer is not None:
        return drawn if work.reading.buffer.draws_in_step else min(drawn, work.draws.samples)
    return sum(block_pass.size for block_pass in work.block_passes) - left_out
