"""Planning a fit: checks of its arguments against each other, the data, the network and the checkpoint."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from compss_train._utils.validation import check_count, warn_user
from compss_train.data import block_passes, order, partitioning
from compss_train.exceptions import DivergedError
from compss_train.model import loss_weights
from compss_train.model import parameters as params
from compss_train.model.schedule import make_schedule
from compss_train.training import data_source, fit_options, inference, resuming
from compss_train.training.build_arguments import check_outer_factory
from compss_train.training.callback import CallbackList
from compss_train.training.merge import Merge, MergeLike, with_preset
from compss_train.training.stopping import Stopping
from compss_train.training.trained_model import FitOfEpochs, TrainedModel
from compss_train.training.workplace import Workplace
from compss_train.worker import Reading, Step, Work, WorkerState, train
from compss_train.worker.state import check_averageable


def planned_fit(
    model: TrainedModel,
    workplace: Workplace,
    callbacks: CallbackList,
    clock: Callable[[], float],
    *,
    x: Any,
    y: Any,
    num_epochs: int,
    batch_size: int | None,
    num_batches_per_worker: int | None,
    merge: MergeLike,
    sample_weight: Any,
    validation_data: Any,
    resume: Any,
    max_time: float | timedelta | None,
    **others: Any,
) -> FitOfEpochs:
    """Check the arguments of a fit against each other, the data and the checkpoint; changes nothing."""
    built, workers = model.built, workplace.num_workers
    spec = built.training_spec
    stopping = Stopping(max_time, clock, workplace.engine_class.time_left())
    check_count("num_epochs", num_epochs)
    if batch_size is None and num_batches_per_worker is None:
        batch_size = data_source.batch_size_of(x)
    fit_options.check_batches(num_batches_per_worker, batch_size)
    checkpoint = resuming.find_checkpoint(resume, callbacks.callbacks)
    progress = None if checkpoint is None else checkpoint[1].progress
    blocks = workers if progress is None else len(progress.sizes)  # as in the fit to resume
    data = data_source.as_data_source(x, y, blocks, floats=spec.float_dtype).weighted(sample_weight)
    asked = Merge.of(merge)
    chosen, batch_size = with_preset(
        asked,
        data.sizes,
        num_workers=workers,
        num_epochs=num_epochs,
        batches=order.Batching(num_batches_per_worker, batch_size),
        net=spec.net,
        optimizer=spec.optimizer,
    )
    options = fit_options.FitOptions(
        num_epochs=num_epochs,
        batch_size=batch_size,
        num_batches_per_worker=num_batches_per_worker,
        merge=chosen,
        preset=asked.preset,
        **others,
    )
    if data.structure.weighted and spec.training_step is None:
        loss_weights.check_weightable(spec.loss)
    validation = None if validation_data is None else validation_source(model, workers, validation_data)
    if validation is not None:
        data_source.check_same_classes(data, validation)
    if options.merge.outer_optimizer is not None:
        check_outer_factory(spec.net, options.merge.outer_optimizer)
    if options.merge.optimizer_state == "average":
        check_averageable(spec.net, spec.optimizer)
    options.check_data(data, workers, 1 if built.schedule is None else built.schedule.steps)
    start = FitOfEpochs(
        callbacks=callbacks,
        stopping=stopping,
        validation=validation,
        options=options,
        data=data,
        first_epoch=model.epochs,
        reached=partitioning.Position(model.epochs),
        checkpoint=checkpoint,
    )
    fit = resuming.resumed(start, model, workplace)
    options.check_epochs(fit.epochs, blocks=len(data.sizes))
    params.check_finite(model.parameters if checkpoint is None else checkpoint[1].parameters)
    data.warn_of_idle_workers(workers, options.order)
    for note in data.notes:
        warn_user(note)
    return fit


def validation_source(model: TrainedModel, num_workers: int, validation_data: Any) -> data_source.DataSource:
    """Return the source of ``validation_data``; ``TypeError`` for anything but (x, y), files and data sets."""
    spec = model.built.training_spec
    spec.check_evaluable()
    pair = (validation_data, None) if data_source.holds_targets(validation_data) else validation_data
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(
            f"validation_data={type(validation_data).__name__}: give a pair (x, y), with y=None if x is its "
            "own target, a FileDataset, a data set or a DataLoader"
        )
    return data_source.as_data_source(pair[0], pair[1], num_workers, floats=spec.float_dtype)


def try_fit(fit: FitOfEpochs, model: TrainedModel) -> None:
    """Check a new copy of the learning-rate schedule, and train the first batch if the model is for the CPU."""
    built = model.built
    if built.schedule is not None and built.lr_schedule is not None:
        spec = built.training_spec
        schedule = make_schedule(built.schedule, spec.net, spec.optimizer)
        saved = built.lr_schedule.state_dict() if fit.checkpoint is None else fit.checkpoint[1].schedule
        schedule.load_state_dict(saved)
        schedule.prepare(fit.epochs.stop)
    if not built.num_gpu and fit.data.counted:  # a GPU may be elsewhere; streams would be read whole
        _train_first_batch(fit, model)


def _train_first_batch(fit: FitOfEpochs, model: TrainedModel) -> None:
    """Train a copy of the model on one batch, in this process on the CPU; raise the errors of a fit."""
    data, options = fit.data, fit.options
    # Compiling would take long.
    spec = replace(model.built.training_spec, samples=data.reader, compile=None)
    skipped_errors = [DivergedError] if spec.gradients.on_nan == "skip" else []
    for number, rows in enumerate(data.sizes):
        _, size = options.batching.bounds(rows)[0]
        values, given = data.load(number)
        reading = Reading(batching=order.Batching(1), structure=data.structure, **given)
        passes = (block_passes.BlockPass(number, 0, size),)
        work = Work(passes, reading, Step(check_outputs=True), task="the first batch")
        with suppress(*skipped_errors):
            measured = train(spec, model.parameters, WorkerState(None, model.seed), work, values).measured
            inference.warn_of_double_softmax([measured])
            if not measured.samples:
                continue  # a file that cannot be read and is skipped
        return
