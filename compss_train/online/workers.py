"""The workers of an online fit as the coordinator sees them: where each is, and what it has saved."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from compss_train._utils.closing import Closable
from compss_train._utils.locking import TemporaryFolder
from compss_train.engines import Ref
from compss_train.exceptions import WorkerLostError
from compss_train.online.child_process import submit_training
from compss_train.online.connection import Header
from compss_train.online.control import unpacked
from compss_train.online.event_server import Attendance, Client
from compss_train.online.job import OnlineJob
from compss_train.online.progress import Progress
from compss_train.online.receiver import Received
from compss_train.online.simulations import Simulation, Simulations
from compss_train.training.session import Session

RUNS = 4
"""How often a worker may start, as tasks elsewhere."""
START_SECONDS = 300.0
"""How long workers may take to start: those that do not fit beside each other would be waited for for ever."""


@dataclass(eq=False)
class Worker:
    """One of them."""

    number: int
    task: Ref
    attendance: Attendance = field(default_factory=Attendance)
    place: tuple[str, int] | None = None
    """Where it receives samples, once it does."""
    runs: int = 0
    told: set[str] = field(default_factory=set)
    """The orders that it knows of."""
    done: bool = False
    saved: Received = field(default_factory=dict)
    """What it had received when it last saved itself."""
    repetitions: list[int] = field(default_factory=list)
    state: Ref | None = None
    """That of its optimizer and random numbers, once it is done."""

    def tell(self, header: Header, arrays: Sequence[torch.Tensor] = ()) -> None:
        """Say something to it, if it is there."""
        if self.attendance.peer is not None:
            self.attendance.peer.tell(header, arrays)

    def arrive(self, peer: Client) -> None:
        """Note that its task runs."""
        self.runs += 1
        self.attendance.arrive(peer)

    def leave(self) -> None:
        """Note that it has died; raises ``WorkerLostError`` the fourth time."""
        self.attendance.leave()
        self.place = None
        self.told.clear()
        if self.runs >= RUNS and not self.done:
            raise WorkerLostError(
                f"worker {self.number} was started {self.runs} times and its process died each time; if memory ran "
                "out, use a smaller buffer, smaller batches or fewer workers"
            )

    def lacks(self, job: OnlineJob, stream: int, samples: int) -> bool:
        """Tell whether some of its samples of a stream of so many are not in what it has saved."""
        return not self.done and self.saved.get(stream, 0) < job.needed_by(self.number, stream, samples)

    def check_start(self) -> None:
        """Raise ``WorkerLostError`` where it should have started long ago."""
        away = time.monotonic() - self.attendance.away_since
        if not self.attendance.came and away > START_SECONDS:
            raise WorkerLostError(
                f"worker {self.number} has not started in {START_SECONDS:.0f} s; all workers must run at the same "
                "time: use fewer of them or fewer threads, and see that they can reach the coordinator's node"
            )


class Workers:
    """All of them: submitted at once, replaced where they die, with what they had saved."""

    def __init__(
        self, session: Session, job: OnlineJob, simulations: Simulations, progress: Progress, saved: Checkpoints
    ) -> None:
        self._session, self._job = session, job
        self._simulations, self._progress, self._checkpoints = simulations, progress, saved
        self.all = [Worker(number, self._submit(number)) for number in range(job.num_workers)]

    def _submit(self, number: int) -> Ref:
        session = self._session
        args = session.training_spec, session.states[number], self._job, number, session.devices[number]
        return submit_training(session.engine, *args, resources=session.resources)

    @property
    def all_done(self) -> bool:
        """Whether all of them have trained what there was, or as much as they should."""
        return all(worker.done for worker in self.all)

    def look_after(self) -> None:
        """Submit those once more that were lost with their node; raises what went wrong before one could tell."""
        engine = self._session.engine
        for worker in self.all:
            if worker.done or worker.attendance.peer is not None:
                continue
            ended = engine.ended(worker.task)
            if ended:
                engine.fetch([worker.task])
            if ended or (ended is None and worker.attendance.is_lost):
                worker.attendance, worker.task = Attendance(), self._submit(worker.number)
            worker.check_start()

    def order(self, order: Literal["over", "stop"]) -> None:
        """Tell those that do not know it yet that nothing more will come, or that they are to train no more."""
        for worker in self.all:
            if worker.place is not None and order not in worker.told:
                worker.tell({order: True})
                worker.told.add(order)

    def handle(self, peer: Client, header: Header | None, arrays: Sequence[torch.Tensor]) -> Worker | None:
        """Take what one of them says; return the worker where it has just died."""
        worker = self.all[int(peer.number)]
        if header is not None and "hello" in header:
            self._welcome(worker, peer)
        elif worker.attendance.peer is not peer:
            return None  # a second one with this number, which was not wanted
        elif header is None:
            worker.leave()
            return worker
        elif "listening" in header:
            worker.place = header["listening"]
        elif "report" in header:
            self._progress.report(worker.number, unpacked(arrays[0]))
        elif "saved" in header:
            self._has_saved(worker, header)
        elif "done" in header:
            worker.done, worker.repetitions = True, header["repetitions"]
            worker.state = self._session.engine.publish(unpacked(arrays[0]))
        elif "failed" in header:
            raise unpacked(arrays[0]).exception()
        return None

    def _welcome(self, worker: Worker, peer: Client) -> None:
        if worker.attendance.peer is not None:
            peer.tell({"go": False})
            return
        again = worker.runs > 0
        worker.arrive(peer)
        if worker.done:
            peer.tell({"go": True, "done": True})
            return
        peer.tell_aside({"go": True}, lambda: self._checkpoints.of(worker.number))
        for simulation in self._simulations.done if again else ():
            if worker.lacks(self._job, simulation.number, simulation.samples):
                self._simulations.run_again(simulation)

    def _has_saved(self, worker: Worker, header: Header) -> None:
        """Have everybody forget the simulations whose samples all workers have saved."""
        worker.saved = {int(stream): int(upto) for stream, upto in header["saved"]}
        safe = [each for each in self._simulations.done if not self._is_needed(each)]
        for simulation in safe:
            self._simulations.forget(simulation)
        # What one that is still coming hears first must be the answer to its hello.
        for other in [worker for worker in self.all if safe and worker.place is not None]:
            other.tell({"forget": [simulation.number for simulation in safe]})

    def _is_needed(self, simulation: Simulation) -> bool:
        """Tell whether it would have to run again if the right worker died now."""
        return any(worker.lacks(self._job, simulation.number, simulation.samples) for worker in self.all)

    def end(self) -> None:
        """Let them return, and take over their states."""
        engine, states = self._session.engine, self._session.states
        for worker in self.all:
            worker.tell({"end": True})
            before = states[worker.number]
            engine.delete([worker.task, *([before] if isinstance(before, Ref) else [])])
            if worker.state is not None:
                states[worker.number] = worker.state

    def repetitions(self) -> list[int]:
        """Return at index n how many samples were trained on n times."""
        longest = max(len(worker.repetitions) for worker in self.all)
        padded = [worker.repetitions + [0] * (longest - len(worker.repetitions)) for worker in self.all]
        return [sum(counts) for counts in zip(*padded, strict=True)]


class Checkpoints(Closable):
    """Files in a temporary folder, the last one of each worker."""

    def __init__(self) -> None:
        folder = TemporaryFolder()
        self._folder = Path(folder.path)
        self._remove = weakref.finalize(self, folder.remove)
        folder.create()

    def keep(self, worker: int, saved: torch.Tensor) -> None:
        """Replace what is kept of a worker."""
        new = self._folder / f"{worker}.new"
        saved.numpy().tofile(new)
        new.replace(self._path(worker))

    def of(self, worker: int) -> Sequence[torch.Tensor]:
        """Return what is kept of a worker: one tensor of bytes, or nothing."""
        path = self._path(worker)
        return [torch.from_numpy(np.fromfile(path, np.uint8))] if path.exists() else []

    def _path(self, worker: int) -> Path:
        return self._folder / f"{worker}.saved"

    def close(self) -> None:
        """Remove the files."""
        self._remove()
