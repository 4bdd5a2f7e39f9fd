"""``FitOfEpochs``: submits its rounds a little ahead, collects their measurements, and records the
history.
"""

import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import chain
from typing import Any

from compss_train._utils.validation import warn_once, warn_user
from compss_train.data import FileDataset
from compss_train.data.partitioning import ResumePoint, Round, RoundPlan, ranges_for_costs, singles
from compss_train.engines import Ref
from compss_train.exceptions import EngineClosedError
from compss_train.model import losses
from compss_train.model import parameters as params
from compss_train.model.metrics import Measured
from compss_train.reports.records import Record, per_second
from compss_train.training import resuming
from compss_train.training.build_arguments import check_outer_optimizer
from compss_train.training.callback import Callback, CallbackList
from compss_train.training.checkpoints import Checkpoint, Progress
from compss_train.training.data_source import (
    DataSource,
    PublishedData,
    as_data_source,
    check_same_coding,
)
from compss_train.training.fit import FitOptions
from compss_train.training.inference import (
    VALIDATION,
    Inference,
    evaluate_first_batch,
    is_for_tasks,
    skipped_batches,
    validation_source,
    warn_of_problems,
)
from compss_train.training.merging.on_arrival import CommutativeMerger, ServerMerger
from compss_train.training.merging.quorum import QuorumMerger
from compss_train.training.merging.synchronous import (
    Merger,
    RoundWorkers,
    SubmittedRound,
    SynchronousMerger,
)
from compss_train.training.running_fit import Fit
from compss_train.training.session import Session
from compss_train.training.stopping import TICK, Stopping
from compss_train.training.training_state import (
    NOTHING_KEPT,
    MergeState,
    States,
    TrainingState,
    fetch_states,
    state_refs,
)
from compss_train.worker.gpu_rows import rows_on_gpus
from compss_train.worker.preparing import check_target
from compss_train.worker.state import check_averageable
from compss_train.worker.work import Residency

_LOG = logging.getLogger(__name__)

MERGE_SECONDS = 1.0
"""Seconds that an interrupted fit waits for the merge of a trained round."""

IDLE_SECONDS = 30.0
"""Seconds without a pass after which a process removes the rows of a fit from its GPUs."""

PLAIN = "val_"
AVERAGED = "val_averaged_"
"""Prefixes of measures on the validation data: with the global parameters, and with their
average.
"""


@dataclass(kw_only=True, eq=False)
class FitOfEpochs(Fit):
    """A fit of ``DistributedTrainer.fit``: its checked arguments, its progress, and its rounds when
    it runs.

    Rounds are submitted a little ahead; their records are added to the history of the model.
    """

    method = "fit"
    leaves_processes = True

    session: Session
    options: FitOptions
    data: DataSource
    epochs: range
    """The epochs of the fit, counted over all fits of the trainer."""
    reached: ResumePoint
    """Where the next round starts."""
    skipped: tuple[str, ...] = ()
    """Files that could not be read."""
    checkpoint: Checkpoint | None = None
    """The checkpoint that the fit resumes from."""
    stopped: str | None = None
    """Why the fit ended before its last round."""
    _complete: deque[SubmittedRound] = field(default_factory=lambda: deque(maxlen=2), init=False)
    """The last two rounds that have been trained; the merge of the last one may still be
    running.
    """
    _pending: deque[SubmittedRound] = field(default_factory=deque, init=False)
    """Rounds whose measurements have not been collected."""
    _known_problems: set[str] = field(default_factory=set, init=False)
    _unread: int = field(default=0, init=False)
    """Samples of files that could not be read since the last round that trained on any samples."""
    _states: States = field(default=(), init=False)
    """The states of each group of workers after the last complete round."""
    _merge_state: MergeState[Ref] = field(default=NOTHING_KEPT, init=False)
    """What merges keep besides the parameters, after the last complete round."""
    _published: PublishedData = field(init=False)
    """The data, once the rounds run."""
    _name: str = field(default_factory=partial(secrets.token_hex, 8), init=False)
    """A name that no other fit has."""
    _began: float = field(default=0.0, init=False)
    _last_end: float = field(default=0.0, init=False)
    """When the last round ended, by the clock of ``stopping``."""

    @property
    def asked(self) -> dict[str, Any]:
        """The options that determine the parameters, the data, and the file of a trace."""
        tracing = (
            each
            for each in self.callbacks.callbacks
            if type(each).write_trace is not Callback.write_trace
        )
        traces = next((str(each.writes_to()) for each in tracing), None)
        data = {"data": self.data, "validation_data": self.validation, "profile": traces}
        return {**self.options.determining, **data}

    @property
    def progress(self) -> Progress:
        """What a later fit needs, to go on where this one is, and to check that it has the same
        arguments.
        """
        return Progress(
            options=resuming.compared(self.options, self.data, self.session.model.built),
            sizes=self.data.sizes,
            first_epoch=self.epochs.start,
            reached=self.reached,
            fingerprint=self.data.fingerprint,
        )

    @property
    def remarks(self) -> list[str]:
        """What was converted as most users want, batches smaller than asked for, and workers that
        take turns.
        """
        options = self.options
        session = self.session
        sizes = self.data.sizes
        workers = session.num_workers
        remarks = [*self.data.remarks]
        most = max(sizes)
        where = f"any of {len(sizes)} blocks"
        if options.mixes_blocks:
            most = -(-sum(sizes) // workers)
            where = f"the share of each of {workers} workers"
        if self.data.counted and options.batch_size is not None and options.batch_size > most:
            remarks.append(
                f"batches have {most} samples at most, not batch_size={options.batch_size}: "
                f"there are no more in {where}"
            )
        if session.engine_class.traits.asynchronous and 0 < session.slots < workers:
            remarks.append(
                f"{workers} workers take turns, as {session.slots} can train at a time: fewer "
                "take as long, and usually learn more in an epoch"
            )
        return remarks

    def _begin(self) -> None:
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
            batches = self.options.batches_of_worker(self.data, self.session.num_workers)
            model.built.lr_schedule.prepare(self.epochs.stop, batches, self.session.num_workers)

    def run(self) -> None:
        """Run the rounds; set the model's parameters and history, and the reason why the fit
        stopped.
        """
        self._begin()
        model = self.session.model
        session = self.session
        plan = self._rounds_left()
        begin = f"from {self.checkpoint[0]}" if self.checkpoint else f"at epoch {self.epochs.start}"
        where = session.num_workers, session.engine_class.name, begin
        _LOG.info(
            "a fit of %d epochs with %d workers on %s begins %s", self.options.num_epochs, *where
        )
        with session.fitting(self, plan.samples_left if self.data.counted else None):
            self._regroup()
            data = self._published = PublishedData(session.engine, self.data)
            validation = self._validation
            merger = self._merger
            self._states = [*session.states]
            self._merge_state = merger.state
            self._began, self._last_end = time.time(), self.stopping.clock()
            self.running = True
            try:
                model.parameters = params.copy_of(
                    self._run_rounds(plan.rounds(self._is_over)) or model.parameters
                )
                model.stopped = self.stopped
            except BaseException as error:
                self.data.locate_nan(error)
                rescued, model.averaged = self._rescued()
                model.parameters = params.copy_of(rescued or model.parameters)
                raise
            finally:
                self.running = False
                merger.stop()
                rows_on_gpus().release(self._name)  # elsewhere they leave when idle
            _LOG.info("the fit has ended (%s)", model.stopped or "complete")
            session.keep(session.states, self._merge_state)
            model.averaged = self.averaged()
            data.warn_of_changes()
            if validation is not None:
                validation.data.warn_of_changes()

    def _rounds_left(self) -> RoundPlan:
        """Return the plan of the rounds that are left."""
        options = self.options
        model = self.session.model
        return RoundPlan(
            sizes=self.data.sizes,
            num_workers=self.session.num_workers,
            stop=self.epochs.stop,
            seed=model.seed,
            shuffle=options.order,
            batching=options.batching,
            merge_every=self.merge.every,
            merge_unit=self.merge.unit or "epochs",
            start=self.reached,
            first_round=len(model.history),
            put_counts=options.buffer.put_counts
            if options.buffer and options.carries_buffers
            else None,
        )

    @cached_property
    def _validation(self) -> Inference | None:
        """The evaluation on the validation data; its first batch has been tried where only tasks
        can do so.
        """
        if self.validation is None:
            return None
        tasks = Inference(self.session, self.validation, name=VALIDATION)
        if (
            is_for_tasks(self.validation, self.session.model.built)
            and not self.validation.is_stream
        ):
            tasks.try_first_batch(self.session.model.parameters)
        return tasks

    @cached_property
    def _merger(self) -> Merger:
        """Merges as the options say; warns where the engine cannot see which workers have
        arrived.
        """
        merge = self.merge
        engine = self.session.engine
        mergers: Sequence[type[Merger]] = (SynchronousMerger, QuorumMerger, ServerMerger)
        chosen = next(merger for merger in mergers if merger.name == merge.kind)
        if merge.quorum == 0:
            chosen = CommutativeMerger
        elif merge.kind == "commutative" and not engine.traits.interruptible:
            warn_user(
                f"the {engine.name} engine cannot see which workers have arrived, so they merge "
                "synchronously; with Merge('commutative', quorum=0) each merges by itself, "
                "without waiting"
            )
            chosen = SynchronousMerger
        return chosen(self.session, merge, self.session.model.parameters)

    @cached_property
    def _published_job(self) -> Ref:
        resident = Residency(
            fit=self._name,
            last_epoch=self.epochs.stop - 1,
            share=self.session.resources.gpus,
            idle_seconds=IDLE_SECONDS,
        )
        job = self.options.job(
            self.data,
            self.session.model.built.training_spec.weightless(),
            self.session.model.seed,
            callbacks=self.callbacks.in_workers,
            resident=resident,
        )
        return self.session.publish(job)

    def _regroup(self) -> None:
        """Let several workers share a task if a task costs more time than a worker trains."""
        source = self.data
        options = self.options
        session = self.session
        workers = session.num_workers
        resources = session.resources
        sharing = min(source.shares(options.order), workers)
        # Each worker has its own task if it merges by itself, if sums would have more bytes than
        # compressed changes, and on GPUs, which workers share in another order.
        may_share = (
            self.merge.kind == "synchronous" and self.merge.dtype is None and not resources.gpus
        )
        slots = self.session.engine.slots(resources) if may_share else 0
        seconds = session.sample_seconds * options.samples_between_merges(source.sizes, sharing)
        active = ranges_for_costs(sharing, slots, seconds, self.session.engine.traits.task_seconds)
        session.regroup([*active, *singles(range(sharing, workers))])

    def _run_rounds(self, rounds: Iterable[Round]) -> params.Parameters | None:
        """Submit and collect rounds until the last one, or until the fit must stop.

        Returns the final parameters, or ``None`` if no round was completed. Raises the exceptions
        of tasks.
        """
        left = iter(rounds)
        following = next(left, None)
        while following or self._pending:
            if (reason := self.stopping.reason) is not None:
                self.stopped = reason
                break
            while following and self._may_submit():
                self._submit(following)
                following = next(left, None)
            self._collect()
        # Cancel the submitted rounds, unless their changes have been merged.
        if self.stopped is not None:
            while self._pending and not (self._merger.by_rounds or self.stopping.urgent):
                self._collect()
            self.session.keep(self._states, self._merge_state)
            self._pending.clear()
        waits = self.stopped is None or not self.stopping.urgent
        return self._merger.after(self._complete[-1]) if self._complete and waits else self.newest()

    def _is_over(self) -> bool:
        """Return whether the fit must stop at once, also while rounds are planned; if so, record
        the reason.
        """
        if self.stopped is None and self.stopping.urgent:
            self.stopped = self.stopping.reason
        return self.stopped is not None

    def newest(self) -> params.Parameters | None:
        """Return the global parameters after the last complete round, or ``None`` before the
        first.
        """
        return self._merger.newest(self._complete[-1]) if self._complete else None

    def state(self) -> tuple[params.Parameters | None, TrainingState]:
        """Return the same parameters with the state; only after rounds for which a callback
        ``needs_state``.
        """
        parameters = self._merger.after(self._complete[-1]) if self._complete else None
        workers = tuple(fetch_states(self.session.engine, self._states))
        return parameters, TrainingState(workers, self._merge_state.fetched(self.session.engine))

    def averaged(self) -> params.Parameters | None:
        """Return the averaged parameters after the last complete round, or ``None`` without
        averaging.
        """
        ref = self._merge_state.averaged
        averaged: params.Parameters | None = (
            None if ref is None else self.session.engine.fetch([ref])[0]
        )
        return averaged

    def _rescued(self) -> tuple[params.Parameters | None, params.Parameters | None]:
        """Return the parameters after the last complete round and their average; ``None`` if not
        available soon.
        """
        values = (self._peek(submitted.parameters) for submitted in reversed(self._complete))
        return next((value for value in values if value is not None), None), self._peek(
            self._merge_state.averaged
        )

    def _peek(self, ref: Ref | None) -> params.Parameters | None:
        # The error that ended the fit is the one to raise.
        with contextlib.suppress(OSError, EngineClosedError):
            value: params.Parameters | None = (
                None if ref is None else self.session.engine.peek(ref, MERGE_SECONDS)
            )
            return value
        return None

    def _may_submit(self) -> bool:
        if not self._pending:
            return True
        last = self._pending[-1].round.number
        if (schedule := self.session.model.built.lr_schedule) is not None and schedule.waits:
            return False
        if not self.session.engine.traits.asynchronous:
            return False
        if not self._merger.by_rounds and self.callbacks.needs_state(last):
            return False
        return len(self._pending) <= self._merger.rounds_ahead

    def _submit(self, round_: Round) -> None:
        workers = RoundWorkers(
            session=self.session,
            data=self._published,
            job=self._published_job,
            round=round_,
            is_total=self.options.order == "total",
            check_outputs=not (self._pending or self._complete),
            traced=frozenset(self.callbacks.traced(round_.number)),
        )
        submitted = self._merger.submit(workers)
        if not submitted.unmerged:
            self._evaluate(submitted)
        self._pending.append(submitted)

    def _evaluate(self, submitted: SubmittedRound) -> None:
        """Submit the evaluation of the parameters after a round whose merges have been
        submitted.
        """
        states = [*state_refs(submitted.states), *submitted.merge_state.refs()]
        self.session.engine.keep([submitted.parameters, *states, *self._merger.bases.values()])
        evaluated = {PLAIN: submitted.parameters, AVERAGED: submitted.merge_state.averaged}
        submitted.measured.update(
            (
                prefix,
                self._validation.evaluate(parameters) if self._validation and parameters else [],
            )
            for prefix, parameters in evaluated.items()
        )

    def _collect(self) -> None:
        """Wait for the next round and record it, unless the fit must stop at once."""
        submitted = self._pending[0]
        self.callbacks.round_start(submitted.round.number)
        while not self._merger.wait(submitted, TICK, self._evaluate):
            if self.stopping.urgent:
                return
        values = submitted.fetch(self.session.engine)
        measured = values["workers"]
        self._pending.popleft()
        is_first = not self._complete
        self._complete.append(submitted)
        self._states = submitted.states
        self._merge_state = submitted.merge_state
        self.reached = submitted.round.resume_point
        found = [*chain.from_iterable(values.values())]
        warn_of_problems(found, self._known_problems)
        self.skipped = tuple(
            dict.fromkeys([*self.skipped, *[file for part in found for file in part.skipped]])
        )
        for worker, part in zip(chain.from_iterable(submitted.tasks), measured, strict=True):
            if part.trace is not None:
                self.callbacks.trace(submitted.round.number, worker, part.trace)
        trained = any(part.samples for part in measured)
        self._unread = (
            0 if trained else self._unread + sum(part.unread_samples for part in measured)
        )
        self.data.check_readable(self._unread, measured)
        record = self._record(submitted, values)
        if (schedule := self.session.model.built.lr_schedule) is not None:
            schedule.observe(record)
        seconds = record["seconds"]
        if is_first:  # it also waited for processes to start
            own = {each["worker"]: each["seconds"] for each in record["workers"]}
            seconds = max(
                (sum(own[worker] for worker in task) for task in submitted.tasks), default=0.0
            )
        self.stopping.after_round(seconds)
        _LOG.info(
            "round %d of epoch %d: loss %.6g, %.3f s",
            *map(record.get, ("round", "epoch", "loss", "seconds")),
        )
        self.session.model.record(record)

    def _record(self, submitted: SubmittedRound, values: Mapping[str, list[Measured]]) -> Record:
        now = self.stopping.clock()
        seconds = now - self._last_end
        self._last_end = now
        round_ = submitted.round
        measured = values["workers"]
        samples = sum(part.planned_samples for part in measured)
        # The last epoch, and the part of it that has been trained after this round.
        end = (
            round_.last_epoch,
            max((stop for start, stop in round_.spans if start < stop), default=Fraction(1)),
        )
        built = self.session.model.built
        measures = built.training_spec.measures
        constant = built.rates if len(built.rates) > 1 else {}
        rates = built.lr_schedule.rates(*end) if built.lr_schedule else constant
        return {
            "round": round_.number,
            "epoch": round_.last_epoch + 1,
            **measures.values(measured),
            "samples": samples,
            "seconds": seconds,
            "samples_per_second": per_second(samples, seconds),
            "fit_started": self._began,
            "ended": time.time(),
            "merge": self._merger.name,
            **({"skipped": list(self.skipped)} if self.skipped else {}),
            **skipped_batches(sum(part.skipped_batches for part in measured)),
            **rates,
            "workers": [
                self._of_worker(worker, part)
                for worker, part in zip(chain.from_iterable(submitted.tasks), measured, strict=True)
            ],
            **(measures.values(values[PLAIN], PLAIN) if values[PLAIN] else {}),
            **(measures.values(values[AVERAGED], AVERAGED) if values[AVERAGED] else {}),
        }

    def _of_worker(self, worker: int, part: Measured) -> Record:
        return {
            "worker": worker,
            "samples": part.samples,
            "seconds": part.seconds,
            **self.session.model.built.training_spec.measures.values([part]),
            "started": part.started,
            **({} if part.files is None else {"files": part.files}),
            **skipped_batches(part.skipped_batches),
        }


def prepare_fit(
    session: Session,
    x: Any,
    y: Any,
    options: FitOptions,
    callbacks: CallbackList,
    stopping: Stopping,
) -> FitOfEpochs:
    """Return the fit with these options; check them against the data, the network and the
    checkpoint.
    """
    model = session.model
    workers = session.num_workers
    built = session.model.built
    spec = built.training_spec
    schedule = built.schedule
    given = options.resume is not None and options.resume is not False
    checkpoint = resuming.find_checkpoint(options.resume, callbacks.callbacks) if given else None
    progress = None if checkpoint is None else checkpoint[1].progress
    blocks = workers if progress is None else len(progress.sizes)  # as in the fit to resume
    if isinstance(x, FileDataset) and options.order != "partial":
        x = x.cut(blocks)
    data = as_data_source(x, y, blocks, floats=spec.float_dtype)
    if options.sample_weight is not None or data.dataset is not None:
        data = data.weighted(options.sample_weight)
    if checkpoint is None:
        check_same_coding(model.coding, data, "this fit's data")
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
        check_same_coding(data.coding, validation, "the validation data")
        evaluate_first_batch(validation, model)
    if chosen.merge.outer_optimizer is not None:
        check_outer_optimizer(chosen.merge.outer_optimizer, spec.net)
    if chosen.merge.optimizer_state == "average":
        check_averageable(spec.net, spec.optimizer)
    chosen.check_data(data, workers, schedule)
    fit = FitOfEpochs(
        session=session,
        callbacks=callbacks,
        stopping=stopping,
        validation=validation,
        merge=chosen.merge,
        options=chosen,
        data=data,
        epochs=range(model.epochs, model.epochs + chosen.num_epochs),
        reached=ResumePoint(model.epochs),
        checkpoint=checkpoint,
    )
    if checkpoint is not None:
        resumed, skipped = resuming.check(checkpoint, fit.progress, chosen, session, data)
        epochs = range(resumed.first_epoch, resumed.first_epoch + chosen.num_epochs)
        fit = replace(fit, epochs=epochs, reached=resumed.reached, skipped=skipped)
    chosen.check_epochs(fit.epochs, blocks=len(data.sizes))
    params.check_finite(model.parameters if checkpoint is None else checkpoint[1].parameters)
    for note in data.notes:
        warn_once(note)
    return fit
