"""The local engine's scheduler: a thread that starts ready tasks on idle worker processes, and watches them."""

import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, wait
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from queue import Empty, SimpleQueue
from typing import Any

from loky.process_executor import TerminatedWorkerError

from compss_train.engines import calls, liveness
from compss_train.engines.local.store import discard_all
from compss_train.engines.local.task_graph import Task, TaskGraph
from compss_train.engines.local.worker_process import Answer, Call, WorkerProcess
from compss_train.exceptions import EngineClosedError, WorkerLostError

CHECK_SECONDS = 0.25
"""Seconds between reads of the processes' reports."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """A running task, as the watch sees it."""

    process: WorkerProcess
    beats: int
    silence: float = 0.0
    """Seconds since its last report, or since its start."""
    warned: bool = False


class Watch:
    """Watches the tasks that run, between ``begin`` and ``end``. Belongs to the scheduler's thread.

    Only time in which this program runs counts as silence: stopping the whole program for a while is no fault.
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
        """Start watching, and end processes whose task reports nothing for ``timeout`` seconds."""
        self._active, self._timeout, self._longest = True, timeout, 0.0
        for run in self._runs.values():
            run.silence = 0.0

    def end(self) -> None:
        """Stop watching."""
        self._active = False

    def started(self, task: Task, process: WorkerProcess) -> None:
        """Note that a task has been sent to a process."""
        self._runs[task] = _Run(process=process, beats=process.heartbeat.beats)

    def ended(self, task: Task) -> None:
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
        if self._timeout is not None and run.silence >= self._timeout:
            _say(f"{silent}: worker_timeout={self._timeout:g} ends its process {process.pid}")
            task.timed_out = True
            process.kill()
        elif not run.warned and liveness.too_silent(run.silence, self._longest):
            run.warned = True
            stopped = f", which is stopped (kill -CONT {process.pid} continues it) or waits for a disk"
            stack = process.stack()  # which such a process does not write
            advice = "" if self._timeout else "; worker_timeout=SECONDS would run its task in another process"
            _say(f"{silent}: process {process.pid}{'' if stack else stopped}{advice}{stack and '. Its stack:'}")
            print(stack, end="", file=sys.stderr, flush=True)


class Scheduler:
    """Runs tasks on worker processes; it has none at first.

    Other threads communicate with it by ``post`` only. ``graph`` holds the tasks and their values, and ``watch``
    notices those that hang; their methods are for the scheduler's thread.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self.graph = TaskGraph()
        self.watch = Watch()
        self._folders = folders
        self._free_cpus = 0
        self._idle: list[WorkerProcess] = []
        self._surplus = 0
        """Number of processes that end as soon as they are idle."""
        self._running: dict[Task, Future[Answer]] = {}
        self._events: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="compss_train scheduler", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the scheduler's thread runs."""
        return self._thread.is_alive()

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function in the scheduler's thread."""
        self._events.put(partial(function, *args))

    def add_workers(self, processes: Sequence[WorkerProcess], cpus: int) -> None:
        """Run more tasks at a time, from the scheduler's thread."""
        self._free_cpus += cpus
        for process in processes:
            self._use_when_ready(process)

    def remove_workers(self, count: int, cpus: int) -> None:
        """Run fewer tasks at a time, from the scheduler's thread; processes end after their present tasks."""
        self._free_cpus -= cpus
        self._surplus += count
        self._end_surplus()

    def finish_running(self) -> None:
        """Start no more tasks, and wait for the running ones."""
        self._stopping = True
        wait(list(self._running.values()))

    def stop(self) -> None:
        """End the thread; waiting for a value that is still missing raises ``EngineClosedError``."""
        self._stopping = True
        self._events.put(None)
        if threading.current_thread() is not self._thread:  # garbage collection may call this in the thread itself
            self._thread.join()
        self.graph.abandon(EngineClosedError("the engine was shut down before this task had run"))

    def _run(self) -> None:
        try:
            while True:
                try:
                    event = self._events.get(timeout=self.watch.check())
                except Empty:  # it is time for the next check
                    continue
                if event is None:
                    return
                event()
                self.graph.wake()
                while not self._stopping and self._idle and (task := self.graph.next_ready(self._free_cpus)):
                    # The process that was the fastest in its last task gets the longest one: processes slowed by
                    # other programs or by heat then delay fewer samples of a round.
                    fastest = max(reversed(self._idle), key=attrgetter("speed"))
                    self._idle.remove(fastest)
                    self._start(task, fastest)
        except BaseException as error:  # a bug of the scheduler must not leave callers waiting
            self.graph.abandon(error)
            raise

    def _end_surplus(self) -> None:
        while self._surplus and self._idle:
            slowest = min(self._idle, key=attrgetter("speed"))
            self._idle.remove(slowest)
            self._surplus -= 1
            slowest.stop()

    def _start(self, task: Task, process: WorkerProcess) -> None:
        call = Call(task.function, task.stored_args(), _file_names(task), task.cpus)
        future = process.submit(call)
        self._free_cpus -= task.cpus
        self._running[task] = future
        self.watch.started(task, process)
        future.add_done_callback(lambda done: self.post(self._finish, task, process, done))

    def _finish(self, task: Task, process: WorkerProcess, future: Future[Answer]) -> None:
        del self._running[task]
        self.watch.ended(task)
        self._free_cpus += task.cpus
        error = future.exception()
        if not isinstance(error, BrokenExecutor):
            process.measure_speed()
            self._use(process)
        elif not self._stopping:
            process.restart()
            self._use_when_ready(process)
        if isinstance(error, TerminatedWorkerError):
            self._run_again(task, error)
        elif error is not None:
            self.graph.fail(task, error)
        elif isinstance(result := future.result(), calls.Failure):
            self.graph.fail(task, result.exception())
        else:
            self.graph.complete(task, result)

    def _use_when_ready(self, process: WorkerProcess) -> None:
        """Use a process once it has started: until then tasks wait for any other idle process."""
        process.ready.add_done_callback(lambda _: self.post(self._use, process))

    def _use(self, process: WorkerProcess) -> None:
        self._idle.append(process)
        self._end_surplus()

    def _run_again(self, task: Task, error: BaseException) -> None:
        discard_all(_file_names(task), self._folders)
        task.deaths += 1
        name = calls.name_of(task.function)
        match = re.search(r"{(.*?)}", str(error))  # in loky's message: {SIGKILL(-9)}, for example
        if task.deaths < calls.MAX_RUNS:
            code = f" ({match[1]})" if match else ""
            print(f"compss_train: a worker process died{code}; its task {name!r} runs again", file=sys.stderr)
            task.timed_out = False
            self.graph.requeue(task)
            return
        lost = (
            f"task {name!r} was running {calls.MAX_RUNS} times, and the last time its process was ended because it "
            "reported no batch for worker_timeout seconds; give more of them than the slowest batch takes, or find "
            "out where it hangs: warnings show the stack of a task that is left alone"
            if task.timed_out
            else f"task {name!r} was running {calls.MAX_RUNS} times when a process died, the last time with "
            f"{match[1] if match else error}. If the system killed it (SIGKILL), memory most likely ran out: use "
            "smaller blocks or batches, or fewer workers."
        )
        self.graph.fail(task, WorkerLostError(lost))


def _file_names(task: Task) -> tuple[str, ...]:
    # Different names for each run: a process that died may have left a file half written.
    return tuple(f"{task.number}-{place}-{task.deaths}" for place in range(len(task.outputs)))


def _say(message: str) -> None:
    print(f"compss_train: {message}", file=sys.stderr, flush=True)
