"""An online fit: the coordinator's event loop, which keeps workers and simulations running until all is trained.

::

    simulations (tasks)  ── samples, over ZeroMQ ▶  workers (tasks): buffer ─▶ model replica ◀─▶ parameter server
            │                                         │
            └────────── events ──▶ coordinator ◀──────┘  starts them, restarts them, records
"""

import itertools
import time
from collections.abc import Callable
from typing import ClassVar

from compss_train.model.parameters import Parameters
from compss_train.online.event_server import Event, EventServer
from compss_train.online.options import OnlineJob
from compss_train.online.records import Recorder
from compss_train.online.simulation_queue import SimulationQueue
from compss_train.online.simulation_runner import SimulationRunner
from compss_train.online.simulations import Simulations
from compss_train.online.stream_router import ExternalSenders, StreamRouter
from compss_train.online.workers import CheckpointStore, Workers
from compss_train.training.rounds import MERGE_SECONDS
from compss_train.training.session import Session
from compss_train.training.stopping import Stopping
from compss_train.training.training_state import TrainingState

_TICK = 0.1
"""Seconds between checks for changes that cause no event."""

GRACE = 5.0
"""Seconds for workers to end a fit that stops at once; they merge once more and send their states."""


class OnlineFit:
    """Runs one fit, in one thread."""

    occupies_workers: ClassVar[bool] = True

    def __init__(
        self,
        *,
        session: Session,
        simulations: Simulations,
        job: OnlineJob,
        server: EventServer,
        pull: Callable[..., Parameters],
        recorder: Recorder,
        checkpoints: CheckpointStore,
        stopping: Stopping,
    ) -> None:
        self._job, self._server, self._pull, self._recorder = job, server, pull, recorder
        self._session, self._stopping = session, stopping
        self._urgent_since: float | None = None
        self.stopped: str | None = None
        """Why the fit ended before all samples were trained on."""
        numbers = itertools.count()
        inputs = None if simulations.simulate is None else simulations.inputs
        self._simulations = SimulationQueue(inputs, simulations.retries, numbers.__next__)
        self._workers = Workers(
            session=session,
            job=job,
            simulations=self._simulations,
            progress=recorder.progress,
            checkpoints=checkpoints,
        )
        self._router = StreamRouter(self._workers.all, job.key, paired=job.paired)
        self._runner = SimulationRunner(
            engine=session.engine,
            queue=self._simulations,
            router=self._router,
            simulations=simulations,
            job=job,
        )
        self._senders = ExternalSenders(simulations.senders, self._router, numbers.__next__)

    def current(self) -> Parameters:
        """Return the current global parameters."""
        return self._pull()

    def averaged(self) -> None:
        """Return ``None``: an online fit keeps no average."""

    def settled(self) -> tuple[Parameters, TrainingState]:
        """Return the current global parameters, and the state at the start of the fit.

        The workers report their new states when the fit ends.
        """
        return self.current(), self._session.state()

    def newest(self) -> Parameters:
        """Return the global parameters after a fit has failed; raises ``OSError`` after a short timeout."""
        return self._pull(timeout=MERGE_SECONDS)

    def run(self) -> None:
        """Train until every worker is done."""
        self._recorder.start()
        while not self._workers.all_done and not self._grace_is_over():
            self._runner.start()
            event = self._server.next(_TICK)
            while event is not None:
                self._handle(event)
                event = self._server.next(0)
            self._check()
        self._finish()

    def _grace_is_over(self) -> bool:
        """Return True if the fit had to stop at once and the workers have not ended in time."""
        if not self._stopping.urgent:
            return False
        self._urgent_since = self._urgent_since or time.monotonic()
        return time.monotonic() - self._urgent_since > GRACE

    def _handle(self, event: Event) -> None:
        client, header = event.client, event.header
        if client.role == "worker":
            if (died := self._workers.handle(client, header, event.arrays)) is not None:
                self._senders.warn_lost_samples(died, self._job)
            self._router.update()
        elif client.role == "simulation":
            self._runner.handle(client, header)
        elif client.role == "sender":
            try:
                self._senders.handle(client, header)
            except (ValueError, TypeError, LookupError) as error:  # a malformed message of a foreign program
                client.send({"error": f"{type(error).__name__}: {error}"})
        elif header is not None:
            self._recorder.complete(header.get("evaluated"))

    def _check(self) -> None:
        self._workers.restart_lost()
        if self._stopping.reason is not None and not self._workers.all_done:
            self.stopped = self._stopping.reason
            self._workers.broadcast("stop")
        self._simulations.check(self._recorder.progress.received)
        if self._simulations.all_ended and self._senders.all_ended:
            self._senders.close_registration()
            self._workers.broadcast("end_reception")
        self._recorder.update(self._simulations.counts())

    def _finish(self) -> None:
        done = self._workers.all_done
        if done:
            self._simulations.check(self._recorder.progress.received, final=True)
        self._runner.stop()
        self._senders.stop()
        if done:
            self._workers.finish()
            self._recorder.finish(self._simulations.counts(), self._workers.repetitions())
        self._recorder.close()
