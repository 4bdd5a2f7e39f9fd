"""A program that is disturbed while it runs: its processes are killed or stopped, and what it uses
is measured.
"""

import json
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Self

import psutil

from tests.helpers.processes import session
from tests.helpers.waiting import wait_until

SHARED_MEMORY = Path("/dev/shm")
OTHERS = ("torchinductor_", "pymp-")
"""How names in the temporary folder begin that stay: of torch, and of a coordinator of PyCOMPSs
that is killed.
"""
WARM_UP = 15.0
"""Seconds in which a coordinator imports and starts what it needs from then on."""


def note_process(folder: Path, kind: str) -> None:
    """Leave a file that is named by this process's id, so that it can be found."""
    noted = folder / "processes" / kind
    noted.mkdir(parents=True, exist_ok=True)
    (noted / str(os.getpid())).touch()


def noted(folder: Path, kind: str = "*") -> list[psutil.Process]:
    """Return the processes of a kind that have noted themselves and run; others may have got their
    ids later.
    """
    found = []
    for file in folder.glob(f"processes/{kind}/*"):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(file.name))
            runs = process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED)
            if runs and process.create_time() <= file.stat().st_mtime:
                found.append(process)
    return found


def size(file: Path) -> int:
    """Return the bytes of a file, 0 if it has gone."""
    with suppress(OSError):
        return file.stat().st_size
    return 0


@dataclass(frozen=True)
class Usage:
    """What the coordinator uses after so many seconds."""

    seconds: float
    memory: float
    """Megabytes."""
    descriptors: int
    shared: float
    """Megabytes of files in shared memory."""
    semaphores: int


class Disturbed:
    """A program that ``launch`` starts in a session of its own, again each time its coordinator was
    killed.

    Its processes note themselves, its ``"coordinator"`` too. Its temporary folder is the
    ``folder``'s ``tmp``.
    """

    def __init__(self, folder: Path, launch: Callable[[], subprocess.Popen]) -> None:
        self.folder = folder
        self.launch = launch
        self.faults: Counter[str] = Counter()
        self.usage: list[list[Usage]] = []
        """Of each coordinator, about once a second."""
        self._ids: set[int] = set()
        self._stopped: list[psutil.Process] = []
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End what is left after a failure."""
        self.resume()
        for pid in session(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(self) -> None:
        """Start the program, and wait until it trains."""
        self.process = self.launch()
        wait_until(lambda: self._is_over() or noted(self.folder, "workers"), 300)
        self.usage.append([])
        self._started = time.monotonic()

    @property
    def coordinator(self) -> psutil.Process:
        """The process that runs the user's program."""
        assert not self._is_over(), f"the program has ended with {self.process.returncode}"
        (process,) = noted(self.folder, "coordinator")
        return process

    def run(self, seconds: float, *actions: tuple[float, Callable[[], None]]) -> None:
        """Do each action again and again, after so many seconds each."""
        began = time.monotonic()
        due = [began + every for every, _ in actions]
        while time.monotonic() < began + seconds:
            for number, (every, action) in enumerate(actions):
                if time.monotonic() >= due[number]:
                    action()
                    due[number] = time.monotonic() + every
            self._measure()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)  # it does not end: this would be noticed when it is measured

    def _measure(self) -> None:
        coordinator = self.coordinator
        self._ids.update(
            session(self.process.pid), *((each.pid, each.ppid()) for each in noted(self.folder))
        )
        names = self._shared()
        shared = sum(size(file) for name in names for file in (SHARED_MEMORY / name).rglob("*"))
        self.usage[-1].append(
            Usage(
                seconds=round(time.monotonic() - self._started, 1),
                memory=coordinator.memory_info().rss / 2**20,
                descriptors=coordinator.num_fds(),
                shared=shared / 2**20,
                semaphores=sum(name.startswith("sem.") for name in names),
            )
        )

    def kill(self, kind: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one of the processes of a kind, unless it is the only one, as others are
        starting.

        On a busy machine a start takes longer than the time between two faults: nothing would ever
        be trained.
        """
        if len(running := noted(self.folder, kind)) < 2:
            return
        victim = random.choice(running)
        self.faults[f"{kind} {number.name}"] += 1
        if number == signal.SIGSTOP:
            self._stopped.append(victim)
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(number)

    def resume(self) -> None:
        """Let all processes that were stopped go on, if they are still there."""
        for process in self._stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        self._stopped.clear()

    def kill_coordinator(self) -> None:
        """Kill the coordinator, check that nothing is left, and start the program again."""
        self._measure()
        self.coordinator.kill()
        self.faults["coordinator SIGKILL"] += 1
        self.resume()  # a stopped process cannot notice that its coordinator has gone
        self.end()
        self.start()

    def end(self, seconds: float = 600.0) -> int:
        """Wait until the program and all its processes have ended; return its exit code."""
        code = self.process.wait(seconds)
        with suppress(TimeoutError):
            wait_until(lambda: not self._left(), 60)
        left = self._left()
        assert not left, f"it left {left}"
        return code

    def _left(self) -> list[object]:
        """Return processes of the program, its files in shared memory, and those in its temporary
        folder.
        """
        files = [name for name in os.listdir(self.folder / "tmp") if not name.startswith(OTHERS)]
        return [*session(self.process.pid), *noted(self.folder), *self._shared(), *files]

    def _shared(self) -> list[str]:
        """Return what has the id of one of the processes in its name: folders of values,
        semaphores.
        """
        names = os.listdir(SHARED_MEMORY)
        return [
            name for name in names if self._ids & set(map(int, re.findall(r"(?<=-)\d+(?=-)", name)))
        ]

    def _is_over(self) -> bool:
        return self.process.poll() is not None

    def check_flat(self, megabytes: float) -> None:
        """Check that no coordinator grew by more or kept files, from its first quarter to its
        last.
        """
        limits = {"memory": megabytes, "descriptors": 4, "shared": megabytes, "semaphores": 20}
        for life in self.usage:
            warm = [each for each in life if each.seconds > WARM_UP]
            early = warm[: len(warm) // 4]
            late = warm[-(len(warm) // 4) :]
            if len(early) < 4:
                continue
            for field, allowed in limits.items():
                before, after = (
                    median(getattr(each, field) for each in part) for part in (early, late)
                )
                assert after - before <= allowed, f"{field} grew from {before} to {after}"

    def report(self, **results: object) -> None:
        """Print what was done and found, for docs/testing.md, and write it to a file."""
        ends = [
            [asdict(life[0]), asdict(life[len(life) // 2]), asdict(life[-1])]
            for life in self.usage
            if life
        ]
        minutes = round((time.monotonic() - self._began) / 60, 1)
        text = json.dumps({"minutes": minutes, **self.faults, **results, "usage": ends}, indent=1)
        (self.folder / "report.json").write_text(text)
        print(text)
