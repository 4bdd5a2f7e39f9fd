"""Watching tasks: the silence of each, its stack, and the end of those that hang."""

import faulthandler
import os
import secrets
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Protocol

from compss_train.engines import liveness

CHECK_SECONDS = 0.25
"""Seconds between reads of the processes' reports."""

STACK_SIGNAL = signal.SIGUSR1
"""The signal at which a worker process writes the stack of its task to a file."""

STACK_SUFFIX = ".stack"
"""What the name of that file has besides the heartbeat's."""

STACK_SECONDS = 0.5
"""Seconds that a process has to write its stack before it counts as stopped."""


@dataclass(eq=False, slots=True)
class Watching:
    """How the tasks of one fit are watched, and what has been seen of them."""

    number: int = field(default_factory=partial(secrets.randbits, 48), init=False)
    """Tells the fit from others, where its tasks report to another process."""
    timeout: float | None = None
    """Seconds of silence after which a task's process is ended; ``None`` for never."""
    longest: float = 0.0
    """The longest silence after which a task reported again, in seconds."""


class WatchedTask(Protocol):
    """A task that runs."""

    timed_out: bool
    """Whether its process was ended because it reported nothing for too long."""

    @property
    def watching(self) -> Watching | None:
        """How it is watched; ``None`` for not at all."""


class WatchedProcess(ABC):
    """A process that runs tasks, and writes the running task's stack to a file when asked to."""

    heartbeat: liveness.Heartbeat
    """What its tasks report."""
    ready: Future[int]
    """Done once the process accepts tasks."""
    pid: int
    """The process id."""

    @abstractmethod
    def _send(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""

    @property
    def stack_path(self) -> Path:
        """The file that it writes stacks to."""
        return Path(f"{self.heartbeat.path}{STACK_SUFFIX}")

    def kill(self) -> None:
        """Kill the process and the task that it runs, even if it is stopped."""
        self._send(signal.SIGKILL)

    def ask_for_stack(self) -> None:
        """Let the process write the stack of the running task, without waiting for it."""
        with suppress(OSError):
            os.truncate(self.stack_path, 0)
        self._send(STACK_SIGNAL)

    def stack(self) -> str:
        """Return what it has written since; empty if nothing yet, or because it is stopped."""
        with suppress(OSError):
            return self.stack_path.read_text(errors="replace")
        return ""


def write_stacks(heartbeat_path: str) -> None:
    """Let this process write its stack whenever it is asked to, beside its heartbeat's file."""
    faulthandler.register(STACK_SIGNAL, _stack_file(heartbeat_path), all_threads=False)


@cache
def _stack_file(heartbeat_path: str) -> int:
    return os.open(f"{heartbeat_path}{STACK_SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@dataclass(slots=True, kw_only=True)
class _Run:
    """A running task, as the watch sees it."""

    process: WatchedProcess
    watching: Watching
    beats: int
    silence: float = 0.0
    """Seconds since its last report, or since its start."""
    asked: float | None = None
    """The silence when its stack was asked for; ``None`` before, and after the warning."""
    warned: bool = False


class Watch:
    """Watches running tasks, each as its fit says; belongs to one thread and never makes it wait.

    Only time in which this program runs counts as silence: stopping the whole program for a while
    is no fault.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: dict[WatchedTask, _Run] = {}
        self._checked = clock()

    def started(self, task: WatchedTask, process: WatchedProcess) -> None:
        """Note that a task has been sent to a process."""
        if task.watching is not None:
            self._runs[task] = _Run(
                process=process, watching=task.watching, beats=process.heartbeat.beats
            )

    def ended(self, task: WatchedTask) -> None:
        """Note that a task or its process has ended."""
        run = self._runs.pop(task, None)
        if run is not None and not run.warned and not task.timed_out:
            run.watching.longest = max(run.watching.longest, run.silence)

    def check(self) -> float | None:
        """Check all tasks if due; return the seconds until the next check, if any is watched."""
        if not self._runs:
            return None
        timeouts = {run.watching.timeout for run in self._runs.values()}
        interval = min(
            [CHECK_SECONDS, *(timeout / 4 for timeout in timeouts if timeout is not None)]
        )
        passed = self._clock() - self._checked
        if passed < interval:
            return interval - passed
        self._checked += passed
        for task, run in self._runs.items():
            if run.process.ready.done() and not task.timed_out:
                self._check(task, run, min(passed, 2 * interval))
        return interval

    def _check(self, task: WatchedTask, run: _Run, passed: float) -> None:
        heartbeat = run.process.heartbeat
        process = run.process
        watching = run.watching
        if heartbeat.beats != run.beats:
            if run.warned and run.asked is None:
                say(f"{heartbeat.doing} continues after {run.silence:.0f} s")
            else:
                watching.longest = max(watching.longest, run.silence)
            run.beats = heartbeat.beats
            run.silence = 0.0
            run.asked = None
            run.warned = False
            return
        run.silence += passed
        longest = f" (the longest until now: {watching.longest:.1f} s)" if watching.longest else ""
        silent = f"{heartbeat.doing} has reported no batch for {run.silence:.0f} s{longest}"
        if watching.timeout is not None and run.silence >= watching.timeout:
            say(f"{silent}: worker_timeout={watching.timeout:g} ends its process {process.pid}")
            task.timed_out = True
            process.kill()
        elif not run.warned:
            if run.silence >= max(liveness.WARN_SECONDS, liveness.WARN_FACTOR * watching.longest):
                run.warned = True
                run.asked = run.silence
                process.ask_for_stack()
        elif run.asked is not None:
            stack = process.stack()
            if stack or run.silence - run.asked >= STACK_SECONDS:
                run.asked = None
                say(f"{silent}: {_state_of(process, stack, watching)}")


def _state_of(process: WatchedProcess, stack: str, watching: Watching) -> str:
    """Return what a silent process does, as its stack shows, and what helps."""
    text = f"process {process.pid}"
    if not stack:
        text += f", which is stopped (kill -CONT {process.pid} continues it) or waits for a disk"
    if not watching.timeout:
        text += "; worker_timeout=SECONDS would run its task in another process"
    if stack:
        text += f". Its stack:\n{stack.rstrip()}"
    return text


def say(message: str) -> None:
    """Print what happens to tasks, processes and nodes.

    Nothing is said where stderr is closed, or goes to a file on a full disk: the thread that says
    it starts and watches tasks, which would wait for ever without it.
    """
    with suppress(OSError, ValueError):
        print(f"compss_train: {message}", file=sys.stderr, flush=True)
