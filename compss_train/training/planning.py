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
from compss_train.training.description import FitFacts
from compss_train.training.fit import FitOptions
from compss_train.training.rounds import FitOfEpochs
from compss_train.training.session import Session, TrainedModel
from compss_train.training.stopping import Stopping
from compss_train.worker.batches import check_target
from compss_train.worker.inference import evaluate, try_collate
from compss_train.worker.state import WorkerState, check_averageable
from compss_train.worker.train import train


def plan_fit(
    session: Session, x: Any, y: Any, options: FitOptions, callbacks: CallbackList, stopping: Stopping
) -> FitOfEpochs:
    """Return the fit with these options; check them against the data, the network and the checkpoint."""
    model, workers = session.model, session.num_workers
    spec, schedule = model.built.training_spec, model.built.schedule
    given = options.resume is not None and options.resume is not False
    checkpoint = resuming.find_checkpoint(options.resume, callbacks.callbacks) if given else None
    progress = None if checkpoint is None else checkpoint[1].progress
    blocks = workers if progress is None else len(progress.sizes)  # as in the fit to resume
    if isinstance(x, FileDataset) and options.order != "partial":
        x = x.cut(blocks)
    data = data_source.as_data_source(x, y, blocks, floats=spec.float_dtype)
    if options.sample_weight is not None or data.dataset is not None:
        data = data.weighted(options.sample_weight)
    if data.coding:
        data_source.check_same_coding(model.coding, data, "this fit's data")
    if spec.collate is None and data.structure.ragged:
        inputs = data.without_targets.columns
        for name, column in data.columns.items():
            if name not in inputs:
                check_target(next(column.blocks()))
    chosen = options.for_data(data, workers, spec, scheduled=schedule is not None)
    if data.structure.weighted and spec.training_step is None:
        losses.check_weightable(spec.loss)
    validation = None
    if options.validation_data is not None:
        validation = validation_source(session, options.validation_data)
        data_source.check_same_coding(data.coding, validation, "the validation data")
        _evaluate_first_batch(validation, model)
    if chosen.merge.outer_optimizer is not None:
        build_arguments.check_outer_optimizer(chosen.merge.outer_optimizer, spec.net)
    if chosen.merge.optimizer_state == "average":
        check_averageable(spec.net, spec.optimizer)
    steps = 1 if schedule is None else schedule.steps
    chosen.check_data(data, workers, 2 if schedule and schedule.unit == "batches" else steps)
    fit = FitOfEpochs(
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
    if checkpoint is not None:
        fit = resuming.resumed(fit, checkpoint, session)
    chosen.check_epochs(fit.epochs, blocks=len(data.sizes))
    params.check_finite(model.parameters if checkpoint is None else checkpoint[1].parameters)
    data.warn_of_idle_workers(workers, chosen.order)
    for note in data.notes:
        warn_once(note)
    return fit


def begin(fit: FitOfEpochs, **described: object) -> None:
    """Let the model begin a fit, from its checkpoint if there is one; describe it, with other values by name.

    Raises ``ValueError`` if the schedule does not reach the end of the fit.
    """
    session, model = fit.session, fit.session.model
    model.resumed_from = None
    if fit.checkpoint is not None:
        model.resumed_from, snapshot = fit.checkpoint
        resuming.load(snapshot, session)
        fit.callbacks.saved = snapshot.callbacks
    if model.built.lr_schedule is not None:
        batches = fit.options.batches_of_worker(fit.data, session.num_workers)
        model.built.lr_schedule.prepare(fit.epochs.stop, batches)
    validation = None if fit.validation is None else fit.validation.facts
    data = {"data": fit.data.facts, "validation_data": validation, **described}
    callbacks = [*map(type, fit.callbacks.all)]
    model.last_fit = FitFacts(method="fit", options=fit.options.determining, data=data, callbacks=callbacks)
    model.coding = fit.data.coding


def validation_source(session: Session, validation_data: Any) -> data_source.DataSource:
    """Return the source of ``validation_data``; raise ``TypeError`` unless it is (x, y), files or a data set."""
    spec = session.model.built.training_spec
    spec.check_evaluable()
    pair = (validation_data, None) if data_source.holds_targets(validation_data) else validation_data
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(
            f"validation_data={type(validation_data).__name__}: give a pair (x, y), with y=None if x is its "
            "own target, a FileDataset, a data set or a DataLoader"
        )
    return data_source.as_data_source(pair[0], pair[1], session.num_workers, floats=spec.float_dtype)


def try_fit(fit: FitOfEpochs) -> None:
    """Check a new copy of the learning-rate schedule, and train the first batch on a device that is here.

    For GPUs that only other nodes have this is the CPU, whose error is then a warning: some kernels need a GPU.
    """
    model, built = fit.session.model, fit.session.model.built
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
    work = inference.first_batch(data, 0, inference.batch_size_for(data), name=inference.VALIDATION)
    job = inference.one_batch(model.built.training_spec, data)
    with devices.IN_PROCESS:
        evaluate(job, model.parameters, data.load(0), [work])


def _train_first_batch(fit: FitOfEpochs, model: TrainedModel, device: str) -> None:
    """Train a copy of the model on one batch, in this process on a device; raise the errors of a fit."""
    data, options = fit.data, fit.options
    # Compiling would take long.
    spec = replace(model.built.training_spec, compile=None)
    job = inference.one_batch(spec, data)
    kept = devices.kept_random_state
    skipped_errors = [DivergedError] if spec.gradients.on_nan == "skip" else []
    for number, rows in enumerate(data.sizes):
        _, size = options.batching.bounds(rows)[0]
        work = inference.first_batch(data, number, size, name="the first batch", device=device, check_outputs=True)
        with suppress(*skipped_errors), data.locate_nan_on_error(), devices.IN_PROCESS, kept(device):
            measured = train(job, model.parameters, WorkerState(None, model.seed), work, data.load(number)).measured
            inference.warn_of_problems([measured], set())
            if not measured.samples:
                continue  # a file that cannot be read and is skipped
        if spec.collate is not None:
            inputs = data.without_targets
            job, work = inference.one_batch(spec, inputs), work._replace(files=inputs.files_of([number]))
            try:
                with devices.IN_PROCESS:
                    try_collate(job, model.parameters, inputs.load(number), work)
            except Exception as error:
                warn_user(" ".join([f"predict(x) would fail: {error}.", *getattr(error, "__notes__", [])]))
        return
