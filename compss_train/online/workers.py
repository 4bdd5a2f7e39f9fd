"""The workers of an online fit as the coordinator sees them: tasks, connections, endpoints and checkpoints."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np
import torch

from compss_train._utils import Closable
from compss_train._utils.files import TemporaryFolder
from compss_train._utils.validation import warn_user
from compss_train.engines import Ref
from compss_train.engines.calls import MAX_RUNS
from compss_train.engines.liveness import too_silent
from compss_train.exceptions import WorkerLostError, WorkerTraceback
from compss_train.model.weighted_mean import aligned_ranges
from compss_train.net.connection import ConnectionLostError, Header
from compss_train.online.event_server import Client, TaskLiveness
from compss_train.online.options import OnlineJob
from compss_train.online.receiver import Offsets
from compss_train.online.records import Progress, Report
from compss_train.online.simulation_queue import Simulation, SimulationQueue
from compss_train.online.values import decode_value
from compss_train.online.worker_task import train_online
from compss_train.training.session import Session
from compss_train.training.training_state import worker_from_dict

FAILURE_SECONDS = 10.0
"""How long the task of a worker may take to end after it has reported an exception."""
START_SECONDS = 300.0
"""Maximum time for a worker to start: with too few computing units some would never start."""


class Worker:
    """One worker."""

    def __init__(self, number: int, task: Ref, clock: Callable[[], float] = time.monotonic) -> None:
        self.number, self.task = number, task
        self._clock = clock
        self.liveness = TaskLiveness(clock)
        self.url: str | None = None
        """Where it receives samples, once it does."""
        self.deaths = 0
        """How many attempts have ended."""
        self.losses = 0
        """How many of them since its last checkpoint."""
        self.commands: set[str] = set()
        """The commands that were sent to the current attempt."""
        self.done = False
        self.saved_offsets: Offsets = {}
        """The offsets in its last checkpoint."""
        self.repetitions: list[int] = []
        self.state: Ref | None = None
        """State of its optimizer and random number generators, once it is done."""
        self._process = "unknown"
        self._heard, self._longest_silence = clock(), 0.0

    def hear(self, header: Header) -> None:
        """Note that it has sent a message."""
        self._process = header.get("process", self._process)
        if "role" not in header:  # with which an attempt begins
            self._longest_silence = max(self._longest_silence, self._clock() - self._heard)
        self._heard = self._clock()

    def warn_if_silent(self) -> None:
        """Warn if it has sent nothing for long, though workers send something twice a second.

        The silence is the longest so far from then on, so that the next warning comes after ten times as long.
        """
        silence = self._clock() - self._heard
        if too_silent(silence, self._longest_silence):
            self._longest_silence = silence
            warn_user(
                f"worker {self.number} has sent nothing for {silence:.0f} s: its process, {self._process}, is "
                "stopped (kill -CONT lets it go on) or hangs; if it is killed, another one goes on from its last "
                "checkpoint"
            )

    def resubmitted(self, task: Ref) -> None:
        """Replace its task."""
        self.task, self.liveness = task, TaskLiveness(self._clock)

    def send(self, header: Header, arrays: Sequence[torch.Tensor] = ()) -> None:
        """Send a message if it is connected."""
        if self.liveness.client is not None:
            self.liveness.client.send(header, arrays)

    def connect(self, client: Client) -> None:
        """Start an attempt: its task has connected."""
        self.liveness.connect(client)

    def disconnect(self) -> None:
        """End an attempt: its process died. Raises ``WorkerLostError`` after the last one."""
        self.liveness.disconnect()
        self.url = None
        self.commands.clear()
        self.deaths += 1
        self.losses += 1
        if self.losses >= MAX_RUNS and not self.done:
            raise WorkerLostError(
                f"worker {self.number} was started {self.losses} times, and each time its process died or its "
                "connection broke before its next checkpoint; if memory ran out, use a smaller buffer, smaller "
                "batches or fewer workers; if processes are killed often, a smaller checkpoint_every"
            )

    def lacks_samples(self, job: OnlineJob, stream: int, samples: int) -> bool:
        """Return True if its checkpoint lacks some of its samples of a stream of ``samples``."""
        return not self.done and self.saved_offsets.get(stream, 0) < job.end_offset(self.number, stream, samples)

    def check_start(self) -> None:
        """Raise ``WorkerLostError`` if it has not started in time."""
        if not self.liveness.has_connected and self.liveness.seconds_disconnected > START_SECONDS:
            raise WorkerLostError(
                f"worker {self.number} has not started within {START_SECONDS:.0f} s; all workers must run at the "
                "same time: use fewer of them or fewer threads, and check that they reach the coordinator's node"
            )


class Workers:
    """All workers: submitted together, restarted from their checkpoints when they die."""

    def __init__(
        self,
        *,
        session: Session,
        job: OnlineJob,
        simulations: SimulationQueue,
        progress: Progress,
        checkpoints: CheckpointStore,
    ) -> None:
        session.regroup(aligned_ranges(job.num_workers, places=0))
        self._session, self._job = session, job
        self._simulations, self._progress, self._checkpoints = simulations, progress, checkpoints
        self._warned = False
        self.all = [Worker(number, self._submit(number)) for number in range(job.num_workers)]

    def _submit(self, number: int) -> Ref:
        session = self._session
        args = session.training_spec, session.states[number], self._job, number, session.devices[number]
        # No task waits for another: one that is submitted again would wait for the end of the fit.
        resources = replace(session.resources, gpu_tasks=0, own_process=True)
        task: Ref = session.engine.submit(train_online, *args, resources=resources)
        return task

    @property
    def all_done(self) -> bool:
        """Whether all have trained on all samples, or ``max_batches``."""
        return all(worker.done for worker in self.all)

    def restart_lost(self) -> None:
        """Resubmit tasks lost with their node or connection; raises exceptions of tasks that never connected."""
        engine = self._session.engine
        for worker in self.all:
            if worker.done:
                continue
            if worker.liveness.client is not None:
                worker.warn_if_silent()
                continue
            ended = bool(engine.arrived([worker.task]))
            if ended and not worker.liveness.has_connected:
                self._never_connected(worker)
            if ended or (not engine.traits.interruptible and worker.liveness.is_lost):
                engine.delete([worker.task])
                worker.resubmitted(self._submit(worker.number))
            worker.check_start()

    def _never_connected(self, worker: Worker) -> None:
        """Raise the exception of a task; count an attempt if its connection broke before it was accepted.

        So does a handshake that took too long, as on a machine that was suspended meanwhile.
        """
        try:
            self._session.engine.fetch([worker.task])
        except (ConnectionError, ConnectionLostError, TimeoutError):
            worker.disconnect()

    def broadcast(self, command: Literal["end_reception", "stop"]) -> None:
        """Send a command to each worker once: to expect no more samples, or to stop training."""
        for worker in self.all:
            if worker.url is not None and command not in worker.commands:
                worker.send({command: True})
                worker.commands.add(command)

    def handle(self, client: Client, header: Header | None, arrays: Sequence[torch.Tensor]) -> Worker | None:
        """Process an event of a worker; return the worker if it has just died."""
        worker = self.all[int(client.number)]
        if header is not None and worker.liveness.client in (client, None):
            worker.hear(header)
        if header is not None and "role" in header:
            self._connect(worker, client)
        elif worker.liveness.client is not client:
            return None  # a duplicate with this number, which was rejected
        elif header is None:
            worker.disconnect()
            return worker
        elif "url" in header:
            worker.url = header["url"]
        elif "report" in header:
            self._progress.add(worker.number, Report(**decode_value(arrays[0])))
        elif "checkpoint" in header:
            self._checkpointed(worker, *arrays)
        elif "done" in header:
            worker.done, worker.repetitions = True, header["repetitions"]
            worker.state = self._session.engine.publish((worker_from_dict(decode_value(arrays[0])),))
        elif "failed" in header:
            self._raise(worker, header)
        return None

    def _raise(self, worker: Worker, header: Header) -> NoReturn:
        """Raise the exception of a worker's task, which the engine has: messages hold its text only."""
        engine = self._session.engine
        if engine.wait([worker.task], FAILURE_SECONDS):
            engine.fetch([worker.task])
        raise RuntimeError(f"worker {worker.number} failed: {header['failed']}") from WorkerTraceback(
            header["traceback"]
        )

    def _connect(self, worker: Worker, client: Client) -> None:
        if worker.liveness.client is not None:
            client.send({"accepted": False})
            return
        is_restart = worker.deaths > 0
        worker.connect(client)
        if worker.done:
            client.send({"accepted": True, "done": True})
            return
        client.send({"accepted": True}, self._checkpoints.load(worker.number))
        for simulation in self._simulations.done if is_restart else ():
            if worker.lacks_samples(self._job, simulation.number, simulation.samples):
                self._simulations.requeue(simulation)

    def _checkpointed(self, worker: Worker, checkpoint: torch.Tensor, offsets: torch.Tensor) -> None:
        """Drop simulations whose samples are in the checkpoints of all workers, here and in the workers."""
        try:
            self._checkpoints.store(worker.number, checkpoint)
        except OSError as error:
            self._warn_not_stored(str(error))
            return
        worker.losses = 0
        worker.saved_offsets = dict(offsets.reshape(-1, 2).tolist())
        safe = [each for each in self._simulations.done if not self._lacked(each)]
        for simulation in safe:
            self._simulations.forget(simulation)
        # A worker without address is still connecting: its first message must be the reply to its greeting.
        for other in [worker for worker in self.all if safe and worker.url is not None]:
            other.send({"forget": [simulation.number for simulation in safe]})

    def _warn_not_stored(self, reason: str) -> None:
        """Warn once that checkpoints cannot be stored; the last ones that could stay valid."""
        if not self._warned:
            self._warned = True
            warn_user(
                f"{reason}; training goes on, and a worker that dies continues from its checkpoint before: free "
                "space, set TMPDIR to another folder, or give checkpoint_every=None"
            )

    def _lacked(self, simulation: Simulation) -> bool:
        """Return True if the death of some worker would require this simulation again."""
        return any(worker.lacks_samples(self._job, simulation.number, simulation.samples) for worker in self.all)

    def finish(self) -> None:
        """End the tasks, and keep the workers' states in the session."""
        engine, states = self._session.engine, self._session.states
        for worker in self.all:
            worker.send({"shutdown": True})
            before = states[worker.number]
            engine.delete([worker.task, *([before] if isinstance(before, Ref) else [])])
            if worker.state is not None:
                states[worker.number] = worker.state

    def repetitions(self) -> list[int]:
        """Return at index n how many samples were trained on n times."""
        longest = max(len(worker.repetitions) for worker in self.all)
        padded = [worker.repetitions + [0] * (longest - len(worker.repetitions)) for worker in self.all]
        return [sum(counts) for counts in zip(*padded, strict=True)]


class CheckpointStore(Closable):
    """The last checkpoint of each worker, in files of a temporary folder."""

    def __init__(self) -> None:
        folder = TemporaryFolder()
        self._folder = Path(folder.path)
        self._remove = weakref.finalize(self, folder.remove)
        folder.create()

    def store(self, worker: int, checkpoint: torch.Tensor) -> None:
        """Replace the checkpoint of a worker; if that raises ``OSError``, the one before is kept."""
        new = self._folder / f"{worker}.new"
        try:
            checkpoint.numpy().tofile(new)
            new.replace(self._path(worker))
        except OSError as error:  # numpy's has no errno and no file name
            new.unlink(missing_ok=True)
            raise OSError(
                f"a checkpoint of worker {worker} could not be written to {self._folder}: {error}"
            ) from error

    def load(self, worker: int) -> Sequence[torch.Tensor]:
        """Return the checkpoint of a worker: one tensor of bytes, or an empty list."""
        path = self._path(worker)
        return [torch.from_numpy(np.fromfile(path, np.uint8))] if path.exists() else []

    def _path(self, worker: int) -> Path:
        return self._folder / f"{worker}.checkpoint"

    def close(self) -> None:
        """Remove the files."""
        self._remove()
