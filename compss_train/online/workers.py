"""The workers of an online fit as the coordinator sees them: tasks, checkpoints, and streams that send to them."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

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
from compss_train.online.worker_task import OnlineJob, train_online
from compss_train.training.checkpoints import worker_from_dict
from compss_train.training.session import NOTHING_KEPT, Session

FAILURE_SECONDS = 10.0
"""How long the task of a worker may take to end after it has reported an exception."""
START_SECONDS = 300.0
"""Maximum time for a worker to start: with too few computing units some would never start."""


class Worker(ConnectedTask):
    """One worker."""

    def __init__(self, number: int, engine: Engine, submit: Callable[[], Ref]) -> None:
        super().__init__(engine, submit)
        self.number = number
        self.url: str | None = None
        """Where it receives samples, once it does."""
        self.deaths = 0
        """How many attempts have ended."""
        self.losses = 0
        """How many of them since its last checkpoint."""
        self.commands: set[str] = set()
        """The commands that were sent to the current attempt."""
        self.done = False
        self.asked = self.settled = -1
        """The last numbers that ``Workers.are_settled`` has sent to this attempt, and that it has answered."""
        self.saved_offsets: dict[int, int] = {}
        """The offsets in its last checkpoint, by stream."""
        self.repetitions: list[int] = []
        self.state: Ref | None = None
        """State of its optimizer and random number generators, once it is done."""

    def disconnect(self) -> None:
        """End an attempt: its process died. Raises ``WorkerLostError`` after the last one."""
        super().disconnect()
        self.url = None
        self.commands.clear()
        self.asked = -1
        self.deaths += 1
        self.losses += 1
        if self.losses >= calls.MAX_RUNS and not self.done:
            raise WorkerLostError(
                f"worker {self.number} was started {self.losses} times, and each time its process died or its "
                "connection broke before its next checkpoint; if memory ran out, use a smaller buffer, smaller "
                "batches or fewer workers; if processes are killed often, a smaller checkpoint_every"
            )

    def lacks_samples(self, job: OnlineJob, stream: int, samples: int) -> bool:
        """Return True if its checkpoint lacks some of its samples of a stream of ``samples``."""
        return not self.done and self.saved_offsets.get(stream, 0) < job.end_offset(self.number, stream, samples)

    def check(self) -> None:
        """Submit its task again if it was lost; raise the exception of a task that never connected.

        Raises ``WorkerLostError`` if it has not started in time.
        """
        self.restart(self._never_connected)
        if not self.has_connected and self.seconds_disconnected > START_SECONDS:
            raise WorkerLostError(
                f"worker {self.number} has not started within {START_SECONDS:.0f} s; all workers must run at the "
                "same time: use fewer of them or fewer threads, and check that they reach the coordinator's node"
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
    """All workers: submitted together, restarted from their checkpoints, files in a ``folder``, when they die."""

    def __init__(self, session: Session, job: OnlineJob, reports: Reports, folder: str) -> None:
        session.regroup(singles(range(job.num_workers)))
        self._session, self._reports, self._folder = session, reports, Path(folder)
        self._warned = False
        self.on_losses: Callable[[int, NDArray[np.float64]], None] = lambda worker, rows: None
        """Gets the reports of workers on the losses of their samples."""
        resources = replace(session.resources, own_process=True)
        spec = session.engine.publish(session.spec)
        self.all: list[Worker] = []
        for number, state in enumerate(session.states):
            args = train_online, spec, state, job, number, session.device(number)
            submit = partial(session.engine.submit, *args, resources=resources)
            self.all.append(Worker(number, session.engine, submit))

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
        """Return whether all have trained and reported every full batch of what had arrived when this was asked.

        ``number`` counts the questions; the first call with it asks the workers.
        """
        for worker in self.all:
            if worker.asked < number and worker.url is not None:
                worker.send({"settle": number})
                worker.asked = number
        return all(worker.done or worker.settled >= number for worker in self.all)

    def broadcast(self, command: Literal["end_reception", "stop"]) -> None:
        """Send a command to each worker once: to expect no more samples, or to stop training."""
        for worker in self.all:
            if worker.url is not None and command not in worker.commands:
                worker.send({command: True})
                worker.commands.add(command)

    def forget(self, streams: list[int]) -> None:
        """Let the workers forget streams whose samples are in the checkpoints of all of them."""
        for worker in self.all if streams else ():
            if worker.url is not None:  # otherwise the reply to its greeting must be the first message
                worker.send({"forget": streams})

    def of(self, client: Client) -> Worker:
        """Return the worker that a client is; raise ``MessageError`` if it is none."""
        number = client.greeting.get("number")
        if not isinstance(number, int) or not 0 <= number < len(self.all):
            raise MessageError(f"worker {number}; there are {len(self.all)}")
        return self.all[number]

    def handle(
        self, worker: Worker, client: Client, header: Header | None, arrays: Sequence[ReceivedArray]
    ) -> Literal["died", "restarted", "saved"] | None:
        """Process a message of a worker; return what has become of it, if that matters to others.

        Raises ``MessageError`` for a malformed message, before anything has changed.
        """
        if header is client.greeting:
            return self._connect(worker, client)
        if worker.client is not client:
            return None  # a duplicate with this number, which was rejected
        if header is None:
            worker.disconnect()
            return "died"
        if "url" in header:
            with parsing():
                worker.url = Address(header["url"], token="").url
        elif "failed" in header:
            with parsing():
                failed, trace = (shortened(str(header[name])) for name in ("failed", "traceback"))
            engine = self._session.engine
            if engine.wait([worker.ref], FAILURE_SECONDS):  # it has the exception, messages hold its text only
                engine.fetch([worker.ref])
            raise RuntimeError(f"worker {worker.number} failed: {failed}") from WorkerTraceback(trace)
        elif worker.done:
            return None  # this attempt only receives, so that no stream waits for it
        elif "report" in header:
            with parsing():
                report = WorkerReport(**saved_state.decode_value(arrays[0].tensor()))
                losses = arrays[1].tensor().double().numpy().reshape(-1, 5) if len(arrays) > 1 else None
                settled = int(header.get("settled", worker.settled))
            self._reports.add(worker.number, report)
            if losses is not None:
                self.on_losses(worker.number, losses)
            worker.settled = settled
        elif "checkpoint" in header:
            with parsing():
                checkpoint, offsets = (array.tensor().numpy().reshape(-1) for array in arrays)
                pairs: Any = offsets.astype(np.int64, casting="safe").reshape(-1, 2).tolist()
            client.send({"received": True})
            return self._save(worker, checkpoint, dict(pairs))
        elif "done" in header:
            with parsing():
                repetitions = [int(number) for number in header["repetitions"]]
                state = worker_from_dict(saved_state.decode_value(arrays[0].tensor()))
            worker.done, worker.repetitions = True, repetitions
            worker.state = self._session.engine.publish((state,))
        return None

    def _connect(self, worker: Worker, client: Client) -> Literal["restarted"] | None:
        if not worker.connect(client):
            return None
        path = self._checkpoint(worker)
        checkpoint = [torch.from_numpy(np.fromfile(path, np.uint8))] if path.exists() else []
        client.send({"accepted": True, "stop": worker.done}, checkpoint)
        return "restarted" if worker.deaths else None

    def _checkpoint(self, worker: Worker) -> Path:
        return self._folder / f"{worker.number}.checkpoint"

    def _save(self, worker: Worker, checkpoint: NDArray[Any], offsets: dict[int, int]) -> Literal["saved"] | None:
        try:
            with files.atomic_path(self._checkpoint(worker)) as path:
                path.write_bytes(checkpoint.data)
        except OSError as error:  # the last ones that could be stored stay valid
            if not self._warned:
                self._warned = True
                validation.warn_user(
                    f"a checkpoint of worker {worker.number} could not be written: {error}; training continues; "
                    "a worker that dies resumes from an earlier checkpoint: free space, set TMPDIR to another "
                    "folder, or give checkpoint_every=None"
                )
            return None
        worker.losses = 0
        worker.saved_offsets = offsets
        return "saved"

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
        self._workers, self._key, self._paired = workers, key, paired
        self.numbers = itertools.count()
        """Of the streams that are still to come."""
        self._active: dict[Client, list[int]] = {}  # how often each worker had died when it was accepted
        self._urls: list[str | None] = []

    def register(self, client: Client, stream: int) -> None:
        """Accept a stream; it waits for workers that have no address yet."""
        self.update()
        self._active[client] = [worker.deaths for worker in self._workers]
        reply = {"stream": stream, "workers": self._urls, "key": self._key, "paired": self._paired}
        client.send({"accepted": True, **reply})

    def unregister(self, client: Client) -> list[Worker]:
        """Remove a stream that has ended; return the workers that have died since it was accepted."""
        deaths = self._active.pop(client)
        return [worker for worker, before in zip(self._workers, deaths, strict=True) if worker.deaths != before]

    def update(self) -> None:
        """Send the addresses of the workers to all streams if one has changed; without one a worker has died."""
        before, self._urls = self._urls, [worker.url for worker in self._workers]
        if self._urls != before:
            for client in self._active:
                client.send({"workers": self._urls})
