"""``run``: the run of a fit of epochs, whose ``RoundLoop`` submits rounds and collects them."""

import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from compss_train._utils.validation import warn_user
from compss_train.data.partitioning import Round
from compss_train.engines import Ref
from compss_train.engines.mapping import whole_values
from compss_train.engines.packing import ranges_for_costs, singles
from compss_train.exceptions import EngineClosedError
from compss_train.model import parameters as params
from compss_train.model.joined_optimizer import JoinedOptimizer
from compss_train.model.measurements import Measured
from compss_train.model.net_optimizers import make_optimizer
from compss_train.model.parts import joined
from compss_train.model.program_variables import warn_of_variables
from compss_train.reports.records import AVERAGED_PREFIX, VALIDATION_PREFIX, Record
from compss_train.training.data_source import DataSource
from compss_train.training.fit_of_epochs import FitOfEpochs
from compss_train.training.inference import (
    VALIDATION,
    Inference,
    is_for_tasks,
    warn_of_problems,
)
from compss_train.training.loss_check import LossCheck
from compss_train.training.merged import Parts
from compss_train.training.published_data import PublishedData
from compss_train.training.round_records import round_record
from compss_train.training.running_fit import FitRun
from compss_train.training.schedules.base import MergeSchedule, SubmittedRound
from compss_train.training.schedules.on_arrival import CommutativeSchedule
from compss_train.training.schedules.quorum import QuorumSchedule
from compss_train.training.schedules.round_workers import RoundWorkers
from compss_train.training.schedules.server import ServerSchedule
from compss_train.training.schedules.synchronous import SynchronousSchedule
from compss_train.training.stopping import TICK
from compss_train.training.training_state import States, TrainingState
from compss_train.worker.gpu_rows import rows_on_gpus
from compss_train.worker.merging.buffers import NO_BUFFER_RULES
from compss_train.worker.work import Residency

_LOG = logging.getLogger(__name__)

MERGE_SECONDS = 1.0
"""Seconds that an interrupted fit waits for the merge of a trained round."""

IDLE_SECONDS = 30.0
"""Seconds without a pass after which a process removes the rows of a fit from its GPUs."""


def run(fit: FitOfEpochs) -> None:
    """Run a fit; set the model's parameters and history, and the reason why the fit stopped.

    Raises ``ValueError`` if the schedule does not reach the end of the fit, and the exceptions of
    tasks.
    """
    fit.load_into_model()
    session = fit.session
    model = session.model
    plan = fit.rounds_left
    _LOG.info(
        "a fit of %d epochs with %d workers on %s begins %s",
        fit.options.num_epochs,
        session.num_workers,
        session.engine_class.name,
        f"from {fit.checkpoint.path}" if fit.checkpoint else f"at epoch {fit.epochs.start}",
    )
    with session.fitting(fit, plan.samples_left if fit.data.counted else None):
        loop = RoundLoop(fit)
        model.run = loop
        try:
            parameters = loop.run(plan.rounds(loop.must_end))
            model.parameters = params.copy_of(parameters or model.parameters)
            model.stopped = loop.stopped
        except BaseException as error:
            fit.data.locate_nan(error)
            parameters, model.averaged = loop.rescued()
            model.parameters = params.copy_of(parameters or model.parameters)
            raise
        finally:
            model.run = None
            if model.hyperparameters is not None:
                model.hyperparameters.settle()
            loop.close()
        _LOG.info("the fit has ended (%s)", model.stopped or "complete")
        session.keep(session.states, loop.merged.without_parameters)
        model.averaged = loop.averaged()
        loop.warn_of_changes()


def _chunks(fit: FitOfEpochs, schedule: MergeSchedule) -> list[range]:
    """Return the workers that share a task, if a task costs more than a worker trains."""
    options = fit.options
    session = fit.session
    engine = session.engine
    workers = session.num_workers
    resources = session.resources
    sharing = min(fit.data.shares(options.order), workers)
    # Each worker has its own task if it merges by itself, if sums would have more bytes than
    # compressed changes, and on GPUs, which workers share in another order.
    may_share = schedule.shares_tasks and options.merge.dtype is None and not resources.gpus
    may_share = may_share and schedule.weigh is None
    slots = engine.slots(resources) if may_share else 0
    samples = options.samples_between_merges(fit.data.sizes, sharing)
    seconds = session.sample_seconds * samples
    active = ranges_for_costs(sharing, slots, seconds, engine.traits.task_seconds)
    return [*active, *singles(range(sharing, workers))]


def _new_schedule(fit: FitOfEpochs) -> MergeSchedule:
    """Return what merges when the options say.

    Warns where the engine cannot see which workers have arrived.
    """
    session = fit.session
    merge = fit.merge
    schedule_class: type[MergeSchedule]
    if merge.quorum == 0:
        schedule_class = CommutativeSchedule
    elif merge.kind == "parameter_server":
        schedule_class = ServerSchedule
    elif merge.kind == "synchronous":
        schedule_class = SynchronousSchedule
    elif session.engine.traits.interruptible:
        schedule_class = QuorumSchedule
    else:
        warn_user(
            f"the {session.engine.name} engine cannot see which workers have arrived, so they "
            "merge synchronously; with Merge('commutative', quorum=0) each merges by itself, "
            "without waiting"
        )
        schedule_class = SynchronousSchedule
    schedule = schedule_class(session, merge, session.model.parameters)
    if fit.callbacks.weighs:
        schedule.weigh = fit.callbacks.merge
    return schedule


def _published_job(fit: FitOfEpochs, name: str) -> Ref:
    """Publish what all training tasks have in common; ``name`` is unique to the fit."""
    session = fit.session
    resident = Residency(
        fit=name,
        last_epoch=fit.epochs.stop - 1,
        share=session.resources.gpus,
        idle_seconds=IDLE_SECONDS,
    )
    merge = fit.merge
    buffers = NO_BUFFER_RULES if merge.buffers is None else session.buffer_rules(merge)
    session.own_buffers |= buffers.worker
    job = fit.options.job(
        fit.data,
        session.model.built.training_spec.weightless(),
        session.model.seed,
        callbacks=fit.callbacks.in_workers,
        resident=resident,
        checks_globals=session.model.uses_globals,
        buffers=buffers,
    )
    return session.publish(job)


def _loss_check(fit: FitOfEpochs) -> LossCheck | None:
    """Return the check of a fit of new parameters; ``None`` if its loss need not fall."""
    is_new = fit.epochs.start == 0 and fit.checkpoint is None
    if not is_new or not fit.data.counted or fit.session.num_workers == 1:
        return None
    check = LossCheck.of(fit.merge, fit.rounds_left.samples_left)
    spec = fit.session.model.built.training_spec
    if check is None or isinstance(make_optimizer(spec.optimizer, spec.net), JoinedOptimizer):
        return None  # several optimizers take turns, as of a GAN
    return check


def _validation_tasks(fit: FitOfEpochs, validation: DataSource) -> Inference:
    """Return the evaluation on the validation data; tries a batch that only tasks can evaluate."""
    model = fit.session.model
    tasks = Inference(fit.session, validation, name=VALIDATION)
    if is_for_tasks(validation, model.built) and not validation.is_stream:
        tasks.try_first_batch(model.parameters)
    return tasks


class RoundLoop(FitRun):
    """Submits the rounds of a fit a little ahead, collects what they have measured, records it."""

    leaves_processes = True

    def __init__(self, fit: FitOfEpochs) -> None:
        self._fit = fit
        self._session = fit.session
        self._engine = fit.session.engine
        self._schedule = fit.session.model.built.lr_schedule
        self._name = secrets.token_hex(8)
        """A name that no other fit has."""
        self._data = PublishedData(self._engine, fit.data)
        self._validation: Inference | None = None
        if fit.validation is not None:
            self._validation = _validation_tasks(fit, fit.validation)
        self._job = _published_job(fit, self._name)
        self._merging = _new_schedule(fit)
        self._chunks = _chunks(fit, self._merging)
        self._states: States = [*fit.session.states]
        """The state of each worker after the last complete round."""
        self.merged = self._merging.merged
        """The global parameters after the last complete round, and what merges keep."""
        self._pending: deque[SubmittedRound] = deque()
        """Rounds whose measurements have not been collected."""
        self._complete: deque[SubmittedRound] = deque(maxlen=2)
        """The last two rounds that have been trained; the last merge may still be running."""
        self._skipped = dict.fromkeys(fit.skipped)
        """Files that could not be read, in the order in which they were met."""
        self._unread = 0
        """Samples that could not be read since the last round that trained on any samples."""
        self._uncounted = 0
        """Samples trained since the last round with a target that counts."""
        self._known_problems: set[str] = set()
        self._warned_of_rounds_ahead = False
        self._began = time.time()
        self._last_end = fit.stopping.clock()
        """When the last round ended, by the clock of ``stopping``."""
        self._loss_check = _loss_check(fit)
        model = fit.session.model
        self._reports: Ref | Sequence[Measured] = () if model.state is None else model.reports
        """The last reports that begin with that of worker 0."""
        self.stopped: str | None = None
        """Why the fit ended before its last round."""

    def run(self, rounds: Iterable[Round]) -> params.Parameters | None:
        """Submit and collect rounds until the last one, or until the fit must stop.

        Returns the final parameters, or ``None`` if no round was completed. Raises the exceptions
        of tasks.
        """
        planned = iter(rounds)
        following = next(planned, None)
        while following or self._pending:
            reason = self._fit.stopping.reason
            if reason is not None:
                self.stopped = reason
                break
            while following and self._may_submit():
                self._submit(following)
                following = next(planned, None)
            self._collect()
        if self.stopped is not None:
            self._cancel_submitted()
        if not self._complete:
            return None
        last_round = self._complete[-1]
        is_cut_short = self.stopped is not None and self._fit.stopping.urgent
        return self._merging.newest(last_round) if is_cut_short else self._merging.after(last_round)

    def must_end(self) -> bool:
        """Return whether the fit must stop at once, also while rounds are planned."""
        stopping = self._fit.stopping
        if self.stopped is None and stopping.urgent:
            self.stopped = stopping.reason
        return self.stopped is not None

    def close(self) -> None:
        """End what the merges have started, and free the rows that this process has on GPUs.

        Other processes free theirs when they are idle.
        """
        self._merging.stop()
        rows_on_gpus().release(self._name)

    def warn_of_changes(self) -> None:
        """Warn of memory-mapped files that have changed since they were published."""
        self._data.warn_of_changes()
        if self._validation is not None:
            self._validation.data.warn_of_changes()

    def newest(self) -> params.Parameters | None:
        """Return the parameters after the last complete round; ``None`` before the first."""
        return self._merging.newest(self._complete[-1]) if self._complete else None

    def state(self) -> tuple[params.Parameters | None, TrainingState]:
        """Return the same parameters, and the state of the training at that moment.

        Only for callbacks of rounds for which one ``needs_state``.
        """
        parameters = self._merging.after(self._complete[-1]) if self._complete else None
        return parameters, self._session.fetched(self._states, self.merged)

    def averaged(self) -> params.Parameters | None:
        """Return the average of the parameters of the last merges; ``None`` without averaging."""
        return self.merged.fetch_averaged(self._engine)

    def rescued(self) -> tuple[params.Parameters | None, params.Parameters | None]:
        """Return what is left after an error: the newest parameters, and their average.

        They are ``None`` if they are not available soon.
        """
        averaged = self._peek(self.merged.averaged)
        for submitted in reversed(self._complete):
            parameters = self._peek(submitted.merged.parameters)
            if parameters is not None:
                return parameters, averaged
        return None, averaged

    def _peek(self, parts: Parts | None) -> params.Parameters | None:
        if parts is None:
            return None
        # The error that ended the fit is the one to raise.
        with contextlib.suppress(OSError, EngineClosedError):
            values = [self._engine.peek(part, MERGE_SECONDS) for part in parts]
            return None if None in values else joined(values)
        return None

    def _may_submit(self) -> bool:
        """Return whether to submit another round before the next one is collected."""
        if not self._pending:
            return True
        if self._schedule is not None and self._schedule.waits:
            return False
        if not self._engine.traits.asynchronous:
            return False
        if self._fit.callbacks.set_hyperparameters:
            return False
        if self._merging.weigh is not None:
            return False
        last_number = self._pending[-1].workers.round.number
        if not self._merging.by_rounds and self._fit.callbacks.needs_state(last_number):
            return False
        return len(self._pending) <= self._merging.rounds_ahead

    def first_open_round(self) -> int:
        """Return the number of the first round that is not submitted; warns if others run ahead."""
        submitted = [*self._complete, *self._pending]
        first_open = submitted[-1].workers.round.number + 1 if submitted else 0
        if self._pending and not self._warned_of_rounds_ahead:
            self._warned_of_rounds_ahead = True
            warn_user(
                f"set_hyperparameters holds from round {first_open} on, as those before have been "
                "submitted, more of them on some engines; to set values for the next round, call "
                "it in on_round_end of a callback whose class has sets_hyperparameters = True"
            )
        return first_open

    def _submit(self, round_: Round) -> None:
        changes = self._session.model.hyperparameters
        workers = RoundWorkers(
            session=self._session,
            data=self._data,
            job=self._job,
            round=round_,
            chunks=self._chunks,
            is_total=self._fit.options.order == "total",
            check_outputs=not (self._pending or self._complete),
            traced=frozenset(self._fit.callbacks.traced(round_.number)),
            set_values=None if changes is None else changes.at(round_.number),
        )
        submitted = self._merging.submit(workers)
        if not submitted.unmerged:
            self._evaluate(submitted)
        self._pending.append(submitted)

    def _evaluate(self, submitted: SubmittedRound) -> None:
        """Submit the evaluation of a round's parameters, whose merges have been submitted."""
        merged = submitted.merged
        number = submitted.first_task
        if number is not None:
            self._reports = submitted.measured["workers"][number]
        states = whole_values(submitted.states)
        self._engine.keep([*merged.refs(), *states, *self._merging.bases.values()])
        evaluated = {VALIDATION_PREFIX: merged.parameters, AVERAGED_PREFIX: merged.averaged}
        for prefix, parameters in evaluated.items():
            submitted.measured[prefix] = []
            if self._validation is not None and parameters is not None:
                submitted.measured[prefix] = self._validation.evaluate(parameters, self._reports)

    def _cancel_submitted(self) -> None:
        """Cancel the submitted rounds, unless their changes have been merged."""
        while self._pending and not (self._merging.by_rounds or self._fit.stopping.urgent):
            self._collect()
        self._session.keep(self._states, self.merged.without_parameters)
        self._pending.clear()

    def _collect(self) -> None:
        """Wait for the next round and record it, unless the fit must stop at once."""
        submitted = self._pending[0]
        self._fit.callbacks.round_start(submitted.workers.round.number)
        while not self._merging.wait(submitted, TICK, self._evaluate):
            if self._fit.stopping.urgent:
                return
        measured = submitted.fetch(self._engine)
        self._pending.popleft()
        is_first = not self._complete
        self._complete.append(submitted)
        self._states = submitted.states
        self.merged = submitted.merged
        self._fit.reached = submitted.workers.round.resume_point
        number = submitted.first_task
        if number is not None:
            first = sum(map(len, submitted.tasks[:number]))
            self._session.model.state = measured["workers"][first].model_state
        self._pass_on_traces(submitted, measured["workers"])
        self._note_problems(measured)
        record = self._record(submitted, measured)
        if self._schedule is not None:
            self._schedule.observe(record)
        # The first round also waited for processes to start.
        seconds = _training_seconds(submitted, record) if is_first else record["seconds"]
        self._fit.stopping.after_round(seconds)
        _LOG.info(
            "round %d of epoch %d: loss %.6g, %.3f s",
            *map(record.get, ("round", "epoch", "loss", "seconds")),
        )
        if self._loss_check is not None:
            self._loss_check.observe(record)
        self._session.model.record(record)

    def _note_problems(self, measured: Mapping[str, list[Measured]]) -> None:
        """Warn of problems of a round; raise the errors of data none of which can be read."""
        parts = [*chain.from_iterable(measured.values())]
        warn_of_problems(parts, self._known_problems)
        for part in parts:
            self._skipped |= dict.fromkeys(part.skipped)
        of_workers = measured["workers"]
        changed = dict.fromkeys(chain.from_iterable(part.changed_variables for part in of_workers))
        warn_of_variables(self._session.model.built.training_spec.roots(), changed)
        if any(part.samples for part in of_workers):
            self._unread = 0
        else:
            self._unread += sum(part.unread_samples for part in of_workers)
        self._fit.data.check_readable(self._unread, of_workers)
        if any(part.count for part in of_workers):
            self._uncounted = 0
        else:
            self._uncounted += sum(part.samples for part in of_workers)
        self._fit.data.check_counted(self._uncounted)

    def _pass_on_traces(self, submitted: SubmittedRound, of_workers: Sequence[Measured]) -> None:
        workers = chain.from_iterable(submitted.tasks)
        for worker, part in zip(workers, of_workers, strict=True):
            if part.trace is not None:
                self._fit.callbacks.trace(submitted.workers.round.number, worker, part.trace)

    def _record(self, submitted: SubmittedRound, measured: Mapping[str, list[Measured]]) -> Record:
        now = self._fit.stopping.clock()
        seconds = now - self._last_end
        self._last_end = now
        return round_record(
            submitted,
            measured,
            self._session.model.built,
            in_workers=self._fit.callbacks.in_workers,
            fit_started=self._began,
            seconds=seconds,
            merge=self._merging.name,
            skipped=[*self._skipped],
        )


def _training_seconds(submitted: SubmittedRound, record: Record) -> float:
    """Return how long the longest task of a round has trained."""
    seconds = {worker["worker"]: worker["seconds"] for worker in record["workers"]}
    tasks = (sum(seconds[worker] for worker in task) for task in submitted.tasks)
    return max(tasks, default=0.0)
