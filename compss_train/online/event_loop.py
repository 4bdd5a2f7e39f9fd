"""The coordinator's event loop of an online fit, which keeps workers and simulations running.

::

    simulations (tasks) ── samples ──▶ workers (tasks) ◀── parameters ──▶ parameter server
            │                                │
            └── messages ──▶ coordinator ◀───┘   starts them, restarts them, records
"""

import time
from dataclasses import dataclass
from typing import Any

from compss_train._utils.validation import warn_user
from compss_train.exceptions import DivergedError, SimulationError
from compss_train.model.parameters import Parameters
from compss_train.net import Client, Header, MessageError, Received, ReceivedArray
from compss_train.online.ending import Ending, Phase
from compss_train.online.events import EventServer
from compss_train.online.online_job import OnlineJob
from compss_train.online.recorder import Recorder
from compss_train.online.saves import SavedStudy
from compss_train.online.sources import Sources
from compss_train.online.stream_router import StreamRouter
from compss_train.online.study_monitor import StudyMonitor
from compss_train.online.worker_messages import EndReception, Stop
from compss_train.online.workers import Workers
from compss_train.training.schedules.server import GlobalParameters
from compss_train.training.snapshot import Study

_TICK = 0.1
"""Seconds between checks for changes that cause no message."""


@dataclass(kw_only=True, eq=False)
class EventLoop:
    """Trains an online fit in one thread; ``OnlineFit`` makes what it needs."""

    job: OnlineJob
    described_options: dict[str, Any]
    """What must be the same when a study goes on from a save."""
    server: EventServer
    parameters: GlobalParameters
    workers: Workers
    router: StreamRouter
    sources: Sources
    recorder: Recorder
    ending: Ending
    keeps_saves: bool
    """Whether a callback keeps saves; otherwise only workers that die go on from them."""
    monitor: StudyMonitor | None = None
    """What tells other programs of the study, if it has a folder."""

    def __post_init__(self) -> None:
        self._saved = time.monotonic()
        """When the last save was complete."""

    def go_on_from(self, study: SavedStudy) -> None:
        """Continue a study; its workers and inputs do so already."""
        self.recorder.reports.load_state_dict(study.reports)
        self.router.next_number = study.streams
        self.sources.runs.resume(dict(study.simulations["failures"]))
        self.sources.senders.resume(study.senders)

    def run(self) -> None:
        """Train until every worker is done, or the fit has to end without them."""
        self.recorder.start()
        while not self.workers.all_done and self.ending.phase is not Phase.ABANDONED:
            if self.ending.last_save is None:
                self.sources.runs.start()
            received = self.server.next(_TICK)
            while received is not None:
                self.handle(received)
                received = self.server.next(0)
            self._check()
        all_done = self.workers.all_done
        save = self.ending.last_save
        failure = self._failure() if all_done else None
        self.sources.stop(goes_on=save is not None and self.ending.urgent)
        if all_done:
            self.workers.finish()
            if self.keeps_saves and self.ending.reason is None and failure is None:
                self.sources.runs.forget_given_up()
                save = self._cut(self.parameters.pull(), self.parameters.pull_averaged())
            self.recorder.finish(self.sources.counts(), self.workers.repetitions(), save)
        elif save is not None:
            self.recorder.keep(save)
        if self.recorder.evaluation is not None:
            self.recorder.evaluation.warn_of_changes()
        if failure is not None:
            raise failure

    def _failure(self) -> SimulationError | None:
        """Return the error of a fit without samples, or without any complete source of them.

        Warn if sources were given up in others.
        """
        if self.ending.reason is None:
            failure = self.sources.sent_nothing()
            if failure is not None:
                return failure
            self._warn_of_late_training()
            failure = self.sources.none_complete()
            if failure is not None:
                return failure
        self.sources.warn_of_given_up()
        return None

    def _warn_of_late_training(self) -> None:
        received = self.recorder.reports.least_received
        needed = self.job.options.buffer.needed
        if received < needed:
            warn_user(
                f"a worker has received {received} samples, fewer than the threshold of its "
                f"buffer, {needed}: it has trained only after the last simulation; give a smaller "
                "threshold="
            )

    # Messages

    def handle(self, received: Received) -> None:
        """Act on a message; refuse a client whose message is malformed.

        Other errors are those of the fit.
        """
        client, header, arrays = received
        try:
            match client.greeting["role"]:
                case "worker":
                    self._handle_worker(client, header, arrays)
                case "simulation" | "sender":
                    self.sources.handle(client, header)
                case _:
                    if header is not None:  # an evaluation has ended
                        self.recorder.complete()
        except MessageError as error:
            client.refuse(error)

    def _handle_worker(
        self, client: Client, header: Header | None, arrays: list[ReceivedArray]
    ) -> None:
        worker = self.workers.of(client)
        try:
            outcome = self.workers.handle(worker, client, header, arrays=arrays)
        except DivergedError as error:
            if error.sample is not None:
                stream, step, name = error.sample
                error.add_note(
                    f"{name} of time step {step} of {self.sources.named(stream)} has NaN or "
                    "infinite values."
                )
            raise
        if outcome == "died" and self.ending.reason is None:
            self.sources.senders.lose_samples(worker)
        elif outcome == "restarted":
            self.sources.runs.repeat_lost(worker)
        self.router.update()

    def _check(self) -> None:
        """Do what is due, whatever messages have come."""
        self.workers.check()
        if not self.workers.all_done:
            self.ending.advance()
            if self.ending.phase is Phase.STOPPING:
                self.workers.broadcast(Stop())
        self._save_if_due()
        self.sources.runs.check(self.recorder.reports.received)
        self.sources.senders.check()
        if self.sources.all_ended:
            self.sources.senders.closed = True
            self.workers.broadcast(EndReception())
        saving = self._save_is_due or self.workers.saving is not None
        self.recorder.update(self.sources.counts(), saving=saving)
        if self.monitor is not None:
            self.monitor.update()

    # Saves

    def _save_if_due(self) -> None:
        """Ask for a save if one is due; complete it when all workers have taken part in it."""
        if self.workers.saving is None:
            self.sources.runs.forget_given_up()
        if self.ending.phase not in (Phase.TRAINING, Phase.SAVING):
            return  # workers that end are at no cut
        if self.workers.all_saved:
            self._complete_save()
        elif self.ending.phase is Phase.SAVING:
            self.recorder.drop_save()
            self.workers.ask(urgent=self.ending.urgent)
        elif self._save_is_due and self.recorder.is_idle:
            self.workers.ask()

    @property
    def _save_is_due(self) -> bool:
        """Whether ``checkpoint_every`` seconds have passed since the last save."""
        every = self.job.options.checkpoint_every
        return every is not None and time.monotonic() - self._saved > every

    def _complete_save(self) -> None:
        """Complete a save that all workers have taken part in; they go on, or stop after the last.

        They go on before their buffers are written. Nothing else is handled meanwhile, such as the
        end of a simulation.
        """
        is_last = self.ending.phase is Phase.SAVING
        parameters = self.parameters.pull() if self.keeps_saves else {}
        averaged = self.parameters.pull_averaged() if self.keeps_saves else None
        server = self.parameters.save() if self.keeps_saves else None
        waited = self.workers.seconds_waited
        if not is_last:
            self.workers.go_on()
        is_stored = self.workers.store()
        self._saved = time.monotonic()
        if not is_stored:
            if is_last:
                self.ending.end_saving(None)  # it does not wait until there is room
            self.workers.go_on()
            return
        safe = self.sources.runs.forget_safe(self.workers.all)
        save = self._cut(parameters, averaged, server) if self.keeps_saves else None
        if is_last:
            self.ending.end_saving(save)
            return
        self.workers.forget(safe)
        if save is not None:
            self.recorder.add_save(save, self.sources.counts(), waited)

    def _cut(
        self,
        parameters: Parameters,
        averaged: Parameters | None,
        server: dict[str, Any] | None = None,
    ) -> Study:
        """Return the state of everything; a complete study has no content of the ``server``."""
        saved = SavedStudy(
            is_complete=server is None,
            seed=self.job.seed,
            options=self.described_options,
            server=server,
            workers=self.workers.parts(),
            streams=self.router.next_number,
            simulations=self.sources.runs.state_dict(),
            senders=self.sources.senders.state_dict(self.workers.all),
            reports={},
        )
        return saved.to_study(parameters, averaged)
