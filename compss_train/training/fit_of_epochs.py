"""``FitOfEpochs``: the plan of a fit, whose arguments ``prepare_fit`` has checked."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from compss_train._utils.validation import warn_once
from compss_train.data import FileDataset
from compss_train.data.partitioning import ResumePoint, RoundPlan
from compss_train.model import parameters as params
from compss_train.model.class_weights import weights_in_order
from compss_train.model.net_optimizers import make_optimizer
from compss_train.model.training_loss import check_weightable
from compss_train.model.training_spec import TrainingSpec
from compss_train.training import data_checks, resuming
from compss_train.training.callback import Callback
from compss_train.training.callback_list import CallbackList, check_monitored
from compss_train.training.data_source import DataSource, as_data_source, check_same_coding
from compss_train.training.fit import FitOptions
from compss_train.training.inference import evaluate_first_batch, validation_source
from compss_train.training.merge import Merge
from compss_train.training.network_checks import check_outer_optimizer
from compss_train.training.resume_checks import compared_values
from compss_train.training.running_fit import Fit
from compss_train.training.session import Session
from compss_train.training.snapshot import Checkpoint, Progress
from compss_train.training.stopping import Stopping
from compss_train.worker.optimizer_state import check_averageable
from compss_train.worker.preparing import check_target


@dataclass(kw_only=True, eq=False)
class FitOfEpochs(Fit):
    """The plan of a fit of ``DistributedTrainer.fit``: everything that is known before a task runs.

    Nothing of it changes in the fit but ``reached``.
    """

    method = "fit"

    session: Session
    options: FitOptions
    """The options, with the batch size and the merge that suit the data."""
    data: DataSource
    epochs: range
    """The epochs of the fit, counted over all fits of the trainer."""
    reached: ResumePoint
    """Where the next round starts."""
    skipped: tuple[str, ...] = ()
    """Files that could not be read before the fit was interrupted."""
    checkpoint: Checkpoint | None = None
    """The checkpoint that the fit resumes from."""

    @property
    def asked(self) -> dict[str, Any]:
        """The options that determine the parameters, the data, and the file of a trace."""
        return {
            **self.options.determining,
            "data": self.data,
            "validation_data": self.validation,
            "profile": self._trace_file,
        }

    def example(self) -> DataSource | None:
        """Return the first inputs, or the files; ``None`` if reading them may be costly."""
        return self.data.without_targets.example()

    @property
    def _trace_file(self) -> str | None:
        """The file that a callback writes traces to, if any."""
        for callback in self.callbacks.callbacks:
            if type(callback).write_trace is not Callback.write_trace:
                return str(callback.writes_to())
        return None

    @property
    def progress(self) -> Progress:
        """What a later fit needs to continue, and to check that it has the same arguments."""
        return Progress(
            options=compared_values(self.options, self.data, self.session.model.built),
            sizes=self.data.sizes,
            first_epoch=self.epochs.start,
            reached=self.reached,
            fingerprint=self.data.fingerprint,
        )

    @property
    def remarks(self) -> list[str]:
        """Conversions that most users want, smaller batches than asked for, workers in turns."""
        options = self.options
        session = self.session
        sizes = self.data.sizes
        workers = session.num_workers
        remarks = [*self.data.remarks]
        largest_batch = max(sizes)
        source = f"any of {len(sizes)} blocks"
        if self.data.is_ray_data:
            source += f"; dataset.repartition({workers}) makes larger ones"
        if options.mixes_blocks:
            largest_batch = -(-sum(sizes) // workers)
            source = f"the share of each of {workers} workers"
        batch_size = options.batch_size
        if self.data.counted and batch_size is not None and batch_size > largest_batch:
            remarks.append(
                f"batches have {largest_batch} samples at most, not batch_size={batch_size}: "
                f"there are no more in {source}"
            )
        if session.engine_class.traits.asynchronous and 0 < session.slots < workers:
            remarks.append(
                f"{workers} workers take turns, as {session.slots} can train at a time: fewer "
                "take as long, and usually learn more in an epoch"
            )
        if options.preset == "auto":
            built = session.model.built
            facts = options.facts(
                self.data, workers, built.training_spec, scheduled=built.schedule is not None
            )
            remarks += options.auto_remarks(facts, self.data, self.epochs.stop)
        return remarks

    @property
    def rounds_left(self) -> RoundPlan:
        """The plan of the rounds that are left."""
        options = self.options
        model = self.session.model
        put_counts = None
        if options.buffer is not None and options.carries_buffers:
            put_counts = options.buffer.put_counts
        return RoundPlan(
            sizes=self.data.sizes,
            num_workers=self.session.num_workers,
            stop=self.epochs.stop,
            seed=model.seed,
            shuffle=options.order,
            batching=options.batching,
            merge_every=options.merge.every,
            merge_unit=options.merge.unit or "epochs",
            start=self.reached,
            first_round=len(model.history),
            put_counts=put_counts,
        )

    def load_into_model(self) -> None:
        """Let the model begin the fit, from its checkpoint if there is one.

        Raises ``ValueError`` if the schedule does not reach the end of the fit.
        """
        model = self.session.model
        model.resumed_from = None
        if self.checkpoint is not None:
            model.resumed_from, snapshot = self.checkpoint
            resuming.load(snapshot, self.session)
            self.callbacks.saved = snapshot.callbacks
        model.coding = self.data.coding
        if model.built.lr_schedule is not None:
            workers = self.session.num_workers
            batches = self.options.batches_of_worker(self.data, workers)
            model.built.lr_schedule.prepare(self.epochs.stop, batches, workers)


def prepare_fit(
    session: Session,
    x: Any,
    y: Any,
    options: FitOptions,
    callbacks: CallbackList,
    stopping: Stopping,
) -> FitOfEpochs:
    """Return the plan of a fit; check its options against data, network and checkpoint."""
    model = session.model
    spec = model.built.training_spec
    schedule = model.built.schedule
    checkpoint = None
    if options.resume is not None and options.resume is not False:
        checkpoint = resuming.find_checkpoint(options.resume, callbacks.callbacks)
    data = _training_data(session, x, y, options, checkpoint)
    progress = None if checkpoint is None else checkpoint.snapshot.progress
    options = options.for_data(
        data,
        session.num_workers,
        spec,
        scheduled=schedule is not None,
        saved=None if progress is None else progress.options,
    )
    if isinstance(spec.class_weight, dict):
        weights_in_order(spec.class_weight, data.classes)
    if data.structure.weighted and spec.training_step is None:
        check_weightable(spec.loss)
    validation = None
    if options.validation_data is not None:
        validation = _validation_data(session, options.validation_data, data)
    workers = min(data.shares(options.order), session.num_workers)
    _check_merge(options.merge, spec, workers)
    if options.merge.buffers is not None:
        session.buffer_rules(options.merge)  # raises if they do not suit the network
    options.merge.check_workers(workers)
    if callbacks.weighs:
        options.merge.check_merges_several()
    data_checks.check_options(options, data, session.num_workers, schedule)
    if schedule is not None and schedule.monitor is not None:
        check_monitored(
            schedule.monitor,
            spec.measures.names,
            [*spec.measures.whole],
            monitored_by="schedule=",
            validated=validation is not None,
            may_be_added=spec.training_step is not None or bool(callbacks.in_workers),
        )
    fit = FitOfEpochs(
        session=session,
        callbacks=callbacks,
        stopping=stopping,
        validation=validation,
        merge=options.merge,
        options=options,
        data=data,
        epochs=range(model.epochs, model.epochs + options.num_epochs),
        reached=ResumePoint(model.epochs),
        checkpoint=checkpoint,
    )
    if checkpoint is not None:
        fit = _resumed(fit, checkpoint)
    data_checks.check_epochs(options, fit.epochs, blocks=len(data.sizes))
    begun = model.parameters if checkpoint is None else checkpoint.snapshot.parameters
    params.check_finite(begun, spec.net)
    for note in data.notes:
        warn_once(note)
    if callbacks.unseen_changes is not None:
        callbacks.unseen_changes.watch("dataset", data.reader)
        if validation is not None:
            callbacks.unseen_changes.watch("validation_data", validation.reader)
    return fit


def _training_data(
    session: Session, x: Any, y: Any, options: FitOptions, checkpoint: Checkpoint | None
) -> DataSource:
    """Return the data of a fit, in the blocks of the fit that it resumes, if any."""
    model = session.model
    spec = model.built.training_spec
    progress = None if checkpoint is None else checkpoint.snapshot.progress
    blocks = session.num_workers if progress is None else len(progress.sizes)
    if isinstance(x, FileDataset) and options.order != "partial":
        x = x.cut(blocks)
    data = as_data_source(x, y, blocks, floats=spec.float_dtype, engine=session.engine_class.name)
    if data.reader is not None:
        model.check_reader(data.reader)
    if options.sample_weight is not None or data.dataset is not None:
        data = data.weighted(options.sample_weight)
    if checkpoint is None:
        check_same_coding(model.coding, data, "this fit's data")
    if spec.collate is None and data.structure.ragged:
        _check_targets(data)
    return data


def _validation_data(session: Session, validation_data: Any, data: DataSource) -> DataSource:
    """Return the source of the validation data; evaluates the first batch."""
    validation = validation_source(session, validation_data)
    check_same_coding(data.coding, validation, "the validation data")
    evaluate_first_batch(validation, session.model)
    return validation


def _resumed(fit: FitOfEpochs, checkpoint: Checkpoint) -> FitOfEpochs:
    """Return a fit from its checkpoint on; raises ``ValueError`` if that is of another fit."""
    options = fit.options
    progress, skipped = resuming.check(checkpoint, fit.progress, options, fit.session, fit.data)
    epochs = range(progress.first_epoch, progress.first_epoch + options.num_epochs)
    return replace(fit, epochs=epochs, reached=progress.reached, skipped=skipped)


def _check_targets(data: DataSource) -> None:
    """Raise ``TypeError`` for targets of different lengths that cannot be padded."""
    inputs = data.without_targets.columns
    for name, column in data.columns.items():
        if name not in inputs:
            check_target(next(column.blocks()))


def _check_merge(merge: Merge, spec: TrainingSpec, workers: int) -> None:
    """Raise the errors of a merge that the network or its optimizer does not support."""
    if merge.outer_optimizer is not None:
        check_outer_optimizer(merge.outer_optimizer, spec.net)
    if merge.kind == "parameter_server" and merge.averaging is not None:
        raise ValueError(
            f"averaging={merge.averaging!r} with Merge('parameter_server') is for fit_online: "
            "leave it out, or take kind 'synchronous' or 'commutative'"
        )
    if merge.optimizer_state == "average":
        check_averageable(spec)
    keeps_states = merge.optimizer_state in (None, "keep")
    if keeps_states and workers > 1 and spec.closure_use == "evaluates":
        _warn_of_curvature(spec)


def _warn_of_curvature(spec: TrainingSpec) -> None:
    """Warn if workers would go on with states of LBFGS."""
    if isinstance(make_optimizer(spec.optimizer, spec.net), torch.optim.LBFGS):
        warn_once(
            "the workers keep the states of LBFGS, which describe the steps of one worker: these "
            "do not lead to the merged parameters, and the fit may diverge; give "
            'merge=Merge(optimizer_state="reset")'
        )
