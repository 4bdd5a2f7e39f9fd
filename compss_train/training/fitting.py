"""``FittingTrainer``: plans a fit from its arguments, checks it, and runs its rounds."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from compss_train._utils.validation import check_count, warn_user
from compss_train.data import FileDataset
from compss_train.data.block_passes import BlockPass
from compss_train.data.order import Batching
from compss_train.data.partitioning import RoundPlan
from compss_train.exceptions import DivergedError
from compss_train.model import parameters as params
from compss_train.model.loss_weights import check_weightable
from compss_train.model.schedule import make_schedule
from compss_train.training.build_arguments import check_outer_factory
from compss_train.training.callback import CallbackList
from compss_train.training.data_source import (
    DataSource,
    as_data_source,
    batch_size_of,
    check_same_classes,
    holds_targets,
)
from compss_train.training.fit_options import FitOptions
from compss_train.training.fit_state import ActiveFit, FitProgress
from compss_train.training.lr_finder import LearningRates, growing_rates, shard_of_steps
from compss_train.training.merge import Merge, MergeLike
from compss_train.training.merging import make_merge
from compss_train.training.presets import Situation, with_preset
from compss_train.training.resuming import Checkpoint, ResumableTrainer
from compss_train.training.rounds import Record, RoundRunner
from compss_train.training.session import Session
from compss_train.training.stopping import Stopping
from compss_train.training.task_submission import warn_of_first_batch
from compss_train.training.worker import Shard, WorkerState, losses_by_rate, train
from compss_train.training.worker.moments import check_averageable


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """The arguments of a fit after their checks."""

    options: FitOptions
    data: DataSource
    validation: DataSource | None
    callbacks: CallbackList
    stopping: Stopping
    checkpoint: Checkpoint | None
    """The checkpoint that the fit resumes from."""
    progress: FitProgress
    """Where the fit starts."""

    @property
    def last_epoch(self) -> int:
        """The number of epochs at the end of the fit, counted over all fits of the trainer."""
        return self.progress.first_epoch + self.options.num_epochs


class FittingTrainer(ResumableTrainer):
    """A trainer that runs the rounds of fits; ``DistributedTrainer.fit`` documents their options."""

    def _fit_options(
        self,
        x: Any,
        y: Any,
        *,
        num_epochs: int,
        batch_size: int | None,
        num_batches_per_worker: int | None,
        merge: MergeLike,
        **given: Any,
    ) -> FitOptions:
        """Return the options, with those of the preset and defaults for those that are ``None``."""
        if batch_size is None and num_batches_per_worker is None:
            batch_size = batch_size_of(x)
        asked = Merge.of(merge)

        def situation() -> Situation:
            spec = self._require_built().training_spec
            sizes = as_data_source(x, y, self.num_workers).sizes
            return Situation.of(self.num_workers, sizes, spec.net, spec.optimizer)

        check_count("num_epochs", num_epochs)
        batches = Batching(num_batches_per_worker, batch_size)
        chosen, batch_size = with_preset(asked, situation, num_epochs=num_epochs, batches=batches)
        return FitOptions(
            num_epochs=num_epochs,
            batch_size=batch_size,
            num_batches_per_worker=num_batches_per_worker,
            merge=chosen,
            preset=asked.preset,
            **given,
        )

    def _plan_fit(
        self,
        *,
        x: Any,
        y: Any,
        options: FitOptions,
        callbacks: CallbackList,
        validation_data: Any,
        resume: Any,
        max_time: float | timedelta | None,
        sample_weight: Any,
    ) -> FitPlan:
        """Check the arguments of a fit against each other, the data and the checkpoint; changes nothing."""
        built = self._require_built()
        stopping = Stopping(max_time, self._clock, self._engine_class.time_left())
        checkpoint = self._find_checkpoint(resume, callbacks)
        floats = built.training_spec.float_dtype
        data = as_data_source(x, y, self._number_blocks(checkpoint), floats=floats).weighted(sample_weight)
        if data.structure.weighted and built.training_spec.training_step is None:
            check_weightable(built.training_spec.loss)
        validation = None if validation_data is None else self._validation_source(validation_data)
        if validation is not None:
            check_same_classes(data, validation)
        if options.merge.outer_optimizer is not None:
            check_outer_factory(built.training_spec.net, options.merge.outer_optimizer)
        if options.merge.optimizer_state == "average":
            check_averageable(built.training_spec.net, built.training_spec.optimizer)
        data.check_options(options, 1 if built.schedule is None else built.schedule.steps)
        options.check_lengths(ragged=data.structure.ragged, bucketed=data.structure.bucketed)
        options.check_blocks(data.sizes, self.num_workers, x if isinstance(x, FileDataset) else None)
        progress = self._progress(checkpoint, options, data)
        epochs = range(progress.first_epoch, progress.first_epoch + options.num_epochs)
        options.check_epochs(epochs, blocks=len(data.sizes))
        params.check_finite(self._parameters if checkpoint is None else checkpoint[1].parameters)
        data.warn_of_idle_workers(self.num_workers, options.order)
        for note in data.notes:
            warn_user(note)
        return FitPlan(
            options=options,
            data=data,
            validation=validation,
            callbacks=callbacks,
            stopping=stopping,
            checkpoint=checkpoint,
            progress=progress,
        )

    def _validation_source(self, validation_data: Any) -> DataSource:
        self._require_built().training_spec.check_evaluable()
        pair = (validation_data, None) if holds_targets(validation_data) else validation_data
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                f"validation_data={type(validation_data).__name__}: give a pair (x, y), with y=None if x is its "
                "own target, a FileDataset, a data set or a DataLoader"
            )
        floats = self._require_built().training_spec.float_dtype
        return as_data_source(pair[0], pair[1], self.num_workers, floats=floats)

    def _check_plan(self, plan: FitPlan) -> None:
        """Check a new copy of the learning-rate schedule, and train the first batch if the model is for the CPU."""
        built = self._require_built()
        if built.schedule is not None and built.lr_schedule is not None:
            spec = built.training_spec
            schedule = make_schedule(built.schedule, spec.net, spec.optimizer)
            saved = built.lr_schedule.state_dict() if plan.checkpoint is None else plan.checkpoint[1].schedule
            schedule.load_state_dict(saved)
            schedule.prepare(plan.last_epoch)
        if not built.num_gpu and plan.data.counted:  # a GPU may be elsewhere; streams would be read whole
            self._train_first_batch(plan.data, plan.options)

    def _train_first_batch(self, data: DataSource, options: FitOptions) -> None:
        """Train a copy of the model on one batch, in this process and on the CPU; raises what a fit would raise."""
        # Compiling would take long.
        spec = replace(self._require_built().training_spec, samples=data.reader, compile=None)
        skipped_errors = [DivergedError] if spec.gradients.on_nan == "skip" else []
        plain = replace(options, shuffle=None, shuffle_block_data=False, buffer=None)
        one_batch = replace(plain, num_batches_per_worker=1, batch_size=None)
        for number, rows in enumerate(data.sizes):
            _, size = options.batching.bounds(rows)[0]
            shard = Shard(
                options=one_batch,
                assignment=(BlockPass(number, 0, size),),
                blocks=(number,),
                starts=(0,),
                name="the first batch",
                structure=data.structure,
                check_outputs=True,
            )
            with suppress(*skipped_errors):
                state = WorkerState(None, self.seed)
                measured = train(spec, self._parameters, state, *data.load(number), shard, "cpu")[-1]
                warn_of_first_batch([measured])
                if not measured["samples"]:
                    continue  # a file that cannot be read and is skipped
            return

    def find_lr(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int = 100,
        lowest: float = 1e-6,
        highest: float = 10.0,
        steps: int = 100,
    ) -> LearningRates:
        """Return the losses of one worker whose learning rate grows with each batch, and a rate to begin with.

        This is the range test of Smith 2017: from the trainer's parameters, which stay as they are, one worker
        trains ``steps`` batches in a task, with learning rates from ``lowest`` to ``highest``, until the loss
        diverges. ``result.suggestion`` is where the loss falls fastest, for one worker and these batches;
        ``result.plot("rates.png")`` draws it. Data are as in ``fit``.

        Raises ``ValueError`` for a range that is none, and for unsuitable data.
        """
        built = self._require_built()
        self._require_idle("find_lr")
        rates = growing_rates(lowest, highest, steps)
        data = as_data_source(x, y, self.num_workers, floats=built.training_spec.float_dtype)
        shard = shard_of_steps(data, steps, batch_size, self.seed)
        with self._inference(built, data, batch_size) as (inference, parameters):
            ref = inference.submit(losses_by_rate, parameters, shard.blocks, shard, rates)
            losses = inference.engine.fetch([ref])[0]
            inference.engine.delete([ref])
        return LearningRates(rates[: len(losses)], losses)

    def trained_samples(self) -> int | None:
        """Return how many samples workers have reported since the engine started; for displays of progress.

        Repeated tasks count again. ``None`` if the engine does not know it, as that of COMPSs.
        """
        session = self._session
        return None if session is None else session.engine.trained_samples()

    def _round_plan(self, progress: FitProgress) -> RoundPlan:
        return progress.options.round_plan(
            progress.data.sizes,
            self.num_workers,
            self.seed,
            progress.first_epoch,
            len(self.history),
            progress.reached,
        )

    def _run_rounds(self, session: Session, plan: FitPlan, active: ActiveFit, round_plan: RoundPlan) -> None:
        """Run the rounds of a fit, and set parameters, ``stopped`` and the history."""
        built = self._require_built()
        callbacks = plan.callbacks
        workers = session.worker_group(
            plan.data, plan.options, self.seed, built.lr_schedule, callbacks.in_workers, callbacks.traced
        )
        validation = None if plan.validation is None else session.inference(plan.validation)
        merge = make_merge(
            plan.options,
            engine=session.engine,
            initial=self._parameters,
            state=session.merge_state.published(session.engine),
            num_workers=self.num_workers,
            names=session.names,
        )
        rounds = RoundRunner(
            engine=session.engine,
            workers=workers,
            merge=merge,
            measures=built.training_spec.measures,
            validation=validation,
            progress=plan.progress,
            stopping=plan.stopping,
            callbacks=plan.callbacks,
            on_record=self._recorder(plan.callbacks),
        )
        active.running = rounds
        try:
            with session.engine.watched(self.worker_timeout):
                self._parameters = params.copy_of(rounds.run(round_plan.rounds(rounds.is_over)) or self._parameters)
            self.stopped = rounds.stopped
        except BaseException:
            self._parameters = params.copy_of(rounds.newest() or self._parameters)
            self._averaged = rounds.newest_average()
            raise
        finally:
            active.running = None
            merge.stop()
        session.merge_state = rounds.merge_state
        self._averaged = rounds.averaged()
        merge.close()
        workers.data.delete()
        if validation is not None:
            validation.data.delete()

    def _recorder(self, callbacks: CallbackList) -> Callable[[Record], None]:
        """Return the function that adds a record to the history and passes it to the callbacks."""

        def record_round(record: Record) -> None:
            self.history.append(record)
            self._epochs = record["epoch"]
            callbacks.round_end(record)

        return record_round
