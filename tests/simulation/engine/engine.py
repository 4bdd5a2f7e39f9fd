"""``SimulatedEngine``: runs tasks one after another in this thread, as if processes ran them in
virtual time.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Self

from compss_train.engines.base import Ref, Scope, Traits
from compss_train.engines.graph_engine import GraphEngine, GraphRef
from compss_train.engines.local.store import StoredValue
from compss_train.engines.nodes import Resources
from compss_train.engines.task_graph import TaskGraph
from compss_train.exceptions import EngineClosedError
from tests.simulation.engine.events import Events
from tests.simulation.engine.faults import FaultPlan
from tests.simulation.engine.processes import Processes, Runner, run_always
from tests.simulation.engine.values import Values, encoded

SLOW_SHARE = 0.3
"""The share of its submissions after which the coordinator takes long to go on."""
SLOW_SECONDS = 30.0
"""How long it takes then."""


class SimulatedEngine(GraphEngine):
    """Run tasks in this thread, in the order and at the times of ``processes`` simulated processes.

    The dependencies of tasks are those of the local engine; processes, their memory and time are
    simulated. Time passes while the coordinator waits, and a little when it submits. Several
    engines, one after another, may share ``events`` and ``faults``: the programs of one simulation.
    With ``shares_memory=False`` tasks are said to copy what they read. Tasks never run at the same
    time as others that they wait for.

    ``values`` has what has been stored and not been freed. ``run`` runs the tasks, or returns
    results that it knows.
    """

    name: ClassVar[str] = "simulated"

    def __init__(
        self,
        processes: int = 2,
        *,
        events: Events | None = None,
        faults: FaultPlan | None = None,
        shares_memory: bool = True,
        run: Runner = run_always,
    ) -> None:
        self.traits = Traits(shared_memory=shares_memory)  # of the class in real engines
        super().__init__()
        self.events = events or Events()
        self.faults = faults or FaultPlan()
        self.values = Values()
        self._graph = TaskGraph()
        self.processes = Processes(
            processes, self._graph, self.values, self.events, self.faults, run
        )
        self._open = True

    @classmethod
    def start(cls, num_workers: int, threads: int, preload: Sequence[str] = ()) -> Self:
        """Return an engine with a process for each worker."""
        return cls(num_workers)

    def _store(self, value: object) -> StoredValue:
        """Store the value; no process holds it alone."""
        return self.values.store(encoded(value), "published value")

    def fetch(self, refs: Sequence[Ref], *, small: bool = False) -> list[Any]:
        """Let time pass until all values are there, or one has failed."""
        self._check_open()
        futures = [self._settled_value(ref).future for ref in refs]
        while not _settled(futures):
            if not self._step():
                missing = sum(not future.done() for future in futures)
                raise RuntimeError(f"nothing is left to happen, and {missing} values are missing")
        _raise_first(futures)
        return [future.result().load() for future in futures]

    def peek(self, ref: Ref, timeout: float = 0.0) -> Any:
        """Return the value; of one under commutative update, the newest."""
        self._check_open()
        simulated = self._own(ref)
        if simulated.updates is not None and (newest := simulated.updates.newest) is not None:
            return newest.future.result().load()
        future = simulated.value.future
        self._wait([future], timeout)
        return future.result().load() if future.done() and future.exception() is None else None

    def wait(self, refs: Sequence[Ref], timeout: float) -> bool:
        """Let time pass until all values are there, one has failed, or the first event after
        ``timeout`` seconds.

        To return earlier would have callers ask thousands of times before a task of minutes ends.
        """
        self._check_open()
        futures = [self._settled_value(ref).future for ref in refs]
        return self._wait(futures, timeout) or (self._step() and _settled(futures))

    def slots(self, resources: Resources) -> int:
        """Return the number of processes."""
        return self.processes.count

    def _reserve(self, tasks: Sequence[Resources]) -> None:
        """Start the processes that are missing; raise ``ValueError`` where tasks never run at the
        same time.
        """
        if self.events.concurrent:
            self.processes.add(len(tasks) - self.processes.count)
            return
        raise ValueError(
            f"{len(tasks)} tasks are to run at the same time, but the simulated engine runs one "
            "at a time"
        )

    def shutdown(self, *, kill: bool = False) -> None:
        """End the processes; without ``kill`` the tasks that were submitted end first.

        What a coordinator that was killed leaves behind goes on.
        """
        while self._open and not (kill or self.faults.killed) and self.events.step():
            pass
        self._open = False
        self.processes.close()
        if not self.faults.killed:
            self.events.clear()
        self._graph.abandon(EngineClosedError("the engine was shut down before this task had run"))

    def drain(self) -> None:
        """Let everything happen that is to happen."""
        while self._step():
            pass

    def _step(self, until: float = math.inf) -> bool:
        """Let the next event happen, or a fault first; return ``False`` if there is none until
        then.
        """
        if self.events.next() > until:
            self.events.pass_until(until)
            return False
        for fault in self.faults.at("event"):
            if fault.kind == "kill":
                self.faults.kill()
            elif fault.kind == "jump":
                self.events.jump(fault.seconds)
            elif fault.kind == "back":
                self.events.set_back(fault.seconds)
        return self.events.step()

    def _wait(self, futures: Sequence[Future[StoredValue]], timeout: float) -> bool:
        until = self.events.clock() + timeout
        while not _settled(futures):
            if not self._step(until):
                return _settled(futures)
        return True

    def _cancel(self, scope: Scope) -> None:
        """Let time pass until the running tasks of the scope have ended; their results are lost."""
        self._graph.cancel(scope)
        self.processes.start_ready()
        while not scope.ended.is_set() and self._step():
            pass

    def _free(self, ref: GraphRef) -> None:
        """Free a value; a program that was killed, or has ended, frees none."""
        if self._open and not self.faults.killed:
            super()._free(ref)

    def _post(self, function: Callable[..., None], *args: Any) -> None:
        function(*args)
        if function != self._graph.add:
            return
        self.processes.start_ready()
        if self.events.draw.random() < SLOW_SHARE:
            until = self.events.clock() + SLOW_SECONDS * self.events.pace
            while self._step(until):
                pass

    def _check_open(self) -> None:
        self.faults.check_alive()
        if not self._open:
            raise EngineClosedError("this simulated engine was shut down; make a new one")


def _settled(futures: Sequence[Future[StoredValue]]) -> bool:
    done = [future for future in futures if future.done()]
    return len(done) == len(futures) or any(future.exception() is not None for future in done)


def _raise_first(futures: Sequence[Future[StoredValue]]) -> None:
    for future in futures:
        if future.done() and (error := future.exception()) is not None:
            raise error
