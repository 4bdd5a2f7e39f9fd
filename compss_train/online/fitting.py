"""An online fit: the coordinator keeps workers and simulations going, event after event, until all is trained.

::

    simulations (tasks)  ── samples, over TCP ──▶  workers (tasks): buffer ─▶ model copy ◀─▶ parameter server
            │                                         │
            └────────── events ──▶ coordinator ◀──────┘  starts them, replaces them, records
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from compss_train.model.metrics import Measures
from compss_train.model.parameters import Parameters
from compss_train.online.connection import Header
from compss_train.online.evaluation import Evaluation
from compss_train.online.event_server import Client, Director, Event
from compss_train.online.job import OnlineJob
from compss_train.online.options import OnlineOptions
from compss_train.online.progress import Progress
from compss_train.online.senders import Senders
from compss_train.online.simulation_runner import Crew
from compss_train.online.simulations import Simulations
from compss_train.online.stream_router import Reception
from compss_train.online.workers import Checkpoints, Workers
from compss_train.training.rounds import MERGE_SECONDS
from compss_train.training.session import Session
from compss_train.training.stopping import Stopping
from compss_train.training.task_submission import fetch_states
from compss_train.training.worker import WorkerState

_TICK = 0.1
"""Seconds after which the coordinator looks after what no event tells."""

GRACE = 5.0
"""Seconds that workers have to end a fit that stops at once; they merge once more and hand over their states."""

Record = dict[str, Any]


@dataclass
class Recording:
    """Where records go, and what they are made with."""

    measures: Measures
    first: int
    """Number of the first record."""
    epoch: int
    every: float
    """Seconds between them."""
    evaluation: Evaluation | None
    on_record: Callable[[Record], None]
    on_start: Callable[[int], None]
    """Told the number of each record when it begins to be waited for."""


class OnlineFit:
    """Runs one fit; all that is here happens in one thread."""

    occupies_workers: ClassVar[bool] = True

    def __init__(
        self,
        session: Session,
        options: OnlineOptions,
        job: OnlineJob,
        director: Director,
        pull: Callable[..., Parameters],
        recording: Recording,
        saved: Checkpoints,
        stopping: Stopping,
    ) -> None:
        self._session, self._stopping = session, stopping
        self._urgent_since: float | None = None
        self.stopped: str | None = None
        """Why the fit ended before all was trained."""
        self._director, self._job, self._pull, self._recording = director, job, pull, recording
        self._progress = Progress(job.num_workers, recording.measures)
        numbers = itertools.count()
        inputs = None if options.simulate is None else options.inputs
        self._simulations = Simulations(inputs, options.simulation_retries, numbers.__next__)
        self._workers = Workers(session, job, self._simulations, self._progress, saved)
        self._reception = Reception(self._workers.all, job.key, paired=job.paired)
        self._crew = Crew(session.engine, self._simulations, self._reception, options, job)
        self._senders = Senders(options.senders, self._reception, numbers.__next__)
        self._records = itertools.count(recording.first)
        self._pending: Record | None = None  # a record whose validation is still to come

    def settled(self) -> tuple[Parameters, list[WorkerState]]:
        """Return the same, and the workers' states at the start of the fit: they report theirs when it ends."""
        return self.current(), fetch_states(self._session.engine, self._session.states)

    def current(self) -> Parameters:
        """Return the global parameters as they are by now."""
        return self._pull()

    def newest(self) -> Parameters:
        """Return the same after a fit has failed, or raise an ``OSError`` where they cannot be had soon."""
        return self._pull(timeout=MERGE_SECONDS)

    def run(self) -> None:
        """Train until every worker is done."""
        self._recording.on_start(self._recording.first)
        while not self._workers.all_done and not self._is_given_up():
            self._crew.start()
            event = self._director.next(_TICK)
            while event is not None:
                self._handle(event)
                event = self._director.next(0)
            self._look_after()
        if self._workers.all_done:
            self._simulations.check(self._progress.received, at_last=True)
        self._crew.stop()
        self._senders.stop()
        if self._workers.all_done:
            self._workers.end()
            self._record_last()

    def _is_given_up(self) -> bool:
        """Tell whether the fit had to stop at once and workers have not, as they have not even started, say."""
        if not self._stopping.urgent:
            return False
        self._urgent_since = self._urgent_since or time.monotonic()
        return time.monotonic() - self._urgent_since > GRACE

    def _handle(self, event: Event) -> None:
        peer, header = event.peer, event.header
        if peer.role == "worker":
            if (died := self._workers.handle(peer, header, event.arrays)) is not None:
                self._reception.tell_left(died)
                self._senders.tell_lost(died, self._job)
            self._reception.look()
        elif peer.role == "simulation":
            self._crew.handle(peer, header)
        elif peer.role == "sender":
            self._hear_sender(peer, header)
        elif header is not None and self._recording.evaluation is not None:
            self._take_validation(header.get("evaluated"))

    def _hear_sender(self, peer: Client, header: Header | None) -> None:
        try:
            self._senders.handle(peer, header)
        except (ValueError, TypeError, LookupError) as error:  # it is not our program
            peer.tell({"error": f"{type(error).__name__}: {error}"})

    def _look_after(self) -> None:
        self._workers.look_after()
        if self._stopping.reason is not None and not self._workers.all_done:
            self.stopped = self._stopping.reason
            self._workers.order("stop")
        self._simulations.check(self._progress.received)
        if self._simulations.all_ended and self._senders.all_ended:
            self._senders.shut_out()
            self._workers.order("over")
        self._take_validation()
        if self._pending is None and self._progress.is_due(self._recording.every):
            self._record()

    # Records

    def _record(self) -> None:
        record = self._progress.record(next(self._records), self._recording.epoch, self._simulations.counts())
        if self._recording.evaluation is None:
            self._tell(record)
        else:
            self._recording.evaluation.start(self._pull())
            self._pending = record

    def _take_validation(self, number: int | None = None, *, wait: bool = False) -> None:
        """Complete the pending record if its validation is there."""
        record, evaluation = self._pending, self._recording.evaluation
        if record is None or evaluation is None or not (wait or evaluation.is_there(number)):
            return
        self._pending = None
        validated = self._validated(evaluation)
        if validated is not None:
            self._tell(record | validated)

    def _validated(self, evaluation: Evaluation) -> Record | None:
        """Return what the evaluation has measured, for a record; ``None`` where there is no time for it."""
        sums = evaluation.wait(self._stopping)
        evaluation.end()
        return None if sums is None else self._recording.measures.values(sums, "val_")

    def _tell(self, record: Record) -> None:
        self._recording.on_record(record)
        self._recording.on_start(record["round"] + 1)

    def _record_last(self) -> None:
        """Wait for what is pending, and record what is left, how often samples were trained on among it."""
        evaluation = self._recording.evaluation
        self._take_validation(wait=True)
        record = self._progress.last_record(next(self._records), self._recording.epoch, self._simulations.counts())
        if evaluation is not None:
            evaluation.start(self._pull(), told=False)
            if (validated := self._validated(evaluation)) is None:
                return  # a record without validation would be none that callbacks know what to do with
            record |= validated
        self._recording.on_record(record | {"repetitions": self._workers.repetitions()})
