"""Planning a fit: checks of its arguments against each other, the data, the network and the checkpoint."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from compss_train._utils.validation import warn_once, warn_user
from compss_train.data import FileDataset, partitioning
from compss_train.exceptions import DivergedError
from compss_train.model import devices, losses
from compss_train.model import parameters as params
from compss_train.model.schedule import make_schedule
from compss_train.training import build_arguments, data_source, inference, resuming
from compss_train.training.callback import CallbackList
from compss_train.training.fit import FitOptions
from compss_train.training.rounds import FitOfEpochs
from compss_train.training.session import Session, TrainedModel
from compss_train.training.stopping import Stopping
from compss_train.worker.inference import evaluate
from compss_train.worker.state import WorkerState, check_averageable
from compss_train.worker.train import train


def plan_fit(
    session: Session, x: Any, y: Any, options: FitOptions, callbacks: CallbackList, stopping: Stopping
) -> FitOfEpochs:
    """Return the fit with these options; check them against the data, the network and the checkpoint."""
    model, workers = session.model, session.num_workers
    spec, schedule = model.built.training_spec, model.built.schedule
    checkpoint = resuming.find_checkpoint(options.resume, callbacks.callbacks)
    progress = None if checkpoint is None else checkpoint[1].progress
    blocks = workers if progress is None else len(progress.sizes)  # as in the fit to resume
    if isinstance(x, FileDataset) and options.order != "partial":
        x = x.cut(blocks)
    data = data_source.as_data_source(x, y, blocks, floats=spec.float_dtype).weighted(options.sample_weight)
    data_source.check_same_coding(model.coding, data, "this fit's data")
    asked = options.with_batch_size(data.batch_size)
    chosen = asked.with_preset(data.sizes, workers, spec, scheduled=schedule is not None)
    if data.structure.weighted and spec.training_step is None:
        losses.check_weightable(spec.loss)
    validation = validation_source(session, options.validation_data)
    if validation is not None:
        data_source.check_same_coding(data.coding, validation, "the validation data")
        _evaluate_first_batch(validation, model)
    build_arguments.check_outer_optimizer(chosen.merge.outer_optimizer, spec.net)
    if chosen.merge.optimizer_state == "average":
        check_averageable(spec.net, spec.optimizer)
    steps = 1 if schedule is None else schedule.steps
    chosen.check_data(data, workers, 2 if schedule and schedule.unit == "batches" else steps)
    start = FitOfEpochs(
        session=session,
        callbacks=callbacks,
        stopping=stopping,
        validation=validation,
        options=chosen,
        data=data,
        first_epoch=model.epochs,
        reached=partitioning.ResumePoint(model.epochs),
        checkpoint=checkpoint,
    )
    fit = resuming.resumed(start, session)
    chosen.check_epochs(fit.epochs, blocks=len(data.sizes))
    params.check_finite(model.parameters if checkpoint is None else checkpoint[1].parameters)
    data.warn_of_idle_workers(workers, chosen.order)
    for note in data.notes:
        warn_once(note)
    return fit


def validation_source(session: Session, validation_data: Any) -> data_source.DataSource | None:
    """Return the source of ``validation_data``; ``TypeError`` unless it is (x, y), files, a data set or None."""
    if validation_data is None:
        return None
    spec = session.model.built.training_spec
    spec.check_evaluable()
    pair = (validation_data, None) if data_source.holds_targets(validation_data) else validation_data
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(
            f"validation_data={type(validation_data).__name__}: give a pair (x, y), with y=None if x is its "
            "own target, a FileDataset, a data set or a DataLoader"
        )
    return data_source.as_data_source(pair[0], pair[1], session.num_workers, floats=spec.float_dtype)


def try_fit(fit: FitOfEpochs, model: TrainedModel) -> None:
    """Check a new copy of the learning-rate schedule, and train the first batch on a device that is here.

    For GPUs that only other nodes have this is the CPU, whose error is then a warning: some kernels need a GPU.
    """
    built = model.built
    if built.schedule is not None and built.lr_schedule is not None:
        spec = built.training_spec
        schedule = make_schedule(built.schedule, spec.net, spec.optimizer)
        saved = built.lr_schedule.state_dict() if fit.checkpoint is None else fit.checkpoint[1].schedule
        schedule.load_state_dict(saved)
        schedule.prepare(fit.epochs.stop, fit.options.batches_of_worker(fit.data, fit.session.num_workers))
    if not fit.data.counted:  # streams would be read whole
        return
    if not built.num_gpu or devices.accelerators():
        _train_first_batch(fit, model, devices.gpu(0) if built.num_gpu else devices.CPU)
        return
    try:
        _train_first_batch(fit, model, devices.CPU)
    except Exception as error:
        warn_user(f"no batch was tried on a GPU, as torch sees none here; on the CPU the first one fails: {error}")


def _evaluate_first_batch(data: data_source.DataSource, model: TrainedModel) -> None:
    """Evaluate a copy of the model on one batch of the validation data, in this process on the CPU.

    Streams are left out, as some can be read once only. ``FitOfEpochs`` checks what only tasks can evaluate.
    """
    if data.is_stream or inference.is_for_tasks(data, model.built):
        return
    work = inference.first_batch(data, 0, inference.batch_size_for(data), task=inference.VALIDATION)
    spec = replace(model.built.training_spec, sample_reader=data.reader)
    with devices.IN_PROCESS:
        evaluate(spec, model.parameters, data.load(0), [work])


def _train_first_batch(fit: FitOfEpochs, model: TrainedModel, device: str) -> None:
    """Train a copy of the model on one batch, in this process on a device; raise the errors of a fit."""
    data, options = fit.data, fit.options
    # Compiling would take long.
    spec = replace(model.built.training_spec, sample_reader=data.reader, compile=None)
    skipped_errors = [DivergedError] if spec.gradients.on_nan == "skip" else []
    for number, rows in enumerate(data.sizes):
        _, size = options.batching.bounds(rows)[0]
        task = "the first batch"
        work = inference.first_batch(data, number, size, task=task, device=device, check_outputs=True)
        with suppress(*skipped_errors), data.named_nan(), devices.IN_PROCESS:
            measured = train(
                spec, model.parameters, WorkerState(None, model.seed), work, data.load(number)
            ).measured
            inference.warn_of_problems([measured], set())
            if not measured.samples:
                continue  # a file that cannot be read and is skipped
        return
