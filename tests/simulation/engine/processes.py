"""The processes of a simulated engine: they run ready tasks in virtual time, and die when they are
to.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from compss_train.engines.calls import (
    MAX_RUNS,
    Failure,
    intra_op_threads,
    map_args,
    name_of,
    results_of,
)
from compss_train.engines.codec import Bytes
from compss_train.engines.local.store import loaded
from compss_train.engines.task_graph import Task, TaskGraph
from compss_train.exceptions import WorkerLostError
from tests.simulation.engine.events import Events
from tests.simulation.engine.faults import CoordinatorKilled, FaultPlan, ProcessDied
from tests.simulation.engine.values import HeldValue, Values, encoded

Answer: TypeAlias = list[HeldValue] | Failure
Runner: TypeAlias = Callable[[Task, Sequence[Any], Callable[[], list[Bytes]]], list[Bytes]]
"""Returns the encoded results of a task with these inputs; the last argument runs it."""

TASK_SECONDS = (20.0, 40.0, 60.0, 300.0)
"""How long tasks take; few values, so that many end at the same time."""

RESTART_SECONDS = 10.0
"""How long a process takes to start again."""

_ANY_CPUS = 10**9
"""Processes have as many as a task asks for."""


class Processes:
    """``count`` processes that run the tasks of a graph, each when it ends, in the thread that lets
    time pass.
    """

    def __init__(
        self,
        count: int,
        graph: TaskGraph,
        values: Values,
        events: Events,
        faults: FaultPlan,
        run: Runner,
    ) -> None:
        self.count = count
        self._run_task = run
        self._graph = graph
        self._values = values
        self._events = events
        self._faults = faults
        self._idle = list(range(count))
        self._open = True

    def add(self, count: int) -> None:
        """Add processes; negative numbers add none."""
        self._idle += range(self.count, self.count + count)
        self.count += max(0, count)

    def close(self) -> None:
        """Start no more tasks."""
        self._open = False

    def start_ready(self) -> None:
        """Start tasks whose inputs are available on idle processes."""
        self._graph.wake()
        while self._open and self._idle and (task := self._graph.next_ready(_ANY_CPUS)) is not None:
            self._start(task, self._idle.pop(self._events.draw.randrange(len(self._idle))))

    def _start(self, task: Task, process: int) -> None:
        run = partial(self._run, task, task.stored_args(), process)
        seconds = self._events.draw.choice(TASK_SECONDS) * self._events.pace
        late = 0.0
        repeated = False
        for fault in self._faults.at("task"):
            if fault.kind in ("die", "mute", "vanish"):
                die = partial(self._die, task, run, process, fault.kind)
                self._events.after(seconds / 2, partial(self._events.run, die))
                return
            seconds += fault.seconds * (fault.kind == "slow")
            late += fault.seconds * (fault.kind == "late")
            repeated |= fault.kind == "twice"
        end = partial(self._end, task, run, process, late, repeated)
        self._events.after(seconds, partial(self._events.run, end))

    def _end(
        self, task: Task, run: Callable[[], Answer], process: int, late: float, repeated: bool
    ) -> None:
        try:
            answer = run()
        except ProcessDied:
            self._die(task, run, process, "die")
            return
        if repeated:
            answer = self._first_of(answer, run)
        self._idle.append(process)
        self._events.after(late, partial(self._finish, task, answer))
        self.start_ready()

    def _first_of(self, answer: Answer, run: Callable[[], Answer]) -> Answer:
        """Run a task once more, and return either answer, unless the second process dies."""
        try:
            another = run()
        except ProcessDied:
            return answer
        answer, another = (
            (answer, another) if self._events.draw.random() < 0.5 else (another, answer)
        )
        self._values.forget(another)
        return answer

    def _finish(self, task: Task, answer: Answer) -> None:
        if isinstance(answer, Failure):
            self._graph.fail(task, answer.exception())
        else:
            self._graph.complete(task, answer)
        self.start_ready()

    def _run(self, task: Task, stored: Sequence[Any], process: int) -> Answer:
        """Return the results of a task with the arguments of its start, stored in the process."""
        try:
            results = self._run_task(task, stored, partial(_results, task, stored))
        except (CoordinatorKilled, ProcessDied):
            raise
        except BaseException as error:
            return Failure.of(error)
        return [
            self._values.store(result, f"result of {name_of(task.function)}", process)
            for result in results
        ]

    def _die(self, task: Task, run: Callable[[], Answer], process: int, kind: str) -> None:
        """End a task's process, and with ``vanish`` what it has made, and run the task again."""
        if kind == "mute":
            with suppress(ProcessDied):  # of another fault, before the end of the task
                self._values.forget(run())
        if kind == "vanish":
            self._values.lose(process)
        self._events.after(RESTART_SECONDS, partial(self._restart, process))
        task.deaths += 1
        if task.deaths < MAX_RUNS:
            self._graph.requeue(task)
        else:
            lost = (
                f"task {name_of(task.function)!r} was running {MAX_RUNS} times when a process died"
            )
            self._graph.fail(task, WorkerLostError(lost))
        self.start_ready()

    def _restart(self, process: int) -> None:
        self._idle.append(process)
        self.start_ready()


def run_always(task: Task, inputs: Sequence[Any], run: Callable[[], list[Bytes]]) -> list[Bytes]:
    """Run the task."""
    return run()


def _results(task: Task, stored: Sequence[Any]) -> list[Bytes]:
    """Run a task on new copies of its arguments, and encode its results."""
    args = map_args(stored, loaded)
    with intra_op_threads(task.resources.cpus):
        return [encoded(result) for result in results_of(task.function, args, len(task.outputs))]
