"""Watching tasks: the silence of each, its stack, and the end of those that hang."""

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from compss_train.engines import liveness

CHECK_SECONDS = 0.25
"""Seconds between reads of the processes' reports."""


STACK_SIGNAL = signal.SIGUSR1
"""The signal at which a worker process writes the stack of its task to a file."""

_STACK_SECONDS, _STACK_CHECKS = 0.1, 5
"""Seconds between checks for a process's stack, and the number of checks before it counts as stopped."""


class WatchedTask(Protocol):
    """A task that runs."""

    timed_out: bool
    """Whether its process was ended because it reported nothing for too long."""


class WatchedProcess(Protocol):
    """A process that runs tasks."""

    heartbeat: liveness.Heartbeat
    """What its tasks report."""
    ready: Future[int]
    """Done once the process accepts tasks."""

    @property
    def pid(self) -> int:
        """The process id."""

    def kill(self) -> None:
        """Kill the process."""

    def stack(self) -> str:
        """Return the stack of the running task; empty if the process does not write it because it is stopped."""


def write_stacks(path: str) -> None:
    """Let this process write its stack to a file whenever it is asked to."""
    stack_file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    faulthandler.register(STACK_SIGNAL, stack_file, all_threads=False)


def read_stack(path: Path, ask: Callable[[], None]) -> str:
    """Return the stack that a process writes to this file after ``ask``; empty if it does not."""
    with suppress(OSError):
        os.truncate(path, 0)
        ask()
        for _ in range(_STACK_CHECKS):
            time.sleep(_STACK_SECONDS)
            if text := path.read_text(errors="replace"):
                return text
    return ""


@dataclass(slots=True, kw_only=True)
class _Run:
    """A running task, as the watch sees it."""

    process: WatchedProcess
    beats: int
    silence: float = 0.0
    """Seconds since its last report, or since its start."""
    warned: bool = False


class Watch:
    """Watches the tasks that run, between ``begin`` and ``end``. Belongs to one thread.

    Only time in which this program runs counts as silence: stopping the whole program for a while is no fault.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: dict[WatchedTask, _Run] = {}
        self._active = False
        self._timeout: float | None = None
        self._longest = 0.0
        """The longest silence after which a task reported again, in seconds."""
        self._checked = clock()

    def begin(self, timeout: float | None) -> None:
        """Start watching, and end processes whose task reports nothing for ``timeout`` seconds."""
        self._active, self._timeout, self._longest = True, timeout, 0.0
        for run in self._runs.values():
            run.silence = 0.0

    def end(self) -> None:
        """Stop watching."""
        self._active = False

    def started(self, task: WatchedTask, process: WatchedProcess) -> None:
        """Note that a task has been sent to a process."""
        self._runs[task] = _Run(process=process, beats=process.heartbeat.beats)

    def ended(self, task: WatchedTask) -> None:
        """Note that a task or its process has ended."""
        run = self._runs.pop(task)
        if not run.warned and not task.timed_out:
            self._longest = max(self._longest, run.silence)

    def check(self) -> float | None:
        """Check all tasks if due; return the seconds until the next check, or ``None`` if nothing is watched."""
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

    def _check(self, task: WatchedTask, run: _Run, passed: float) -> None:
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
        if self._timeout is not None and run.silence >= self._timeout:
            _say(f"{silent}: worker_timeout={self._timeout:g} ends its process {process.pid}")
            task.timed_out = True
            process.kill()
        elif not run.warned and run.silence >= max(liveness.WARN_SECONDS, liveness.WARN_FACTOR * self._longest):
            run.warned = True
            stopped = f", which is stopped (kill -CONT {process.pid} continues it) or waits for a disk"
            stack = process.stack()  # which such a process does not write
            advice = "" if self._timeout else "; worker_timeout=SECONDS would run its task in another process"
            _say(f"{silent}: process {process.pid}{'' if stack else stopped}{advice}{stack and '. Its stack:'}")
            print(stack, end="", file=sys.stderr, flush=True)


def _say(message: str) -> None:
    print(f"compss_train: {message}", file=sys.stderr, flush=True)
