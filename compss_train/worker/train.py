"""``train``: one worker in one round. It is the only function that trains in ``fit``.

Workers that share a task load once what they share. Each trains as it would in its own task, from
the same parameters and with its own state, so that its results have the same bits.
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from compss_train.engines import liveness
from compss_train.engines.mapping import Call
from compss_train.exceptions import DivergedError
from compss_train.model.compression import compress_arrays
from compss_train.model.devices import kept_random_state, set_random_state
from compss_train.model.measurements import Measured
from compss_train.model.model_state import model_state
from compss_train.model.parameters import Parameters, first_not_finite
from compss_train.model.parts import Moments, Part, joined, joined_moments
from compss_train.model.program_variables import changed_variables
from compss_train.worker.batches import cut_batches
from compss_train.worker.learner import Learner
from compss_train.worker.merging.buffers import unchanged_names
from compss_train.worker.merging.trained import Trained
from compss_train.worker.optimizer_state import moments_of
from compss_train.worker.preparing import prepared_batches
from compss_train.worker.server_exchange import ServerAddress
from compss_train.worker.source import retry_without_gpu_rows, source_of
from compss_train.worker.state import CarriedBuffer, WorkerState
from compss_train.worker.tracing import Tracer
from compss_train.worker.work import Job, Work


@dataclass(frozen=True, eq=False, slots=True)
class Start:
    """What the workers of a round start from."""

    parameters: Parameters
    moments: Moments | None = None
    """The optimizer state for a worker that has none."""
    average: Parameters | None = None
    """The average that each worker continues by steps; ``None`` begins with its first step."""


def training(
    job: Job,
    parameters: Sequence[Parameters | Part],
    moments: Sequence[Moments] | None = None,
    average: Sequence[Parameters | Part] | None = None,
) -> Call:
    """Return the function that trains a worker of a round, for ``map_items``.

    ``parameters``, ``moments`` and ``average`` are what the round starts from, in parts.
    """
    whole = joined(parameters)
    shapes = {name: array.shape for name, array in whole.items()}
    start = Start(
        parameters=whole,
        moments=None if moments is None else joined_moments(moments, shapes),
        average=None if average is None else joined(average),
    )
    return partial(train, job, start)


def training_through_server(
    job: Job,
    parameters: Sequence[Parameters | Part],
    moments: Sequence[Moments] | None,
    server_address: ServerAddress,
    samples: int,
) -> Call:
    """Return the function that trains a worker and pushes its change to a parameter server.

    It returns the global parameters instead of the worker's. ``samples`` is the number of samples
    of all workers in the round. A task that runs again after its process died connects as the same
    client, so that changes that had already arrived are not added twice.
    """
    whole = joined(parameters)
    train_worker = training(job, [whole], moments)

    def exchanging(
        state: WorkerState, work: Work, values: Sequence[Any]
    ) -> tuple[Trained, WorkerState, Measured]:
        trained, after, measured = train_worker(state, work, values)
        with server_address.connect(f"worker {work.worker}", generation=work.round) as server:
            exchange = server_address.exchange
            share = measured.planned_samples / samples
            changed = {**trained.parameters, **(trained.maxima or {}), **(trained.firsts or {})}
            exchange.push_change(server, work.worker, whole, {**whole, **changed}, share)
            pulled = dict(exchange.pull(server))
        return replace(trained, parameters=pulled), after, measured

    return exchanging


@retry_without_gpu_rows
def train(
    job: Job, start: Start, state: WorkerState, work: Work, values: Sequence[Any]
) -> tuple[Trained, WorkerState, Measured]:
    """Train a model copy on the batches of a worker.

    ``values`` are the blocks or pieces that ``work`` describes. Returns what the worker brings to
    the merge, its new state, and what was measured. The caller's random state stays as it is.

    With ``on_nan="skip"`` on a GPU, a worker that skipped nothing in its last task learns all
    batches, and reads at the end whether they were finite. If they were not, it trains again, and
    reads each batch's flag.
    """
    name = work.name
    liveness.describe(f"{name}, which compiles its network," if job.spec.compile else name)
    started = time.time()
    began = time.perf_counter()
    result = None
    with kept_random_state(work.device):
        while result is None:
            result = _result(job, start, state, work, values)
            state = replace(state, skipped=True)
    _, _, measured = result
    measured.started = started
    measured.seconds = time.perf_counter() - began
    return result


def _result(
    job: Job, start: Start, state: WorkerState, work: Work, values: Sequence[Any]
) -> tuple[Trained, WorkerState, Measured] | None:
    """Train a model copy; return ``None`` if batches that were not checked are not finite."""
    set_random_state(state.random, work.device)
    learner = Learner(
        job, start.parameters, state, work, moments=start.moments, averaged=start.average
    )
    source = source_of(job, work, values)
    buffer = CarriedBuffer(state.sample_buffer)
    batches = prepared_batches(cut_batches(source, work.device, buffer), learner.replica, job)
    tracer = Tracer(work.device) if work.traced else None
    if tracer is not None:
        batches = tracer.labelled(batches, state.batches)
    samples = 0
    try:
        with tracer or nullcontext():
            samples = learner.learn_all(batches)
    except Exception:  # possibly of a loss or hook that was given NaN
        if learner.finite:
            raise
    if not learner.finite:
        return None
    measured = learner.measured()
    vars(measured).update(source.measured())
    measured.trace = None if tracer is None else tracer.trace()
    _count_planned_samples(measured, job, work, samples)
    measured.merge_weight = _merge_weight(measured, job, work)
    if measured.skipped_batches and not measured.batches:
        raise DivergedError(
            f"loss or gradients were NaN or infinite in all {measured.skipped_batches} batches "
            f"of {work.name}, so nothing was trained; lower the learning rate, or check the data"
        )
    trained, error = _trained(job, start, work, learner, measured, error=state.error)
    after = learner.state(
        sample_buffer=buffer.after, error=error, skipped=measured.skipped_batches > 0
    )
    if work.check_outputs and after.attributes:
        spec = learner.replica.spec
        measured.changed_variables = changed_variables(
            spec.roots(), spec.attributes.values, after.attributes
        )
    if job.optimizer_state == "average":
        after = replace(after, optimizer=None)
    if work.worker == 0 and (after.module_buffers or after.attributes):
        steps = job.spec.validation_step is not None
        measured.model_state = model_state(after.module_buffers, after.attributes, steps=steps)
    return trained, after, measured


def _count_planned_samples(measured: Measured, job: Job, work: Work, samples: int) -> None:
    """Set how many samples count as planned, of those that the worker has drawn.

    Those of batches that were skipped do not.
    """
    if job.reader is not None and job.reader.is_stream:
        measured.planned_samples = samples
        measured.unread_samples = max(0, work.samples - samples)
    elif work.draws is None or job.buffer is None:
        passed = sum(block_pass.size for block_pass in work.block_passes)
        measured.planned_samples = passed - measured.unread_samples
    elif job.buffer.draws_in_step:
        measured.planned_samples = samples
    else:  # a reservoir's repetitions do not count
        measured.planned_samples = min(samples, work.draws.samples)
    measured.planned_samples = max(0, measured.planned_samples - measured.skipped_samples)


def _merge_weight(measured: Measured, job: Job, work: Work) -> float:
    """Return how much a worker counts in a merge: what its loss is a mean over, or its samples.

    Of a reservoir, which repeats samples, only those that were planned count.
    """
    planned = measured.planned_samples
    if not job.may_skip:  # only files that are skipped make it less than planned
        planned = work.samples - measured.skipped_samples
    if job.counts_samples or not measured.samples:
        return planned
    return planned * measured.count / measured.samples


def _trained(
    job: Job,
    start: Start,
    work: Work,
    learner: Learner,
    measured: Measured,
    *,
    error: Parameters | None,
) -> tuple[Trained, Parameters | None]:
    """Return what a worker brings to the merge, and the compression error that it keeps.

    With ``Merge(dtype=...)`` it brings compressed changes, with the ``error`` of those before. A
    worker of weight 0 does not count, so that its error is unchanged.
    """
    parameters = learner.finish(start.parameters, measured)
    names = job.spec.names
    unchanged = unchanged_names(names.buffers, start.parameters, parameters)
    by_rule, maxima, firsts = job.buffers.split(parameters, work.worker)
    moments = None
    if job.optimizer_state == "average":
        moments = moments_of(learner.optimizer, learner.replica.net)
    trained = Trained(
        worker=work.worker,
        weight=measured.merge_weight,
        parameters=by_rule,
        moments=moments,
        average=learner.averaged(),
        maxima=maxima,
        firsts=firsts,
        unchanged=frozenset(unchanged),
    )
    if job.dtype is None:
        return trained, None
    if not trained.weight:
        return trained, error
    changes, new_error = compress_arrays(
        start.parameters, parameters, names.weights, job.dtype, error
    )
    if job.spec.gradients.on_nan != "ignore":
        _check_compressed(job, work, new_error)
    trained = replace(trained, parameters={**by_rule, **changes})
    if moments is not None:  # they decay, and need no feedback of their error
        of_moments, _ = compress_arrays(start.moments or {}, moments, moments, "bf16")
        trained = replace(trained, moments={**moments, **of_moments})
    return trained, new_error


def _check_compressed(job: Job, work: Work, error: Parameters) -> None:
    """Raise ``DivergedError`` if a change was too large to be compressed."""
    too_large = first_not_finite(error)
    if too_large is not None:
        raise DivergedError(
            f"the change of {too_large!r} in {work.name} is too large for "
            f"Merge(dtype={job.dtype!r}); lower the learning rate"
        )
