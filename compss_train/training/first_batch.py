"""The first batch of a fit, trained in this process: by ``check_fit``, and before ``fit`` starts
processes.
"""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from compss_train._utils.validation import warn_user
from compss_train.data.block_passes import Batching, BlockPass, batch_sizes
from compss_train.data.remote_block import load_block
from compss_train.engines.calls import Failure
from compss_train.exceptions import DivergedError
from compss_train.model import devices
from compss_train.model.metrics import Measured
from compss_train.model.schedule import make_schedule
from compss_train.training import inference
from compss_train.training.fit_of_epochs import FitOfEpochs
from compss_train.training.trained_model import TrainedModel
from compss_train.worker.inference import try_collate
from compss_train.worker.state import WorkerState
from compss_train.worker.train import train_one
from compss_train.worker.work import Job, Work

FEW = 2
"""Samples that are tried before processes start; more only if they fail."""

MOST_WEIGHTS = 10**8
"""Larger networks are not tried: a copy with its gradients and an optimizer would take too much
memory here.
"""


def try_fit(fit: FitOfEpochs) -> None:
    """Check a new copy of the learning-rate schedule, and train the first batch on a device that is
    here.

    For GPUs that only other nodes have this is the CPU, whose error is then a warning: some kernels
    need a GPU.
    """
    model = fit.session.model
    built = fit.session.model.built
    if built.schedule is not None and built.lr_schedule is not None:
        spec = built.training_spec
        schedule = make_schedule(built.schedule, spec.net, spec.optimizer)
        saved = (
            built.lr_schedule.state_dict() if fit.checkpoint is None else fit.checkpoint[1].schedule
        )
        schedule.load_state_dict(saved)
        workers = fit.session.num_workers
        schedule.prepare(fit.epochs.stop, fit.options.batches_of_worker(fit.data, workers), workers)
    if not fit.data.counted:  # streams would be read whole
        return
    if not built.num_gpu or devices.accelerators():
        _train_first_batch(fit, model, devices.gpu(0) if built.num_gpu else devices.CPU)
        return
    try:
        _train_first_batch(fit, model, devices.CPU)
    except Exception as error:
        warn_user(
            "no batch was tried on a GPU, as torch sees none here; on the CPU the first "
            f"one fails: {error}"
        )


def _train_first_batch(fit: FitOfEpochs, model: TrainedModel, device: str) -> None:
    """Train a copy of the model on one batch, in this process on a device; raise the errors of a
    fit.
    """
    data = fit.data
    options = fit.options
    job = _as_one_batch(_job(fit))
    spec = job.spec
    skipped_errors = [DivergedError] if spec.gradients.on_nan == "skip" else []
    for number, rows in enumerate(data.sizes):
        _, size = options.batching.bounds(rows)[0]
        work = inference.first_batch(
            data, number, size, name="the first batch", device=device, check_outputs=True
        )
        with suppress(*skipped_errors):
            measured = _trained(fit, job, work, data.load(number))
            inference.warn_of_problems([measured], set())
            if not measured.samples:
                continue  # a file that cannot be read and is skipped
        if spec.collate is not None:
            inputs = data.without_targets
            job = inference.one_batch(spec, inputs)
            work = replace(work, files=inputs.files_of([number]))
            try:
                with devices.IN_PROCESS:
                    try_collate(job, model.parameters, inputs.load(number), work)
            except Exception as error:
                warn_user(
                    " ".join([f"predict(x) would fail: {error}.", *getattr(error, "__notes__", [])])
                )
        return


def _job(fit: FitOfEpochs) -> Job:
    """Return the job of the fit's tasks for this process: not compiled, as that takes long."""
    spec = replace(fit.session.model.built.training_spec, compile=None)
    job = fit.options.job(fit.data, spec, fit.session.model.seed)
    return replace(job, reader=inference.copied_reader(fit.data))


def _as_one_batch(job: Job) -> Job:
    """Return the same job for one batch, of samples in their order."""
    return replace(job, batching=Batching(1), row_seed=None, pools=None, buffer=None)


def _trained(fit: FitOfEpochs, job: Job, work: Work, values: Sequence[Any]) -> Measured:
    """Train a copy of the model in this process, and return its measurements."""
    model = fit.session.model
    with devices.IN_PROCESS, devices.kept_random_state(work.device):
        try:
            return train_one(
                job, model.parameters, WorkerState(None, model.seed), work, values
            ).measured
        except DivergedError as error:
            fit.data.locate_nan(error)
            raise


def find_mistakes(fit: FitOfEpochs) -> None:
    """Raise what the first batch would raise in a worker, before any process starts for it.

    Two samples are trained. Only if that fails, as some losses need more, a batch is, drawn as
    those of workers are, and its error is raised as if it came from one. What depends on the
    machine is left to the workers: GPUs, files, modules and memory; and NaN, as another batch may
    have none.
    """
    data = fit.data
    built = fit.session.model.built
    mixes = fit.options.mixes_blocks
    weights = sum(parameter.numel() for parameter in built.training_spec.net.parameters())
    if weights > MOST_WEIGHTS or not data.counted or (mixes and data.dataset is not None):
        return
    if fit.callbacks.in_workers:  # their hooks may prepare what the network or the loss uses
        return
    if inference.is_for_tasks(data, built):
        return
    job = _job(fit)
    start, stop = fit.options.batching.bounds(data.sizes[0])[0]
    few = inference.first_batch(
        data, 0, min(FEW, stop - start), name="the first batch", check_outputs=True
    )
    tries = (
        lambda: (_as_one_batch(job), few, data.load(0)),
        lambda: _batch_of_workers(fit, job, few, stop - start, mixes=mixes),
    )
    for tried in tries:
        try:
            # The workers' warnings are shown. Filters are of the process, and other threads may be
            # here, too.
            with devices.IN_PROCESS, warnings.catch_warnings(action="ignore"):
                _trained(fit, *tried())
            return
        except (OSError, ImportError, MemoryError, DivergedError):
            return
        except (Exception, SystemExit) as error:
            failure = Failure.of(error)
    raise failure.exception()


def _batch_of_workers(
    fit: FitOfEpochs, job: Job, work: Work, size: int, *, mixes: bool
) -> tuple[Job, Work, Sequence[Any]]:
    """Return the training of a batch with samples of one block in its order, or of all if it
    ``mixes`` them.
    """
    data = fit.data
    options = fit.options
    seed = fit.session.model.seed
    if not mixes:
        work.block_passes = (BlockPass(0, fit.epochs.start, data.sizes[0]).part(0, size),)
        return job, work, data.load(0)
    if options.order != "total":  # pools and buffers cut a worker's passes together
        workers = min(data.shares(options.order), fit.session.num_workers)
        rows = data.number_samples // workers
        if fit.merge.unit == "blocks":
            rows = min(rows, options.samples_between_merges(data.sizes, workers))
        passes = -(-rows * len(data.sizes) // data.number_samples)
        size = batch_sizes((BlockPass(0, 0, rows // passes),) * passes, options.batching)[0]
    numbers = np.random.default_rng(seed).choice(data.number_samples, size, replace=False)
    work.block_passes = (BlockPass(0, fit.epochs.start, size, numbers),)
    work.blocks = tuple(range(len(data.sizes)))
    work.starts = tuple(accumulate(data.sizes[:-1], initial=0))
    columns = data.columns.values()
    blocks = [load_block(block) for column in columns for block in column.blocks()]
    return _as_one_batch(job), work, blocks
