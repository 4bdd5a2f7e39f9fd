"""``RoundRunner``: submits the rounds of a fit a little ahead, collects their measurements, records the history."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

from compss_train.data.partitioning import Round
from compss_train.engines import Engine, Ref
from compss_train.exceptions import BadFileError, EngineClosedError
from compss_train.model.metrics import Measures
from compss_train.model.parameters import Parameters
from compss_train.training.callback import CallbackList
from compss_train.training.fit_state import FitProgress
from compss_train.training.merging import Merge, SubmittedRound
from compss_train.training.stopping import TICK, Stopping
from compss_train.training.task_submission import (
    Inference,
    States,
    WorkerGroup,
    fetch_states,
    skipped_batches,
    warn_of_skipped_files,
)
from compss_train.training.worker import WorkerState

Record = dict[str, Any]

MERGE_SECONDS = 1.0
"""How long an interrupted fit waits for the merge of a round that has been trained."""


@dataclass(kw_only=True)
class RoundRunner:
    """Runs the rounds of one fit."""

    occupies_workers: ClassVar[bool] = False
    engine: Engine
    workers: WorkerGroup
    merge: Merge
    measures: Measures
    validation: Inference | None
    progress: FitProgress
    stopping: Stopping
    callbacks: CallbackList
    on_record: Callable[[Record], None]
    stopped: str | None = None
    """Why the fit ended before its last round."""
    _complete: deque[SubmittedRound] = field(default_factory=deque)
    """The last two rounds that have been trained; the merge of the last one may still be running."""
    _pending: deque[tuple[SubmittedRound, list[Ref]]] = field(default_factory=deque)
    _skipped: dict[str, str] = field(default_factory=dict)
    """Files that could not be read, with the reasons."""
    _unread: int = 0
    """Samples of files that could not be read since the last round that trained on any samples."""
    _warm: bool = False
    """Whether a round has ended, and so the processes have started."""
    _began: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self._states: States = tuple(self.workers.states)
        """Each worker's state after the last complete round."""
        self._last_end = self.stopping.clock()

    def run(self, rounds: Iterable[Round]) -> Parameters | None:
        """Submit and collect rounds until the last one, or until the fit must stop.

        Returns the final parameters, ``None`` if no round was completed. Raises the exceptions of tasks.
        """
        upcoming = iter(rounds)
        left = deque(islice(upcoming, 1))  # the next round is known before the current one is submitted
        while left or self._pending:
            if (reason := self.stopping.reason) is not None:
                self.stopped = reason
                break
            while left and self._may_submit():
                self._submit(left.popleft())
                left.extend(islice(upcoming, 1))
            self._collect()
        if self.stopped is not None:
            self._end_early()
        final = self._final()
        while len(self._complete) > 1:
            self.merge.retire(self._complete.popleft())
        return final

    def current(self) -> Parameters | None:
        """Return the global parameters after the last complete round, ``None`` before the first."""
        return self.merge.current(self._complete[-1]) if self._complete else None

    def settled(self) -> tuple[Parameters | None, list[WorkerState]]:
        """Return the same with the workers' states; only after rounds of which a callback ``needs_state``."""
        parameters = self._settled() if self._complete else None
        return parameters, fetch_states(self.engine, self._states)

    def _settled(self) -> Parameters:
        return self.merge.settled(self._complete[-1])

    def newest(self) -> Parameters | None:
        """Return the parameters after the last complete round, ``None`` if they are not available soon."""
        with contextlib.suppress(OSError, EngineClosedError):  # the error that ended the fit is the one to raise
            for submitted in reversed(self._complete):
                newest: Parameters | None = self.engine.peek(submitted.parameters, MERGE_SECONDS)
                if newest is not None:
                    return newest
        return None

    def _may_submit(self) -> bool:
        if not self._pending:
            return True
        last = self._pending[-1][0].round.number
        if self.workers.schedule is not None and self.workers.schedule.waits:
            return False
        if not self.engine.asynchronous or (not self.merge.by_rounds and self.callbacks.needs_state(last)):
            return False
        return len(self._pending) <= self.merge.rounds_ahead

    def _submit(self, round_: Round) -> None:
        submitted = self.merge.submit(self.workers, round_)
        validation = self.validation.evaluate(submitted.parameters) if self.validation else []
        self._pending.append((submitted, validation))

    def _end_early(self) -> None:
        """Cancel the rounds that have been submitted, unless their changes are merged already."""
        if not self.merge.by_rounds:
            while self._pending and not self.stopping.urgent:
                self._collect()
        self.merge.go_back(self._complete[-1] if self._complete else None)
        cancelled: dict[int, WorkerState | Ref] = {}
        for submitted, validation in self._pending:
            self.engine.delete([*submitted.measured.values(), *validation])
            self.merge.retire(submitted)
            cancelled |= {id(state): state for state in submitted.states}
        self.workers.free_states(list(cancelled.values()), self._states)
        self.workers.states[:] = self._states
        self._pending.clear()

    def _final(self) -> Parameters | None:
        if self.stopped is not None:
            return self.current() if self.stopping.urgent or not self._complete else self._settled()
        final: Parameters = self.engine.fetch([self.merge.parameters])[0]
        return final

    def _collect(self) -> None:
        """Wait for the next round and record it, unless the fit must stop at once."""
        submitted, validation = self._pending[0]
        self.callbacks.round_start(submitted.round.number)
        refs = [*submitted.measured.values(), *validation]
        while not self.engine.wait(refs, TICK):
            if self.stopping.urgent:
                return
        values = self.engine.fetch(refs, small=True)
        self._pending.popleft()
        self.engine.delete(refs)
        self._complete_round(submitted)
        measured = dict(zip(submitted.measured, values, strict=False))
        warn_of_skipped_files(values, self._skipped)
        self.progress.skipped = tuple(dict.fromkeys([*self.progress.skipped, *self._skipped]))
        self._check_readable(measured)
        record = self._record(submitted.round, measured)
        if validation:
            record |= self.measures.values(values[len(measured) :], "val_")
        if self.workers.schedule is not None:
            self.workers.schedule.observe(record)
        self.stopping.after_round(self._seconds_of(record))
        self._warm = True
        self.on_record(record)

    def _seconds_of(self, record: Record) -> float:
        """Return the seconds that another round will take; the first one also waited for processes to start."""
        if self._warm:
            return float(record["seconds"])
        return max((worker["seconds"] for worker in record["workers"]), default=0.0)

    def _complete_round(self, submitted: SubmittedRound) -> None:
        self._complete.append(submitted)
        if len(self._complete) > 2:
            self.merge.retire(self._complete.popleft())
        self.workers.free_states(self._states, submitted.states)
        self._states = submitted.states
        self.progress.reached = submitted.round.end_position

    def _check_readable(self, measured: dict[int, dict[str, Any]]) -> None:
        """Raise ``BadFileError`` if no file of a whole epoch could be read."""
        self._unread += sum(sums.get("left_out", 0) for sums in measured.values())
        if any(sums["samples"] for sums in measured.values()):
            self._unread = 0
        elif self._unread >= sum(self.workers.data.sizes):
            file, reason = next(iter(self._skipped.items()))
            raise BadFileError(file, f"{reason}; nor can any other file be read")

    def _record(self, round_: Round, measured: dict[int, dict[str, Any]]) -> Record:
        now = self.stopping.clock()
        seconds, self._last_end = now - self._last_end, now
        samples = sum(round_.counts) - sum(sums.get("left_out", 0) for sums in measured.values())
        return {
            "round": round_.number,
            "epoch": round_.epoch,
            **self.measures.values(list(measured.values())),
            "samples": samples,
            "seconds": seconds,
            "samples_per_second": samples / seconds,
            "fit_started": self._began,
            "ended": time.time(),
            "merge": self.merge.name,
            **({"skipped": list(self.progress.skipped)} if self.progress.skipped else {}),
            **skipped_batches(sum(sums.get("skipped_batches", 0) for sums in measured.values())),
            **({"lr": self.workers.schedule.lr(round_.epoch - 1)} if self.workers.schedule else {}),
            "workers": [
                {"worker": worker, "samples": int(sums["samples"]), "seconds": sums["seconds"]}
                | self.measures.values([sums])
                | {name: sums[name] for name in ("started", "files", "skipped_batches") if name in sums}
                for worker, sums in measured.items()
            ],
        }
