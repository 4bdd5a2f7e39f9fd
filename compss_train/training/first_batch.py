"""Trains the first batch of a fit in this process: in ``check_fit``, before processes start."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from compss_train._utils.validation import warn_user
from compss_train.data.block_passes import Batching, BlockPass, batch_sizes
from compss_train.data.remote_block import load_block
from compss_train.engines.calls import Failure
from compss_train.exceptions import DivergedError
from compss_train.model import devices
from compss_train.model.lr_schedule import make_schedule
from compss_train.model.measurements import Measured
from compss_train.model.training_spec import TrainingSpec
from compss_train.training import inference
from compss_train.training.build_arguments import BuildArguments
from compss_train.training.fit_of_epochs import FitOfEpochs
from compss_train.worker.inference import try_collate
from compss_train.worker.state import WorkerState
from compss_train.worker.train import Start, train
from compss_train.worker.work import Job, Work

FEW = 2
"""Samples that are tried before processes start; more only if they fail."""

MOST_WEIGHTS = 10**8
"""Larger networks are not tried: a copy and its optimizer would take too much memory here."""

FIRST_BATCH = "the first batch"
"""Describes the work on it in errors."""


class Trial(NamedTuple):
    """What is trained in this process, as in a task: the work of one worker, and its blocks."""

    job: Job
    work: Work
    values: Sequence[Any]


def try_fit(fit: FitOfEpochs) -> None:
    """Check a copy of the learning-rate schedule, and train the first batch on a device of here.

    For GPUs that only other nodes have this is the CPU, whose error is then a warning: some kernels
    need a GPU.
    """
    built = fit.session.model.built
    _check_schedule(fit, built)
    if not fit.data.counted:  # streams would be read whole
        return
    if not built.num_gpu or devices.accelerators():
        _train_first_batch(fit, devices.gpu(0) if built.num_gpu else devices.CPU)
        return
    try:
        _train_first_batch(fit, devices.CPU)
    except Exception as error:
        warn_user(
            "no batch was tried on a GPU, as torch sees none here; on the CPU the first "
            f"one fails: {error}"
        )


def _check_schedule(fit: FitOfEpochs, built: BuildArguments) -> None:
    """Raise the errors of a schedule that does not reach the end of the fit."""
    if built.schedule is None or built.lr_schedule is None:
        return
    spec = built.training_spec
    schedule = make_schedule(built.schedule, spec.net, spec.optimizer)
    if fit.checkpoint is None:
        schedule.load_state_dict(built.lr_schedule.state_dict())
    else:
        _, snapshot = fit.checkpoint
        schedule.load_state_dict(snapshot.schedule)
    workers = fit.session.num_workers
    schedule.prepare(fit.epochs.stop, fit.options.batches_of_worker(fit.data, workers), workers)


def _train_first_batch(fit: FitOfEpochs, device: str) -> None:
    """Train a copy of the model on one batch, on a device; raise the errors of a fit.

    Files that cannot be read, and are to be skipped, are followed by the next one.
    """
    data = fit.data
    job = _as_one_batch(_job(fit))
    spec = job.spec
    skipped_errors = [DivergedError] if spec.gradients.on_nan == "skip" else []
    for number, rows in enumerate(data.sizes):
        _, size = fit.options.batching.bounds(rows)[0]
        work = inference.first_batch(
            data, number, size, name=FIRST_BATCH, device=device, check_outputs=True
        )
        with suppress(*skipped_errors):
            measured = _trained(fit, Trial(job, work, data.load(number)))
            inference.warn_of_problems([measured], set())
            if not measured.samples:
                continue
        if spec.collate is not None:
            _try_prediction(fit, spec, work, number)
        return


def _try_prediction(fit: FitOfEpochs, spec: TrainingSpec, work: Work, block: int) -> None:
    """Warn if samples of a block cannot be collated without their targets."""
    inputs = fit.data.without_targets
    job = inference.one_batch(spec, inputs)
    work = replace(work, files=inputs.files_of([block]))
    try:
        with devices.IN_PROCESS:
            try_collate(job, fit.session.model.parameters, inputs.load(block), work)
    except Exception as error:
        notes = getattr(error, "__notes__", [])
        warn_user(" ".join([f"predict(x) would fail: {error}.", *notes]))


def _job(fit: FitOfEpochs) -> Job:
    """Return the job of the fit's tasks for this process: not compiled, as that takes long."""
    spec = replace(fit.session.model.built.training_spec, compile=None)
    job = fit.options.job(fit.data, spec, fit.session.model.seed)
    return replace(job, reader=inference.copied_reader(fit.data))


def _as_one_batch(job: Job) -> Job:
    """Return the same job for one batch, of samples in their order."""
    return replace(job, batching=Batching(1), row_seed=None, pools=None, buffer=None)


def _trained(fit: FitOfEpochs, trial: Trial) -> Measured:
    """Train a copy of the model in this process, and return its measurements."""
    model = fit.session.model
    state = WorkerState(None, model.seed)
    start = Start(model.parameters)
    with devices.IN_PROCESS:
        try:
            _, _, measured = train(trial.job, start, state, trial.work, trial.values)
        except DivergedError as error:
            fit.data.locate_nan(error)
            raise
    return measured


def find_mistakes(fit: FitOfEpochs) -> None:
    """Raise what the first batch would raise in a worker, before any process starts for it.

    Two samples are trained. Only if that fails, as some losses need more, a batch is, drawn as
    those of workers are, and its error is raised as if it came from one. What depends on the
    machine is left to the workers: GPUs, files, modules and memory; and NaN, as another batch may
    have none.
    """
    data = fit.data
    model = fit.session.model
    mixes_blocks = fit.options.mixes_blocks
    if not data.counted or (mixes_blocks and data.dataset is not None):
        return
    if model.number_weights > MOST_WEIGHTS:
        return
    if fit.callbacks.in_workers:  # their hooks may prepare what the network or the loss uses
        return
    if inference.is_for_tasks(data, model.built):
        return
    job = _job(fit)
    start, stop = fit.options.batching.bounds(data.sizes[0])[0]
    size = stop - start
    few_samples = inference.first_batch(
        data, 0, min(FEW, size), name=FIRST_BATCH, check_outputs=True
    )
    batch_of_workers = _batch_of_all_blocks if mixes_blocks else _batch_of_a_block
    trials: Sequence[Callable[[], Trial]] = (
        lambda: Trial(_as_one_batch(job), few_samples, data.load(0)),
        lambda: batch_of_workers(fit, job, few_samples, size),
    )
    for trial in trials:
        try:
            # The workers' warnings are shown. Filters are of the process, and other threads may be
            # here, too.
            with devices.IN_PROCESS, warnings.catch_warnings(action="ignore"):
                _trained(fit, trial())
            return
        except (OSError, ImportError, MemoryError, DivergedError):
            return
        except (Exception, SystemExit) as error:
            failure = Failure.of(error)
    raise failure.exception()


def _batch_of_a_block(fit: FitOfEpochs, job: Job, work: Work, size: int) -> Trial:
    """Return the training of a batch with samples of one block, in the order of its rows."""
    whole_block = BlockPass(0, fit.epochs.start, fit.data.sizes[0])
    work = replace(work, block_passes=(whole_block.part(0, size),))
    return Trial(job, work, fit.data.load(0))


def _batch_of_all_blocks(fit: FitOfEpochs, job: Job, work: Work, size: int) -> Trial:
    """Return the training of a batch with samples of all blocks.

    It has ``size`` samples in a total shuffle; pools and buffers cut a worker's passes together.
    """
    data = fit.data
    options = fit.options
    if options.order != "total":
        workers = min(data.shares(options.order), fit.session.num_workers)
        rows = data.number_samples // workers
        if options.merge.unit == "blocks":
            rows = min(rows, options.samples_between_merges(data.sizes, workers))
        passes = -(-rows * len(data.sizes) // data.number_samples)
        size = batch_sizes((BlockPass(0, 0, rows // passes),) * passes, options.batching)[0]
    generator = np.random.default_rng(fit.session.model.seed)
    numbers = generator.choice(data.number_samples, size, replace=False)
    work = replace(
        work,
        block_passes=(BlockPass(0, fit.epochs.start, size, numbers),),
        blocks=tuple(range(len(data.sizes))),
        starts=tuple(accumulate(data.sizes[:-1], initial=0)),
    )
    columns = data.columns.values()
    blocks = [load_block(block) for column in columns for block in column.blocks()]
    return Trial(_as_one_batch(job), work, blocks)
