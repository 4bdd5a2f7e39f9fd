"""A simulated machine: its clock, disk and folder, and the programs that run on it one after
another.
"""

import os
import random
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from compss_train._utils.files import SHARED_MEMORY, FolderLock
from compss_train.callbacks import Checkpoint
from compss_train.training.checkpoints import list_checkpoints
from tests.simulation.disk import FaultyDisk
from tests.simulation.engine import (
    CoordinatorKilled,
    Events,
    Fault,
    FaultPlan,
    ProcessDied,
    SimulatedEngine,
)
from tests.simulation.engine.processes import Runner, run_always
from tests.simulation.fibers import FiberEvents
from tests.simulation.stand_ins import simulated_modules, virtual_time

DEATHS = CoordinatorKilled, ProcessDied
"""What a coordinator that has been killed raises; also any other error, as its threads no longer
answer.
"""

NO_PROCESS = 2**22
"""No process has this id, or a higher one."""


class World:
    """Everything that outlives the programs of a simulation."""

    def __init__(
        self,
        seed: int,
        faults: Iterable[Fault],
        kind: type[Events] = Events,
        run: Runner = run_always,
    ) -> None:
        self.plan = FaultPlan(faults)
        self.events = kind(seed, self.plan) if issubclass(kind, FiberEvents) else kind(seed)
        self._run = run
        self._patches = ExitStack()
        self.root = Path(
            tempfile.mkdtemp(
                prefix="simulation", dir=SHARED_MEMORY if SHARED_MEMORY.exists() else None
            )
        )
        self.temporary = self.root / "tmp"
        self.temporary.mkdir()
        self.folder = self.root / "run" / "checkpoints"
        self.log = self.root / "log.jsonl"
        self._dead = 0
        self._disk = FaultyDisk(self.plan, random.Random(seed), self.root / "trash")

    def __enter__(self) -> Self:
        self._patches.enter_context(virtual_time(self.events))
        self._patches.enter_context(patch.object(tempfile, "tempdir", str(self.temporary)))
        if isinstance(self.events, FiberEvents):
            self._patches.enter_context(simulated_modules(self.events, self.plan))
            # A simulation that has failed leaves threads.
            self._patches.callback(self.events.kill_all)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        self._patches.close()
        shutil.rmtree(self.root)
        if not isinstance(self.events, FiberEvents) or not (errors := self.events.errors):
            return
        what = f"threads ended with errors, the first with {errors[0]!r}"
        if error is None:
            raise ExceptionGroup(what, errors)
        error.add_note(what)

    def engine(self, processes: int = 1, *, shares_memory: bool = True) -> SimulatedEngine:
        return SimulatedEngine(
            processes,
            events=self.events,
            faults=self.plan,
            shares_memory=shares_memory,
            run=self._run,
        )

    def checkpoint(self, **options: Any) -> "SimulatedCheckpoint":
        return SimulatedCheckpoint(self.folder, self._disk, **options)

    def outlive(self, engine: SimulatedEngine) -> None:
        """Let the other processes notice that the coordinator has been killed; none of them may
        wait for ever.
        """
        engine.processes.close()
        if isinstance(self.events, FiberEvents):
            self.events.outlive_coordinator()
        engine.shutdown(kill=True)

    def restart(self, checkpoint: "SimulatedCheckpoint") -> None:
        """Do what the system does when a process has died, of whatever it died."""
        if self.plan.killed and self.events.draw.random() < 0.5:
            self._disk.lose_power()
        self.plan.killed = False
        if isinstance(self.events, FiberEvents):
            self.events.kill_all()
        self.events.clear()
        checkpoint.lose_lock()
        self._rename_leftovers()

    def _rename_leftovers(self) -> None:
        """Give what the dead process has left an id that no process has: this process goes on."""
        self._dead += 1
        for path in self.folder.glob(f".round-*.{os.getpid()}.*"):
            name, _, suffix = path.name.rpartition(f".{os.getpid()}.")
            self._disk.rename_safely(
                path, path.with_name(f"{name}.{NO_PROCESS + self._dead}.{suffix}")
            )

    def remove(self, path: Path) -> None:
        """Remove a folder, as a user does."""
        self._disk.remove_safely(path)

    def checkpoints(self) -> list[int]:
        return list(list_checkpoints(self.folder))

    def leftovers(self) -> list[str]:
        """Return the names of files that are no checkpoints."""
        if not self.folder.exists():
            return []
        names = {path.name for path in list_checkpoints(self.folder).values()}
        return sorted(path.name for path in self.folder.iterdir() if path.name not in names)


class _Lock(FolderLock):
    def lose(self) -> None:
        """Be released as by the system, with the end of the process."""
        if self._lock is not None:
            self._lock.release(force=True)


class SimulatedCheckpoint(Checkpoint):
    """Writes to a simulated disk."""

    def __init__(self, folder: Path, disk: Any, **options: Any) -> None:
        super().__init__(folder, **options)
        self._disk = disk
        self._lock = _Lock(folder)

    def lose_lock(self) -> None:
        self._lock.lose()
