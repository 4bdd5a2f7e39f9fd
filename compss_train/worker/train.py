"""The tasks that train: one worker in one round, or several one after another.

Workers of one task load what they share once. The task also does their part of the merge: it
returns one sum for any number of workers. Each worker trains as it would in its own task, from the
same parameters and with its own state, so that its results have the same bits.
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, cast

from compss_train.engines import liveness
from compss_train.exceptions import DivergedError
from compss_train.model.compression import Contribution, compress_arrays
from compss_train.model.devices import kept_random_state, set_random_state
from compss_train.model.metrics import Measured
from compss_train.model.parameters import Parameters, first_not_finite
from compss_train.model.weighted_mean import PartialSum, partial_sum
from compss_train.worker.batches import cut_batches
from compss_train.worker.learner import Learner
from compss_train.worker.optimizer_state import moments_of, split_contribution
from compss_train.worker.preparing import prepared_batches
from compss_train.worker.server_exchange import ServerAddress
from compss_train.worker.source import retry_without_gpu_rows, source_of
from compss_train.worker.state import CarriedBuffer, GroupState, WorkerState
from compss_train.worker.tracing import Tracer
from compss_train.worker.work import Job, Work


class Result(NamedTuple):
    """The result of one worker's work in one round."""

    parameters: Contribution
    """The new parameters, and moments if these are averaged, or their compressed changes."""
    state: WorkerState
    measured: Measured


@retry_without_gpu_rows
def train_one(
    job: Job,
    parameters: Parameters,
    state: WorkerState,
    work: Work,
    values: Sequence[Any],
    *,
    moments: Parameters | None = None,
    averaged: Parameters | None = None,
) -> Result:
    """Train a model copy on the batches of a worker.

    ``values`` are the blocks or pieces that ``work`` describes, ``moments`` the optimizer state for
    a worker that has none, and ``averaged`` the average that it continues by steps. The random
    state is left as the training ends with it.

    With ``on_nan="skip"`` on a GPU, a worker that skipped nothing in its last task learns all
    batches, and reads at the end whether they were finite. If they were not, it trains again, and
    reads each batch's flag.
    """
    name = work.name
    liveness.describe(f"{name}, which compiles its network," if job.spec.compile else name)
    started = time.time()
    began = time.perf_counter()
    result = None
    while result is None:
        result = _result(job, parameters, state, work, values, moments=moments, averaged=averaged)
        state = replace(state, skipped=True)
    result.measured.started = started
    result.measured.seconds = time.perf_counter() - began
    return result


def _result(
    job: Job,
    parameters: Parameters,
    state: WorkerState,
    work: Work,
    values: Sequence[Any],
    *,
    moments: Parameters | None,
    averaged: Parameters | None,
) -> Result | None:
    """Train a model copy; return ``None`` if batches that were not checked are not finite."""
    set_random_state(state.random, work.device)
    learner = Learner(job, parameters, state, work, moments=moments, averaged=averaged)
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
    if measured.skipped_batches and not measured.batches:
        raise DivergedError(
            f"loss or gradients were NaN or infinite in all {measured.skipped_batches} batches "
            f"of {work.name}, so nothing was trained; lower the learning rate, or check the data"
        )
    trained = learner.finish(measured)
    if job.optimizer_state == "average":
        trained |= moments_of(learner.optimizer)
    trained |= learner.averaged()
    before = {**parameters, **(moments or {})}
    contribution, error = _contribution(job, work, before, trained, state.error, measured)
    state = learner.state(
        sample_buffer=buffer.after, error=error, skipped=measured.skipped_batches > 0
    )
    if job.optimizer_state == "average":
        state = replace(state, optimizer=None)
    return Result(contribution, state, measured)


def _count_planned_samples(measured: Measured, job: Job, work: Work, samples: int) -> None:
    """Set how many samples count as planned, of those that the worker has drawn."""
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


def _contribution(
    job: Job,
    work: Work,
    before: Parameters,
    after: Parameters,
    error: Parameters | None,
    measured: Measured,
) -> tuple[Contribution, Parameters | None]:
    """Return what a worker contributes to the merge, and the compression error that it keeps.

    With ``Merge(dtype=...)`` it contributes compressed changes. A worker without samples does not
    count, so that its error is unchanged. Moments decay, and need no feedback of their error.
    """
    dtype = job.dtype
    if dtype is None:
        return after, None
    if not measured.planned_samples:
        return after, error
    changes, new_error = compress_arrays(before, after, job.spec.names.weights, dtype, error)
    if job.spec.gradients.on_nan != "ignore":
        too_large = first_not_finite(new_error)
        if too_large is not None:
            raise DivergedError(
                f"the change of {too_large!r} in {work.name} is too large for "
                f"Merge(dtype={dtype!r}); lower the learning rate"
            )
    _, moments, _ = split_contribution(after)
    compressed_moments, _ = compress_arrays(before, moments, moments, "bf16")
    return {**after, **changes, **compressed_moments}, new_error


def train_group(
    job: Job,
    parameters: Parameters,
    states: GroupState,
    values: Sequence[Any],
    works: Sequence[Work],
    moments: Parameters | None = None,
    averaged: Parameters | None = None,
    measured_apart: bool = False,
) -> tuple[PartialSum, GroupState] | tuple[PartialSum, GroupState, list[Measured]]:
    """Train workers one after another, each from ``parameters``; see ``train_one``.

    ``values`` are the blocks of all workers. Returns the sum of their results, with their
    measurements, and the new states of the group; with ``measured_apart`` also the measurements,
    which may be read before the sum is merged.
    """
    sums: list[PartialSum] = []
    after = [*states]
    with kept_random_state(works[0].device):
        for work in works:
            number = work.index_in_group
            trained, after[number], measured = train_one(
                job,
                parameters,
                after[number],
                work,
                values,
                moments=moments,
                averaged=averaged,
            )
            count = measured.planned_samples if job.may_skip else work.samples
            worker_sum = PartialSum.of_worker(trained, count, work.worker, measured)
            sums = _with_complete_nodes([*sums, worker_sum], work.worker)
    total = partial_sum(sums)
    return (total, tuple(after), [*total.measured]) if measured_apart else (total, tuple(after))


def train_worker(
    job: Job,
    parameters: Parameters,
    states: GroupState,
    values: Sequence[Any],
    works: Sequence[Work],
    moments: Parameters | None = None,
    server_address: ServerAddress | None = None,
    samples: int = 0,
) -> tuple[Contribution, GroupState, list[Measured]]:
    """Train the only worker of a group that has samples, and return its own result.

    With ``server_address`` it pushes its change to a parameter server, and returns the global
    parameters instead; ``samples`` is then the number of samples of all workers in the round. A
    task that runs again after its process died connects as the same client, so that changes that
    had already arrived are not added twice.
    """
    (work,) = works
    after = [*states]
    number = work.index_in_group
    with kept_random_state(work.device):
        trained, after[number], measured = train_one(
            job, parameters, after[number], work, values, moments=moments
        )
    if server_address is not None:
        with server_address.connect(f"worker {work.worker}", generation=work.round) as server:
            exchange = server_address.exchange
            share = measured.planned_samples / samples
            arrays = cast("Parameters", trained)  # a server gets no compressed changes
            exchange.push_change(server, work.worker, parameters, arrays, share)
            trained = dict(exchange.pull(server))
    return trained, tuple(after), [measured]


def _with_complete_nodes(sums: list[PartialSum], worker: int) -> list[PartialSum]:
    """Add up the nodes that this worker completes, so that memory holds few sums."""
    size = 2
    while (worker + 1) % size == 0 and len(sums) > 1:
        start = worker + 1 - size
        before = [item for item in sums if item.first < start]
        inside = [item for item in sums if item.first >= start]
        sums = [*before, partial_sum(inside)]
        size *= 2
    return sums
