"""The workers of an online fit as the coordinator sees them: their tasks, and their saves."""

import itertools
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils import files, validation
from compss_train.engines import Engine, Ref, calls
from compss_train.exceptions import WorkerLostError, WorkerTraceback
from compss_train.model.program_variables import warn_of_variables
from compss_train.model.training_spec import TrainingSpec
from compss_train.model.value_encoding import encode_value
from compss_train.net import Client, ConnectionLostError, Header, MessageError, ReceivedArray
from compss_train.online.events import ConnectedTask
from compss_train.online.online_job import OnlineJob
from compss_train.online.reports import Reports
from compss_train.online.saves import SavedWorker, buffer_file
from compss_train.online.worker_messages import (
    Command,
    Done,
    EndReception,
    Failed,
    Forget,
    GoOn,
    Listening,
    Reported,
    Save,
    SavePart,
    Settle,
    Shutdown,
    Stop,
    header_of,
    parse,
)
from compss_train.online.worker_task import train_online
from compss_train.training.session import Session
from compss_train.training.snapshot import worker_to_dict
from compss_train.training.training_state import NOTHING_KEPT

FAILURE_SECONDS = 10.0
"""How long the task of a worker may take to end after it has reported an exception."""
START_SECONDS = 300.0
"""Maximum time for a worker to start: with too few computing units some would never start."""


class Worker(ConnectedTask):
    """One worker."""

    def __init__(
        self, number: int, job: OnlineJob, engine: Engine, submit: Callable[[], Ref]
    ) -> None:
        super().__init__(engine, submit)
        self.number = number
        self._job = job
        self.url: str | None = None
        """Where it receives samples, once it does."""
        self.deaths = 0
        """How many attempts have ended."""
        self.losses = 0
        """How many of them since its last save."""
        self.commands: set[Command] = set()
        """The commands that the current attempt gets once, and has got."""
        self.done = False
        """Whether it has trained on all samples, or ``max_batches``."""
        self.settling = -1
        """The number of the last ``Settle`` that this attempt has got."""
        self.settled = -1
        """The number of the last one that it has answered."""
        self.part: SavedWorker | None = None
        """Its part of its last save."""
        self.arrived: SavePart | None = None
        """Its part of a save that is being made, if it has arrived."""
        self.repetitions: list[int] = []
        """At index n, how many samples it has trained on n times, once it is done."""
        self.state: Ref | None = None
        """State of its optimizer and random number generators, once it is done."""

    def tell(self, command: Command) -> None:
        """Send it a command, if it is connected."""
        self.send(header_of(command))

    def disconnect(self) -> None:
        """End an attempt: its process died. Raises ``WorkerLostError`` after the last one."""
        super().disconnect()
        self.url = None
        self.arrived = None
        self.commands.clear()
        self.settling = -1
        self.deaths += 1
        self.losses += 1
        if self.losses >= calls.MAX_RUNS and not self.done:
            raise WorkerLostError(
                f"worker {self.number} was started {self.losses} times, and each time its "
                "process died or its connection broke before its next save; if memory ran out, "
                "use a smaller buffer, smaller batches or fewer workers; if processes are killed "
                "often, a smaller checkpoint_every"
            )

    def has_saved(self, number: int) -> bool:
        """Return whether its part of the save with this number has arrived."""
        return self.arrived is not None and self.arrived.number == number

    def lacks_samples(self, stream: int, samples: int) -> int:
        """Return how many of its samples of a stream of ``samples`` its last save lacks.

        That is 0 once it is done.
        """
        if self.done:
            return 0
        saved = 0 if self.part is None else self.part.offsets.get(stream, 0)
        return self._job.routing.count(self.number, stream, range(saved, samples))

    def check(self) -> None:
        """Submit its task again if it was lost; raise the exception of a task that never connected.

        Raises ``WorkerLostError`` if it has not started in time.
        """
        self.restart(self._never_connected)
        if not self.has_connected and self.seconds_disconnected > START_SECONDS:
            raise WorkerLostError(
                f"worker {self.number} has not started within {START_SECONDS:.0f} s; all workers "
                "must run at the same time: use fewer of them or fewer threads, and check that "
                "they reach the coordinator's node"
            )

    def _never_connected(self, error: Exception | None) -> bool:
        """Raise an exception; count an attempt if its connection broke before it was accepted.

        A handshake that took too long also counts, as on a machine that was suspended.
        """
        if isinstance(error, ConnectionError | ConnectionLostError | TimeoutError):
            self.disconnect()
        elif error is not None:
            raise error
        return True


@dataclass
class RunningSave:
    """A save that is being made: workers stop for it one after another, until all have."""

    number: int
    urgent: bool
    """Whether workers stop at once, instead of at their next merge."""
    waits_since: float | None = None
    """When the first worker stopped."""


class Workers:
    """All workers: submitted together, restarted from their parts of the last save when they die.

    The buffers in these parts are files in a ``folder``, which may have them at the start, with
    ``parts``.
    """

    def __init__(
        self,
        session: Session,
        spec: TrainingSpec,
        job: OnlineJob,
        *,
        reports: Reports,
        folder: Path,
        parts: Sequence[SavedWorker] = (),
    ) -> None:
        self._session = session
        self._spec = spec
        self._reports = reports
        self._folder = folder
        self._has_warned = False
        """Whether there was a warning of a save that could not be stored."""
        self.on_losses: Callable[[int, NDArray[np.float64]], None] = lambda worker, rows: None
        """Gets the reports of workers on the losses of their samples."""
        self.saving: RunningSave | None = None
        """The save that is being made, if any."""
        self._changed_variables: set[tuple[str, str]] = set()
        """The variables of the program that workers have changed, until now."""
        self._saves = 0
        """How many saves were begun."""
        self.all = self._submitted(job)
        """The workers by number."""
        for worker, part in zip(self.all, parts, strict=False):
            self._resume(worker, part)

    def _submitted(self, job: OnlineJob) -> list[Worker]:
        session = self._session
        resources = replace(session.resources, own_process=True)
        spec = session.engine.publish(self._spec.weightless())
        moments = session.engine.publish(session.state().merge.moments)
        workers: list[Worker] = []
        for number, state in enumerate(session.separate_states()):
            arguments = (spec, state, job, number, session.device(number), moments)
            submit = partial(session.engine.submit, train_online, *arguments, resources=resources)
            workers.append(Worker(number, job, session.engine, submit=submit))
        return workers

    def _resume(self, worker: Worker, part: SavedWorker) -> None:
        """Let a worker continue from its part of a save, or be done with it."""
        if part.buffer is not None:
            buffer = self.buffer_of(worker.number)
            shutil.copyfile(part.buffer, buffer)
            worker.part = replace(part, buffer=buffer)
        if part.repetitions is not None:
            worker.done = True
            worker.repetitions = part.repetitions
            worker.state = self._session.engine.publish(part.state)

    @property
    def all_done(self) -> bool:
        """Whether all have trained on all samples, or ``max_batches``."""
        return all(worker.done for worker in self.all)

    def check(self) -> None:
        """Restart lost workers."""
        for worker in self.all:
            if not worker.done:
                worker.check()

    def are_settled(self, number: int) -> bool:
        """Return whether all have trained and reported every full batch of what had arrived.

        That is, when the first call with this ``number`` asked them; numbers grow.
        """
        for worker in self.all:
            if worker.settling < number and worker.url is not None:
                worker.tell(Settle(number))
                worker.settling = number
        return all(worker.done or worker.settled >= number for worker in self.all)

    def broadcast(self, command: EndReception | Stop) -> None:
        """Send a command to each worker once."""
        for worker in self.all:
            if worker.url is not None and command not in worker.commands:
                worker.tell(command)
                worker.commands.add(command)

    def _tell(self, command: Command) -> None:
        for worker in self.all:
            # Otherwise the reply to its greeting must be the first message.
            if worker.url is not None:
                worker.tell(command)

    def finish(self) -> None:
        """End the tasks, and keep the workers' states in the session."""
        for worker in self.all:
            worker.tell(Shutdown())
        states = [
            worker.state or state
            for worker, state in zip(self.all, self._session.states, strict=True)
        ]
        self._session.keep(states, NOTHING_KEPT)

    def repetitions(self) -> list[int]:
        """Return at index n how many samples were trained on n times."""
        by_worker = [worker.repetitions for worker in self.all]
        return [sum(counts) for counts in itertools.zip_longest(*by_worker, fillvalue=0)]

    # Saves

    def ask(self, *, urgent: bool = False) -> None:
        """Ask the workers to take part in a save, if all of them are there.

        They take part at their next merge, or at once if it is ``urgent``, which may be said later.
        """
        if self.saving is None:
            if not all(worker.done or worker.url is not None for worker in self.all):
                return
            self._saves += 1
            self.saving = RunningSave(self._saves, urgent)
        elif urgent and not self.saving.urgent:
            self.saving.urgent = True
        else:
            return
        self._tell(Save(self.saving.number, urgent))

    @property
    def all_saved(self) -> bool:
        """Whether all have taken part in the save that is being made, and wait."""
        return self.saving is not None and all(
            worker.done or worker.has_saved(self.saving.number) for worker in self.all
        )

    @property
    def seconds_waited(self) -> float:
        """For how long the first worker has stood still in the save that is being made."""
        if self.saving is None or self.saving.waits_since is None:
            return 0.0
        return time.monotonic() - self.saving.waits_since

    def go_on(self) -> None:
        """Let the workers go on after a save, or without it if one of them has died."""
        if self.saving is not None:
            self._tell(GoOn(self.saving.number))
            self.saving = None

    def store(self) -> bool:
        """Store the parts of a save that all have taken part in; workers that die resume from it.

        Return False, with a warning, if one cannot be stored; earlier ones stay valid.
        """
        for worker in self.all:
            arrived = worker.arrived
            worker.arrived = None
            if arrived is None:
                continue
            buffer = self.buffer_of(worker.number)
            try:
                with files.atomic_path(buffer) as path, path.open("wb") as file:
                    for piece in arrived.buffer:
                        file.writelines(piece.pieces)
            except OSError as error:
                self._warn_not_stored(worker, error)
                return False
            worker.losses = 0
            worker.part = SavedWorker(
                arrived.state, arrived.position, arrived.offsets, buffer=buffer
            )
        return True

    def _warn_not_stored(self, worker: Worker, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            validation.warn_user(
                f"the buffer of worker {worker.number} could not be saved: {error}; training "
                "continues; a worker that dies resumes from an earlier save: free space, set "
                "TMPDIR to another folder, or give checkpoint_every=None"
            )

    def parts(self) -> list[SavedWorker]:
        """Return the parts of the workers in the save that is complete."""
        return [self._part(worker) for worker in self.all]

    def _part(self, worker: Worker) -> SavedWorker:
        if worker.state is None:
            return cast("SavedWorker", worker.part)
        (state,) = self._session.engine.fetch([worker.state])
        return SavedWorker(state, {}, repetitions=worker.repetitions)

    def forget(self, streams: list[int]) -> None:
        """Let the workers forget streams whose samples are in the last save."""
        if streams:
            self._tell(Forget(streams))

    def buffer_of(self, worker: int) -> Path:
        """Return the file with the buffer of a worker in its part of the last save."""
        return self._folder / buffer_file(worker)

    # What workers tell

    def of(self, client: Client) -> Worker:
        """Return the worker that a client is; raise ``MessageError`` if it is none."""
        number = client.greeting.get("number")
        if not isinstance(number, int) or not 0 <= number < len(self.all):
            raise MessageError(f"worker {number}; there are {len(self.all)}")
        return self.all[number]

    def handle(
        self, worker: Worker, client: Client, header: Header | None, arrays: Sequence[ReceivedArray]
    ) -> Literal["died", "restarted"] | None:
        """Process a message of a worker; return what has become of it, if that matters to sources.

        Raises ``MessageError`` for a malformed message, before anything has changed.
        """
        if header is client.greeting:
            return self._connect(worker, client)
        if worker.client is not client:
            return None  # a duplicate with this number, which was rejected
        if header is None:
            self._lose(worker)
            return "died"
        message = parse(header, arrays)
        match message:
            case Listening():
                worker.url = message.url
            case Failed():
                self._raise_failure(worker, message)
            case _ if worker.done:
                pass  # this attempt only receives, so that no stream waits for it
            case Reported():
                self._add_report(worker, message)
            case SavePart():
                # A part of another save is late: a worker has died since.
                if self.saving is not None and self.saving.number == message.number:
                    worker.arrived = message
            case Done():
                worker.done = True
                worker.repetitions = message.repetitions
                worker.state = self._session.engine.publish(message.state)
                new = set(message.changed_variables) - self._changed_variables
                self._changed_variables |= new
                warn_of_variables(self._spec.roots(), sorted(new))
        return None

    def _connect(self, worker: Worker, client: Client) -> Literal["restarted"] | None:
        if not worker.connect(client):
            return None
        part: list[torch.Tensor] = []
        if worker.part is not None and not worker.done:
            saved = {"worker": worker_to_dict(worker.part.state), **worker.part.position}
            buffer = torch.from_numpy(np.fromfile(self.buffer_of(worker.number), np.uint8))
            part = [encode_value(saved), buffer]
        client.send({"accepted": True, "stop": worker.done}, part)
        return "restarted" if worker.deaths else None

    def _lose(self, lost_worker: Worker) -> None:
        """End the attempt of a worker, and the save that is being made, in which it is missing."""
        lost_worker.disconnect()
        for worker in self.all:
            worker.arrived = None
        self.go_on()

    def _raise_failure(self, worker: Worker, failure: Failed) -> None:
        """Raise the exception of a worker: that of its task, unless it does not end in time."""
        engine = self._session.engine
        if engine.wait([worker.ref], FAILURE_SECONDS):
            engine.fetch([worker.ref])
        error = RuntimeError(f"worker {worker.number} failed: {failure.error}")
        raise error from WorkerTraceback(failure.traceback)

    def _add_report(self, worker: Worker, message: Reported) -> None:
        self._reports.add(worker.number, message.report, message.held)
        if worker.number == 0:
            self._session.model.state = message.report.model_state
        if message.losses is not None:
            self.on_losses(worker.number, message.losses)
        worker.settled = message.settled
        saving = self.saving
        if saving is not None and message.stops == saving.number and saving.waits_since is None:
            saving.waits_since = time.monotonic()
