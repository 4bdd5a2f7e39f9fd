"""The rounds of a fit: submit them a little ahead, collect what they measured, keep the history."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from compss_train.data.partitioning import Position, Round
from compss_train.engines import Engine, Ref
from compss_train.exceptions import BadFileError, EngineClosedError
from compss_train.model.metrics import Measures
from compss_train.model.parameters import Parameters
from compss_train.training.callback import CallbackList
from compss_train.training.data_source import DataSource
from compss_train.training.fit_options import FitOptions
from compss_train.training.inference import Inference, skipped_batches, tell_skipped
from compss_train.training.merging import Merge, Submitted
from compss_train.training.stopping import TICK, Stopping
from compss_train.training.task_submission import States, WorkerGroup, values_of
from compss_train.training.worker import WorkerState

Record = dict[str, Any]

MERGE_SECONDS = 1.0
"""How long an interrupted fit waits for the merge of a round whose training is complete."""


@dataclass
class FitProgress:
    """How far a fit has come, and what its rounds depend on."""

    options: FitOptions
    data: DataSource
    first_epoch: int
    """Of the fit, counted over all fits of the trainer."""
    reached: Position
    skipped: tuple[str, ...] = ()
    """Files that could not be read."""
    described: dict[str, Any] = field(default_factory=dict)
    """The options, and what is minimised: what has to be the same when the fit is resumed."""


@dataclass
class Rounds:
    """Runs the rounds of one fit."""

    engine: Engine
    fleet: WorkerGroup
    merge: Merge
    measures: Measures
    validation: Inference | None
    course: FitProgress
    stopping: Stopping
    told: CallbackList
    on_record: Callable[[Record], None]
    stopped: str | None = None
    """Why the fit ended before its last round."""
    _complete: deque[Submitted] = field(default_factory=deque)
    """The last two rounds whose training is complete; the merge of the last may still be running."""
    _pending: deque[tuple[Submitted, list[Ref]]] = field(default_factory=deque)
    _skipped: dict[str, str] = field(default_factory=dict)
    """Files that this process could not read, and why."""
    _left_out: int = 0
    """Samples of files that could not be read since the last round that trained something."""
    _warm: bool = False
    """Whether a round has ended, so that the processes run."""
    _began: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self._states: States = tuple(self.fleet.states)
        """Each worker's state after the last complete round."""
        self._last_end = self.stopping.clock()

    def run(self, rounds: Iterable[Round]) -> Parameters | None:
        """Submit and collect rounds until there are no more or the fit is to stop.

        Returns the final parameters, ``None`` where it stops before any round is complete. An exception of a task
        is raised here.
        """
        upcoming = iter(rounds)
        left = deque(islice(upcoming, 1))  # whether there is one is known before it is submitted
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
        """Return the global parameters after the last complete round, ``None`` before there is one."""
        return self.merge.current(self._complete[-1]) if self._complete else None

    def settled(self) -> tuple[Parameters | None, list[WorkerState]]:
        """Return the same with each worker's state then, for a round of which a callback ``needs_state``."""
        parameters = self._settled() if self._complete else None
        return parameters, values_of(self.engine, self._states)

    def _settled(self) -> Parameters:
        return self.merge.settled(self._complete[-1])

    def newest(self) -> Parameters | None:
        """Return the parameters after the last complete round, or ``None`` where they cannot be had soon."""
        with contextlib.suppress(OSError, EngineClosedError):  # whatever ended the fit is what is told
            for submitted in reversed(self._complete):
                newest: Parameters | None = self.engine.peek(submitted.parameters, MERGE_SECONDS)
                if newest is not None:
                    return newest
        return None

    def _may_submit(self) -> bool:
        if not self._pending:
            return True
        last = self._pending[-1][0].round.number
        if self.fleet.schedule is not None and self.fleet.schedule.waits:
            return False
        if not self.engine.asynchronous or (not self.merge.by_rounds and self.told.needs_state(last)):
            return False
        return len(self._pending) <= self.merge.rounds_ahead

    def _submit(self, round_: Round) -> None:
        submitted = self.merge.submit(self.fleet, round_)
        validation = self.validation.evaluate(submitted.parameters) if self.validation else []
        self._pending.append((submitted, validation))

    def _end_early(self) -> None:
        """Give up the rounds that have been submitted, unless what they trained is merged already."""
        if not self.merge.by_rounds:
            while self._pending and not self.stopping.urgent:
                self._collect()
        self.merge.go_back(self._complete[-1] if self._complete else None)
        given_up: dict[int, WorkerState | Ref] = {}
        for submitted, validation in self._pending:
            self.engine.delete([*submitted.measured.values(), *validation])
            self.merge.retire(submitted)
            given_up |= {id(state): state for state in submitted.states}
        self.fleet.free_states(list(given_up.values()), self._states)
        self.fleet.states[:] = self._states
        self._pending.clear()

    def _final(self) -> Parameters | None:
        if self.stopped is not None:
            return self.current() if self.stopping.urgent or not self._complete else self._settled()
        final: Parameters = self.engine.fetch([self.merge.parameters])[0]
        return final

    def _collect(self) -> None:
        """Wait for the next round and record it, unless the fit is to stop at once."""
        submitted, validation = self._pending[0]
        self.told.round_start(submitted.round.number)
        refs = [*submitted.measured.values(), *validation]
        while not self.engine.wait(refs, TICK):
            if self.stopping.urgent:
                return
        values = self.engine.fetch(refs, small=True)
        self._pending.popleft()
        self.engine.delete(refs)
        self._complete_round(submitted)
        measured = dict(zip(submitted.measured, values, strict=False))
        tell_skipped(values, self._skipped)
        self.course.skipped = tuple(dict.fromkeys([*self.course.skipped, *self._skipped]))
        self._check_something_is_read(measured)
        record = self._record(submitted.round, measured)
        if validation:
            record |= self.measures.values(values[len(measured) :], "val_")
        if self.fleet.schedule is not None:
            self.fleet.schedule.observe(record)
        self.stopping.after_round(self._seconds_of(record))
        self._warm = True
        self.on_record(record)

    def _seconds_of(self, record: Record) -> float:
        """Return how long another round like this will take: the first one waited for processes to start, too."""
        if self._warm:
            return float(record["seconds"])
        return max((worker["seconds"] for worker in record["workers"]), default=0.0)

    def _complete_round(self, submitted: Submitted) -> None:
        self._complete.append(submitted)
        if len(self._complete) > 2:
            self.merge.retire(self._complete.popleft())
        self.fleet.free_states(self._states, submitted.states)
        self._states = submitted.states
        self.course.reached = submitted.round.reached

    def _check_something_is_read(self, measured: dict[int, dict[str, Any]]) -> None:
        """Raise ``BadFileError`` where no file of as many samples as an epoch has can be read."""
        self._left_out += sum(sums.get("left_out", 0) for sums in measured.values())
        if any(sums["samples"] for sums in measured.values()):
            self._left_out = 0
        elif self._left_out >= sum(self.fleet.data.sizes):
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
            **({"skipped": list(self.course.skipped)} if self.course.skipped else {}),
            **skipped_batches(sum(sums.get("skipped_batches", 0) for sums in measured.values())),
            **({"lr": self.fleet.schedule.lr(round_.epoch - 1)} if self.fleet.schedule else {}),
            "workers": [
                {"worker": worker, "samples": int(sums["samples"]), "seconds": sums["seconds"]}
                | self.measures.values([sums])
                | {name: sums[name] for name in ("started", "files", "skipped_batches") if name in sums}
                for worker, sums in measured.items()
            ],
        }
