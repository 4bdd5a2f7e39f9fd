"""The local engine's watch: notices tasks that report nothing for long, as their process is stopped or hangs."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from compss_train.engines.liveness import too_silent
from compss_train.engines.local.task_graph import Task
from compss_train.engines.local.worker_process import WorkerProcess

CHECK_SECONDS = 0.25
"""How often the reports of the processes are read."""

_STATES = {
    "R": "computes",
    "S": "waits for something",
    "D": "waits for a disk or a file system",
    "T": "is stopped by a signal, and continues after kill -CONT {pid}",
    "t": "is stopped by a debugger",
}
"""What a process does, by the letters of Linux."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """A task that runs, as the watch knows it."""

    process: WorkerProcess
    beats: int
    silence: float = 0.0
    """Seconds since its last report, or since its start."""
    warned: bool = False


class Watch:
    """Watches the tasks that run, between ``begin`` and ``end``. Belongs to the scheduler's thread.

    Only time in which this program runs counts as silence: if all of it is stopped for a while, nothing is wrong.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: dict[Task, _Run] = {}
        self._active = False
        self._timeout: float | None = None
        self._longest = 0.0
        """The longest silence after which a task reported again, in seconds."""
        self._checked = clock()

    def begin(self, timeout: float | None) -> None:
        """Watch from now on, and end processes whose task reports nothing for ``timeout`` seconds."""
        self._active, self._timeout, self._longest = True, timeout, 0.0
        for run in self._runs.values():
            run.silence = 0.0

    def end(self) -> None:
        """Watch no longer."""
        self._active = False

    def started(self, task: Task, process: WorkerProcess) -> None:
        """Note that a task has been sent to a process."""
        self._runs[task] = _Run(process=process, beats=process.heartbeat.beats)

    def ended(self, task: Task) -> None:
        """Note that a task has ended, or its process."""
        run = self._runs.pop(task)
        if not run.warned and not task.timed_out:
            self._longest = max(self._longest, run.silence)

    def check(self) -> float | None:
        """Check all tasks if it is time; return the seconds until the next check, ``None`` if there is nothing."""
        if not self._active or not self._runs:
            return None
        interval = CHECK_SECONDS if self._timeout is None else min(CHECK_SECONDS, self._timeout / 4)
        passed = self._clock() - self._checked
        if passed < interval:
            return interval - passed
        self._checked += passed
        for task, run in self._runs.items():
            if run.process.ready.done() and not task.timed_out:
                self._check(task, run, min(passed, 2 * interval))
        return interval

    def _check(self, task: Task, run: _Run, passed: float) -> None:
        heartbeat, process = run.process.heartbeat, run.process
        if heartbeat.beats != run.beats:
            if run.warned:
                _say(f"{heartbeat.doing} continues after {run.silence:.0f} s")
            else:
                self._longest = max(self._longest, run.silence)
            run.beats, run.silence, run.warned = heartbeat.beats, 0.0, False
            return
        run.silence += passed
        longest = f" (the longest until now: {self._longest:.1f} s)" if self._longest else ""
        silent = f"{heartbeat.doing} has reported no batch for {run.silence:.0f} s{longest}"
        named = f"process {process.pid}"
        if self._timeout is not None and run.silence >= self._timeout:
            state = _state_of(process.pid)
            _say(f"{silent}: worker_timeout={self._timeout:g} ends its {named}{state}")
            task.timed_out = True
            process.kill()
        elif not run.warned and too_silent(run.silence, self._longest):
            run.warned = True
            stack = process.stack()  # if the process writes it
            advice = "" if self._timeout else "; worker_timeout=SECONDS would run its task in another process"
            _say(f"{silent}: {named}{_state_of(process.pid)}{advice}{stack and '. Its stack:'}")
            print(stack, end="", file=sys.stderr, flush=True)


def _state_of(pid: int) -> str:
    """Return what a process does, as the end of a sentence; empty if it is not known."""
    with suppress(OSError):
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state := _STATES.get(letter):
            return f", which {state.format(pid=pid)}"
    return ""


def _say(message: str) -> None:
    print(f"compss_train: {message}", file=sys.stderr, flush=True)
