"""``RoundRunner``: submits the rounds of a fit a little ahead, collects their measurements, records the history."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, ClassVar

from compss_train.data.partitioning import Round
from compss_train.engines import Engine, Ref
from compss_train.exceptions import BadFileError, EngineClosedError
from compss_train.model.measured import Measured
from compss_train.model.metrics import Measures
from compss_train.model.parameters import Parameters
from compss_train.reports.records import per_second
from compss_train.training.fit import FitOfEpochs
from compss_train.training.inference import (
    Inference,
    skipped_batches,
    warn_of_first_batch,
    warn_of_random_transform,
    warn_of_skipped_files,
)
from compss_train.training.merging import Merger, SubmittedRound, agreement
from compss_train.training.stopping import TICK
from compss_train.training.training_state import MergeState, States, TrainingState, fetch_states
from compss_train.training.worker_group import WorkerGroup
from compss_train.worker import GroupState

Record = dict[str, Any]

MERGE_SECONDS = 1.0
"""How long an interrupted fit waits for the merge of a round that has been trained."""


PLAIN, AVERAGED = "val_", "val_averaged_"
"""Prefixes of the measures of the validation data: with the global parameters, and with their average."""


@dataclass(frozen=True, eq=False)
class PendingRound:
    """A round whose measurements have not been collected."""

    submitted: SubmittedRound
    groups: dict[str, list[Ref]]
    """References to the measurements: of the ``workers`` and the merge, and by prefix those of validation."""

    @property
    def refs(self) -> list[Ref]:
        """All references to measurements."""
        return [ref for refs in self.groups.values() for ref in refs]

    def fetch(self, engine: Engine) -> dict[str, list[Measured]]:
        """Return the measurements of each group and of the ``merge``, and free them."""
        values = iter(engine.fetch(self.refs, small=True))
        engine.delete(self.refs)
        lists = {name: [*chain.from_iterable(next(values) for _ in refs)] for name, refs in self.groups.items()}
        merges = int(self.submitted.merge_measured)
        return {**lists, "merge": lists["workers"][:merges], "workers": lists["workers"][merges:]}


@dataclass(kw_only=True)
class RoundRunner:
    """Runs the rounds of one fit."""

    occupies_workers: ClassVar[bool] = False
    engine: Engine
    workers: WorkerGroup
    merger: Merger
    measures: Measures
    validation: Inference | None
    fit: FitOfEpochs
    on_record: Callable[[Record], None]
    stopped: str | None = None
    """Why the fit ended before its last round."""
    _complete: deque[SubmittedRound] = field(default_factory=deque)
    """The last two rounds that have been trained; the merge of the last one may still be running."""
    _pending: deque[PendingRound] = field(default_factory=deque)
    _skipped: dict[str, str] = field(default_factory=dict)
    """Files that could not be read, with the reasons."""
    _unread: int = 0
    """Samples of files that could not be read since the last round that trained on any samples."""
    _weightless: int | None = 0
    """Samples trained, ``None`` once any batch of them had a weight above 0."""
    _warned: bool = False
    """Whether there was a warning of a transform that draws in evaluation."""
    _warm: bool = False
    """Whether a round has ended, and so the processes have started."""
    _began: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self._states: States = tuple(self.workers.states)
        """The states of each group of workers after the last complete round."""
        self.merge_state = self.merger.state
        """What merges keep beside the parameters, after the last complete round."""
        self._last_end = self.fit.stopping.clock()

    def run(self, rounds: Iterable[Round]) -> Parameters | None:
        """Submit and collect rounds until the last one, or until the fit must stop.

        Returns the final parameters, ``None`` if no round was completed. Raises the exceptions of tasks.
        """
        upcoming = iter(rounds)
        left = deque(islice(upcoming, 1))
        while left or self._pending:
            if (reason := self.fit.stopping.reason) is not None:
                self.stopped = reason
                break
            while left and self._may_submit():
                left.extend(islice(upcoming, 1))  # the next round is known before the current one is submitted
                self._submit(left.popleft(), left[0] if left else None)
            self._collect()
        if self.stopped is not None:
            self._end_early()
        final = self._final()
        self.merge_state = self._state_of(final)
        while len(self._complete) > 1:
            self.merger.retire(self._complete.popleft())
        return final

    def is_over(self) -> bool:
        """Return whether the fit must stop at once, also while rounds are planned; if so, note why."""
        if self.stopped is None and self.fit.stopping.urgent:
            self.stopped = self.fit.stopping.reason
        return self.stopped is not None

    def current(self) -> Parameters | None:
        """Return the global parameters after the last complete round, ``None`` before the first."""
        return self.merger.current(self._complete[-1]) if self._complete else None

    def settled(self) -> tuple[Parameters | None, TrainingState]:
        """Return the same with the state; only after rounds of which a callback ``needs_state``."""
        parameters = self._settled() if self._complete else None
        workers = tuple(fetch_states(self.engine, self._states))
        return parameters, TrainingState(workers, self._state_of(parameters).fetched(self.engine))

    def _state_of(self, parameters: Parameters | None) -> MergeState:
        """Return what merges keep beside these parameters, which are those after the last complete round."""
        if parameters is None or not self._complete:
            return self.merge_state
        return self.merger.state_of(self._complete[-1], parameters)

    def _settled(self) -> Parameters:
        return self.merger.settled(self._complete[-1])

    def averaged(self) -> Parameters | None:
        """Return the average of the parameters after the last complete round, ``None`` without one."""
        ref = self.merge_state.averaged
        averaged: Parameters | None = None if ref is None else self.engine.fetch([ref])[0]
        return averaged

    def newest(self) -> Parameters | None:
        """Return the parameters after the last complete round, ``None`` if they are not available soon."""
        values = (self._peek(submitted.parameters) for submitted in reversed(self._complete))
        return next((value for value in values if value is not None), None)

    def newest_average(self) -> Parameters | None:
        """Return what ``averaged`` returns, ``None`` if it is not available soon."""
        return self._peek(self.merge_state.averaged)

    def _peek(self, ref: Ref | None) -> Parameters | None:
        with contextlib.suppress(OSError, EngineClosedError):  # the error that ended the fit is the one to raise
            value: Parameters | None = None if ref is None else self.engine.peek(ref, MERGE_SECONDS)
            return value
        return None

    def _may_submit(self) -> bool:
        if not self._pending:
            return True
        last = self._pending[-1].submitted.round.number
        if self.workers.schedule is not None and self.workers.schedule.waits:
            return False
        if not self.engine.traits.asynchronous:
            return False
        if not self.merger.by_rounds and self.fit.callbacks.needs_state(last):
            return False
        return len(self._pending) <= self.merger.rounds_ahead

    def _submit(self, round_: Round, next_round: Round | None) -> None:
        self.workers.next_round = next_round
        submitted = self.merger.submit(self.workers, round_)
        evaluated = {PLAIN: submitted.parameters, AVERAGED: submitted.merge_state.averaged}
        groups = {
            prefix: self.validation.evaluate(parameters) if self.validation and parameters is not None else []
            for prefix, parameters in evaluated.items()
        }
        groups["workers"] = submitted.measured
        self._pending.append(PendingRound(submitted, groups))

    def _end_early(self) -> None:
        """Cancel the rounds that have been submitted, unless their changes are merged already."""
        if not self.merger.by_rounds:
            while self._pending and not self.fit.stopping.urgent:
                self._collect()
        self.merger.go_back(self._complete[-1] if self._complete else None)
        cancelled: dict[int, GroupState | Ref] = {}
        for pending in self._pending:
            self.engine.delete(pending.refs)
            self.merger.retire(pending.submitted)
            pending.submitted.merge_state.free(self.engine, self.merge_state)
            cancelled |= {id(state): state for state in pending.submitted.states}
        self.workers.free_states(list(cancelled.values()), self._states)
        self.workers.states[:] = self._states
        self._pending.clear()

    def _final(self) -> Parameters | None:
        if self.stopped is not None:
            return self.current() if self.fit.stopping.urgent or not self._complete else self._settled()
        final: Parameters = self.engine.fetch([self.merger.parameters])[0]
        return final

    def _collect(self) -> None:
        """Wait for the next round and record it, unless the fit must stop at once."""
        pending = self._pending[0]
        self.fit.callbacks.round_start(pending.submitted.round.number)
        while not self.engine.wait(pending.refs, TICK):
            if self.fit.stopping.urgent:
                return
        values = pending.fetch(self.engine)
        self._pending.popleft()
        self._complete_round(pending.submitted)
        warn_of_skipped_files([part for parts in values.values() for part in parts], self._skipped)
        self.fit.skipped = tuple(dict.fromkeys([*self.fit.skipped, *self._skipped]))
        warn_of_first_batch(values["workers"])  # those of the first round only
        self._warned = self._warned or warn_of_random_transform(
            any(part.random_transform for part in values[PLAIN])
        )
        for worker, part in zip(chain.from_iterable(pending.submitted.tasks), values["workers"], strict=True):
            if part.trace is not None:
                self.fit.callbacks.trace(pending.submitted.round.number, worker, part.trace)
        self._check_readable(values["workers"])
        self._check_weights(pending.submitted.round, values["workers"])
        record = self._record(pending.submitted, values)
        if self.workers.schedule is not None:
            self.workers.schedule.observe(record)
        self.fit.stopping.after_round(self._seconds_of(record, pending.submitted))
        self._warm = True
        self.on_record(record)

    def _seconds_of(self, record: Record, submitted: SubmittedRound) -> float:
        """Return the seconds that another round will take; the first one also waited for processes to start."""
        if self._warm:
            return float(record["seconds"])
        seconds = {each["worker"]: each["seconds"] for each in record["workers"]}
        return max((sum(seconds[worker] for worker in task) for task in submitted.tasks), default=0.0)

    def _complete_round(self, submitted: SubmittedRound) -> None:
        self._complete.append(submitted)
        if len(self._complete) > 2:
            self.merger.retire(self._complete.popleft())
        self.workers.free_states(self._states, submitted.states)
        self.merge_state.free(self.engine, submitted.merge_state)
        self._states, self.merge_state = submitted.states, submitted.merge_state
        self.fit.reached = submitted.round.end_position

    def _check_readable(self, measured: Sequence[Measured]) -> None:
        """Raise ``BadFileError`` if no file of a whole epoch could be read, ``ValueError`` if streams are empty."""
        self._unread += sum(part.left_out for part in measured)
        if any(part.samples for part in measured):
            self._unread = 0
        elif self._unread >= sum(self.workers.data.sizes):
            if not self._skipped:
                raise ValueError(
                    "the IterableDataset gave no samples in a whole epoch: each epoch iterates over it anew, so "
                    "that __iter__ has to begin from the start, and by default every worker takes its part of it"
                )
            file, reason = next(iter(self._skipped.items()))
            raise BadFileError(file, f"{reason}; nor can any other file be read")

    def _check_weights(self, round_: Round, measured: Sequence[Measured]) -> None:
        """Raise ``ValueError`` if all weights of the first epoch are 0; those in memory are checked before."""
        if self._weightless is None:
            return
        trained = sum(part.samples for part in measured)
        self._weightless += trained
        if sum(part.weightless for part in measured) < trained:
            self._weightless = None
        elif round_.stop == 1 and trained and self._weightless >= sum(self.workers.data.sizes):
            raise ValueError(
                f"the weights of all {self._weightless} samples of the first epoch are 0, so that nothing was "
                "learnt; give some above 0, or leave out weight="
            )

    def _record(self, submitted: SubmittedRound, values: Mapping[str, list[Measured]]) -> Record:
        now = self.fit.stopping.clock()
        seconds, self._last_end = now - self._last_end, now
        round_, measured = submitted.round, values["workers"]
        samples = sum(part.given for part in measured)
        return {
            "round": round_.number,
            "epoch": round_.epoch,
            **self.measures.values(measured),
            "samples": samples,
            "seconds": seconds,
            "samples_per_second": per_second(samples, seconds),
            "fit_started": self._began,
            "ended": time.time(),
            "merge": self.merger.name,
            **({"skipped": list(self.fit.skipped)} if self.fit.skipped else {}),
            **skipped_batches(sum(part.skipped_batches for part in measured)),
            **({"lr": self.workers.schedule.lr(round_.epoch - 1, round_.stop)} if self.workers.schedule else {}),
            **(agreement(measured, values["merge"][0]) if values["merge"] else {}),
            "workers": [
                self._of_worker(worker, part)
                for worker, part in zip(chain.from_iterable(submitted.tasks), measured, strict=True)
            ],
            **(self.measures.values(values[PLAIN], PLAIN) if values[PLAIN] else {}),
            **(self.measures.values(values[AVERAGED], AVERAGED) if values[AVERAGED] else {}),
        }

    def _of_worker(self, worker: int, part: Measured) -> Record:
        return {
            "worker": worker,
            "samples": part.samples,
            "seconds": part.seconds,
            **self.measures.values([part]),
            "started": part.started,
            **({} if part.files is None else {"files": part.files}),
            **skipped_batches(part.skipped_batches),
        }
