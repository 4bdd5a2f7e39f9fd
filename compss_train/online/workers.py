"""The workers of an online fit as the coordinator sees them: tasks, saves, and streams that send to
them.
"""

import itertools
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils import files, validation
from compss_train.data.partitioning import singles
from compss_train.engines import Engine, Ref, calls
from compss_train.exceptions import WorkerLostError, WorkerTraceback
from compss_train.model import saved_state
from compss_train.net import (
    Address,
    Client,
    ConnectionLostError,
    Header,
    MessageError,
    ReceivedArray,
    parsing,
    shortened,
)
from compss_train.online.events import ConnectedTask
from compss_train.online.records import Reports, WorkerReport
from compss_train.online.saves import SavedWorker, buffer_file
from compss_train.online.worker_task import OnlineJob, train_online
from compss_train.training.checkpoints import worker_from_dict, worker_to_dict
from compss_train.training.session import Session
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
        self.commands: set[str] = set()
        """The commands that were sent to the current attempt."""
        self.done = False
        self.asked = self.settled = -1
        """The last numbers that ``Workers.are_settled`` has sent to this attempt, and that it has
        answered.
        """
        self.part: SavedWorker | None = None
        """Its part of its last save."""
        self.saved: int | None = None
        """The number of the last save that this attempt has taken part in."""
        self.arrived: tuple[SavedWorker, Sequence[ReceivedArray]] | None = None
        """Its part of a save that is being made, and the file of its buffer in pieces."""
        self.repetitions: list[int] = []
        self.state: Ref | None = None
        """State of its optimizer and random number generators, once it is done."""

    def disconnect(self) -> None:
        """End an attempt: its process died. Raises ``WorkerLostError`` after the last one."""
        super().disconnect()
        self.url = self.saved = self.arrived = None
        self.commands.clear()
        self.asked = -1
        self.deaths += 1
        self.losses += 1
        if self.losses >= calls.MAX_RUNS and not self.done:
            raise WorkerLostError(
                f"worker {self.number} was started {self.losses} times, and each time its "
                "process died or its connection broke before its next save; if memory ran out, "
                "use a smaller buffer, smaller batches or fewer workers; if processes are killed "
                "often, a smaller checkpoint_every"
            )

    def lacks_samples(self, stream: int, samples: int) -> int:
        """Return how many of its samples of a stream of ``samples`` its last save lacks; 0 once it
        is done.
        """
        saved = 0 if self.part is None else self.part.offsets.get(stream, 0)
        return 0 if self.done else self._job.routed(self.number, stream, range(saved, samples))

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


class Workers:
    """All workers: submitted together, restarted from their parts of the last save when they die.

    The buffers in these parts are files in a ``folder``, which may have them at the start, with
    ``parts``.
    """

    def __init__(
        self,
        session: Session,
        job: OnlineJob,
        reports: Reports,
        folder: Path,
        parts: Sequence[SavedWorker] = (),
    ) -> None:
        session.regroup(singles(range(job.num_workers)))
        self._session = session
        self._reports = reports
        self._folder = folder
        self._warned = False
        self.on_losses: Callable[[int, NDArray[np.float64]], None] = lambda worker, rows: None
        """Gets the reports of workers on the losses of their samples."""
        self.asked: int | None = None
        """The number of the save that is being made."""
        self._saves = 0
        self._urgent = False
        self._waits_since: float | None = None
        resources = replace(session.resources, own_process=True)
        spec = session.engine.publish(session.model.built.training_spec.weightless())
        moments = session.merge_state.moments
        if not isinstance(moments, Ref):
            moments = session.engine.publish(moments)
        self.all: list[Worker] = []
        for number, state in enumerate(session.states):
            args = train_online, spec, state, job, number, session.device(number), moments
            submit = partial(session.engine.submit, *args, resources=resources)
            self.all.append(Worker(number, job, session.engine, submit))
        for worker, part in zip(self.all, parts, strict=False):
            self._resume(worker, part)

    def _resume(self, worker: Worker, part: SavedWorker) -> None:
        """Let a worker continue from its part of a save, which the folder has the buffer of, or be
        done with it.
        """
        if part.buffer is not None:
            shutil.copyfile(part.buffer, self.buffer_of(worker.number))
            worker.part = replace(part, buffer=self.buffer_of(worker.number))
        if part.repetitions is not None:
            worker.done = True
            worker.repetitions = part.repetitions
            worker.state = self._session.engine.publish((part.state,))

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
        """Return whether all have trained and reported every full batch of what had arrived when
        this was asked.

        ``number`` counts the questions; the first call with it asks the workers.
        """
        for worker in self.all:
            if worker.asked < number and worker.url is not None:
                worker.send({"settle": number})
                worker.asked = number
        return all(worker.done or worker.settled >= number for worker in self.all)

    # Saves

    def ask(self, *, urgent: bool = False) -> None:
        """Ask the workers to take part in a save at their next merge, or at once, if all of them
        are there.
        """
        if self.asked is None and all(worker.done or worker.url is not None for worker in self.all):
            self._saves += 1
            self.asked = self._saves
            self._urgent = False
            self._tell({"save": self.asked, "urgent": urgent})
        elif urgent and not self._urgent:
            self._tell({"save": self.asked, "urgent": True})
        self._urgent = urgent

    @property
    def all_saved(self) -> bool:
        """Whether all have taken part in the save that is being made, and wait."""
        return self.asked is not None and all(
            worker.done or worker.saved == self.asked for worker in self.all
        )

    @property
    def seconds_waited(self) -> float:
        """For how long the first worker has stood still in this save."""
        return 0.0 if self._waits_since is None else time.monotonic() - self._waits_since

    def go_on(self) -> None:
        """Let the workers go on after a save, or without it if one of them has died."""
        if self.asked is not None:
            self._tell({"go_on": self.asked})
            self.asked = self._waits_since = None

    def store(self) -> bool:
        """Store the parts of a save that all have taken part in, from which workers go on if they
        die.

        Return False, with a warning, if one cannot be stored; earlier ones stay valid.
        """
        for worker in self.all:
            if (arrived := worker.arrived) is None:
                continue
            worker.arrived = None
            try:
                with (
                    files.atomic_path(self.buffer_of(worker.number)) as path,
                    path.open("wb") as file,
                ):
                    for array in arrived[1]:
                        file.writelines(array.pieces)
            except OSError as error:
                self._warn_not_stored(worker, error)
                return False
            worker.losses = 0
            worker.part = arrived[0]
        return True

    def _warn_not_stored(self, worker: Worker, error: OSError) -> None:
        if not self._warned:
            self._warned = True
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
        ((state,),) = self._session.engine.fetch([worker.state])
        return SavedWorker(state, {}, repetitions=worker.repetitions)

    def _tell(self, header: Header) -> None:
        for worker in self.all:
            # Otherwise the reply to its greeting must be the first message.
            if worker.url is not None:
                worker.send(header)

    def broadcast(self, command: Literal["end_reception", "stop"]) -> None:
        """Send a command to each worker once: to expect no more samples, or to stop training."""
        for worker in self.all:
            if worker.url is not None and command not in worker.commands:
                worker.send({command: True})
                worker.commands.add(command)

    def forget(self, streams: list[int]) -> None:
        """Let the workers forget streams whose samples are in the last save."""
        if streams:
            self._tell({"forget": streams})

    def of(self, client: Client) -> Worker:
        """Return the worker that a client is; raise ``MessageError`` if it is none."""
        number = client.greeting.get("number")
        if not isinstance(number, int) or not 0 <= number < len(self.all):
            raise MessageError(f"worker {number}; there are {len(self.all)}")
        return self.all[number]

    def handle(
        self, worker: Worker, client: Client, header: Header | None, arrays: Sequence[ReceivedArray]
    ) -> Literal["died", "restarted"] | None:
        """Process a message of a worker; return what has become of it, if that matters to others.

        Raises ``MessageError`` for a malformed message, before anything has changed.
        """
        if header is client.greeting:
            return self._connect(worker, client)
        if worker.client is not client:
            return None  # a duplicate with this number, which was rejected
        if header is None:
            worker.disconnect()
            for each in self.all:
                each.arrived = None
            self.go_on()
            return "died"
        if "url" in header:
            with parsing():
                worker.url = Address(header["url"], token="").url
        elif "failed" in header:
            with parsing():
                failed, trace = (shortened(str(header[name])) for name in ("failed", "traceback"))
            engine = self._session.engine
            # It has the exception, messages hold its text only.
            if engine.wait([worker.ref], FAILURE_SECONDS):
                engine.fetch([worker.ref])
            raise RuntimeError(f"worker {worker.number} failed: {failed}") from WorkerTraceback(
                trace
            )
        elif worker.done:
            return None  # this attempt only receives, so that no stream waits for it
        elif "report" in header:
            with parsing():
                report = WorkerReport(**saved_state.decode_value(arrays[0].tensor()))
                losses = (
                    arrays[1].tensor().double().numpy().reshape(-1, 5) if len(arrays) > 1 else None
                )
                settled = int(header.get("settled", worker.settled))
            self._reports.add(worker.number, report)
            if losses is not None:
                self.on_losses(worker.number, losses)
            worker.settled = settled
            if self.asked is not None and header.get("stops") == self.asked:
                self._waits_since = self._waits_since or time.monotonic()
        elif "part" in header:
            with parsing():
                number = int(header["part"])
                saved, offsets, _ = (array.tensor().numpy().reshape(-1) for array in arrays[:3])
                position = saved_state.decode_value(torch.from_numpy(saved))
                state = worker_from_dict(position.pop("worker"))
                pairs: Any = offsets.astype(np.int64, casting="safe").reshape(-1, 2).tolist()
                part = SavedWorker(
                    state, position, dict(pairs), buffer=self.buffer_of(worker.number)
                )
            if number == self.asked:  # otherwise a worker has died since
                worker.saved = number
                worker.arrived = (part, arrays[2:])
        elif "done" in header:
            with parsing():
                repetitions = [int(number) for number in header["repetitions"]]
                state = worker_from_dict(saved_state.decode_value(arrays[0].tensor()))
            worker.done = True
            worker.repetitions = repetitions
            worker.state = self._session.engine.publish((state,))
        return None

    def _connect(self, worker: Worker, client: Client) -> Literal["restarted"] | None:
        if not worker.connect(client):
            return None
        part: list[torch.Tensor] = []
        if worker.part is not None and not worker.done:
            saved = {"worker": worker_to_dict(worker.part.state), **worker.part.position}
            buffer = torch.from_numpy(np.fromfile(self.buffer_of(worker.number), np.uint8))
            part = [saved_state.encode_value(saved), buffer]
        client.send({"accepted": True, "stop": worker.done}, part)
        return "restarted" if worker.deaths else None

    def buffer_of(self, worker: int) -> Path:
        """Return the file with the buffer of a worker in its part of the last save."""
        return self._folder / buffer_file(worker)

    def finish(self) -> None:
        """End the tasks, and keep the workers' states in the session."""
        for worker in self.all:
            worker.send({"shutdown": True})
        before = zip(self.all, self._session.states, strict=True)
        self._session.keep([worker.state or state for worker, state in before], NOTHING_KEPT)

    def repetitions(self) -> list[int]:
        """Return at index n how many samples were trained on n times."""
        each = [worker.repetitions for worker in self.all]
        return [sum(counts) for counts in itertools.zip_longest(*each, fillvalue=0)]


class StreamRouter:
    """Accepts streams, and gives them the addresses of the workers as often as one of them changes.

    ``key`` is the token that the workers' receivers require.
    """

    def __init__(self, workers: Sequence[Worker], key: str, *, paired: bool) -> None:
        self._workers = workers
        self._key = key
        self._paired = paired
        self.next_number = 0
        """Of the next sender's stream; the streams of simulations have the numbers of these, which
        are below.
        """
        # How often each worker had died when it was accepted.
        self._active: dict[Client, list[int]] = {}
        self._urls: list[str | None] = []

    def number(self) -> int:
        """Return the number of a new sender's stream."""
        self.next_number += 1
        return self.next_number - 1

    def register(self, client: Client, stream: int) -> None:
        """Accept a stream; it waits for workers that have no address yet."""
        self.update()
        self._active[client] = [worker.deaths for worker in self._workers]
        reply = {"stream": stream, "workers": self._urls, "key": self._key, "paired": self._paired}
        client.send({"accepted": True, **reply})

    def unregister(self, client: Client) -> list[Worker]:
        """Remove a stream that has ended; return the workers that have died since it was
        accepted.
        """
        deaths = self._active.pop(client)
        return [
            worker
            for worker, before in zip(self._workers, deaths, strict=True)
            if worker.deaths != before
        ]

    def update(self) -> None:
        """Send the addresses of the workers to all streams if one has changed; without one a worker
        has died.
        """
        before = self._urls
        self._urls = [worker.url for worker in self._workers]
        if self._urls != before:
            for client in self._active:
                client.send({"workers": self._urls})
