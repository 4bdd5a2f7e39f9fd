"""The local engine's scheduler: a thread that starts ready tasks on idle processes it watches."""

from collections.abc import Sequence
from concurrent.futures import Future, wait
from operator import attrgetter

from compss_train.engines import calls
from compss_train.engines.graph_engine import GraphThread
from compss_train.engines.local.starter import LostProcessError
from compss_train.engines.local.store import discard_all
from compss_train.engines.local.worker_process import (
    Answer,
    BrokenGpuError,
    SentTask,
    WorkerProcess,
)
from compss_train.engines.task_graph import Task
from compss_train.engines.watch import Watch, say
from compss_train.exceptions import TaskCancelledError, WorkerLostError


class Scheduler(GraphThread):
    """Runs tasks on worker processes; it has none at first.

    ``graph`` holds the tasks and their values; its methods are for the scheduler's thread.
    Processes that are removed leave the list ``processes``.
    """

    def __init__(self, folders: Sequence[str], processes: list[WorkerProcess]) -> None:
        super().__init__()
        self.samples = 0
        """What processes that have been removed had trained."""
        self._watch = Watch()
        self._folders = folders
        self._processes = processes
        self._free_cpus = 0
        self._idle: list[WorkerProcess] = []
        self._surplus = 0
        """Number of processes that end as soon as they are idle."""
        self._outdated: set[WorkerProcess] = set()
        """Those that are replaced before their next task."""
        self._running: dict[Task, tuple[WorkerProcess, Future[Answer]]] = {}
        self._thread.start()

    def add_workers(self, processes: Sequence[WorkerProcess], cpus: int) -> None:
        """Run more tasks at a time, from the scheduler's thread."""
        self._free_cpus += cpus
        for process in processes:
            self._use_when_ready(process)

    def remove_workers(self, count: int, cpus: int) -> None:
        """Run fewer tasks at a time; processes end after their present tasks.

        For the scheduler's thread.
        """
        self._free_cpus -= cpus
        self._surplus += count
        self._end_surplus()

    def replace_all(self) -> None:
        """Replace each process before its next task.

        For the scheduler's thread.
        """
        self._outdated = {*self._processes}
        idle = self._idle
        self._idle = []
        for process in idle:
            self._use(process)

    def finish_running(self) -> None:
        """Start no more tasks, and wait for the running ones."""
        self._stopping = True
        wait([future for _, future in [*self._running.values()]])

    def _end(self, task: Task) -> None:
        self._running[task][0].end()

    def _check(self) -> float | None:
        return self._watch.check()

    def _start_ready(self) -> None:
        while self._idle and (task := self.graph.next_ready(self._free_cpus)):
            # The process that was the fastest in its last task gets the longest one: processes
            # slowed by other programs or by heat then delay fewer samples of a round.
            fastest = max(reversed(self._idle), key=attrgetter("speed"))
            self._idle.remove(fastest)
            self._start(task, fastest)

    def _end_surplus(self) -> None:
        while self._surplus and self._idle:
            slowest = min(self._idle, key=attrgetter("speed"))
            self._idle.remove(slowest)
            self._surplus -= 1
            self._outdated.discard(slowest)
            slowest.stop()
            slowest.join()
            slowest.remove_files()
            self.samples += slowest.heartbeat.samples
            self._processes.remove(slowest)

    def _start(self, task: Task, process: WorkerProcess) -> None:
        sent = SentTask(
            function=task.function,
            args=task.stored_args(),
            outputs=_file_names(task),
            folders=self._folders,
            cpus=task.resources.cpus,
            settings=task.scope.settings,
        )
        future = process.submit(sent)
        self._free_cpus -= task.resources.cpus
        self._running[task] = (process, future)
        self._watch.started(task, process)
        future.add_done_callback(lambda done: self.post(self._finish, task, process, done))

    def _finish(self, task: Task, process: WorkerProcess, future: Future[Answer]) -> None:
        del self._running[task]
        self._watch.ended(task)
        self._free_cpus += task.resources.cpus
        error = future.exception()
        lost = isinstance(error, LostProcessError)
        if not (lost or task.timed_out or task.cancelled):  # or it has been told to end, after all
            process.measure_speed()
            self._use(process)
        elif not self._stopping:
            process.restart()
            self._use_when_ready(process)
        if task.cancelled:
            discard_all(_file_names(task), self._folders)
            self.graph.fail(task, TaskCancelledError())
        elif isinstance(error, LostProcessError):
            self._run_again(task, error)
        elif error is not None:
            self.graph.fail(task, error)
        else:
            self._take_answer(task, future.result())

    def _take_answer(self, task: Task, answer: Answer) -> None:
        if isinstance(answer, calls.Failure):
            self.graph.fail(task, answer.exception())
        else:
            self.graph.complete(task, answer)

    def _use_when_ready(self, process: WorkerProcess) -> None:
        """Use a process once it has started: until then tasks wait for any other idle process."""
        process.ready.add_done_callback(lambda _: self.post(self._use, process))

    def _use(self, process: WorkerProcess) -> None:
        if process in self._outdated and not self._stopping:
            self._outdated.remove(process)
            process.restart()
            self._use_when_ready(process)
            return
        self._idle.append(process)
        self._end_surplus()

    def _run_again(self, task: Task, error: LostProcessError) -> None:
        discard_all(_file_names(task), self._folders)
        task.deaths += 1
        name = calls.name_of(task.function)
        reason = error.args[0]
        # An assertion of a kernel fails in each run.
        is_last = task.deaths == calls.MAX_RUNS or "device-side assert" in reason
        if is_last and isinstance(error, BrokenGpuError):
            self.graph.fail(task, error.args[1].exception())
            return
        if task.deaths < calls.MAX_RUNS:
            code = f" ({reason})" if reason else ""
            if str(calls.LEFT) not in reason.split():
                say(f"a worker process died{code}; its task {name!r} runs again")
            task.timed_out = False
            self.graph.requeue(task)
            return
        if task.timed_out:
            text = (
                f"task {name!r} was running {calls.MAX_RUNS} times, and the last time its process "
                "was ended because it reported no batch for worker_timeout seconds; give more of "
                "them than the slowest batch takes, or find out where it hangs: warnings show the "
                "stack of a task that is left alone"
            )
        else:
            text = (
                f"task {name!r} was running {calls.MAX_RUNS} times when a process died, the "
                f"last time with {reason or 'an unknown exit code'}. If the system killed it "
                "(SIGKILL), memory most likely ran out: use smaller blocks or batches, or fewer "
                "workers."
            )
        self.graph.fail(task, WorkerLostError(text))


def _file_names(task: Task) -> tuple[str, ...]:
    # Different names for each run: a process that died may have left a file half written.
    return tuple(f"{task.number}-{place}-{task.deaths}" for place in range(len(task.outputs)))
