"""Queue of the simulations of an online fit: pending, running, done and failed ones. Independent of the engine."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from compss_train._utils.validation import warn_user
from compss_train.engines import Ref
from compss_train.exceptions import SimulationError, WorkerTraceback
from compss_train.online.event_server import TaskLiveness

REPORT_SECONDS = 3.0
"""Seconds after which workers have reported the samples received so far."""


class Status(Enum):
    """Status of a simulation."""

    WAITING = "waiting"
    RUNNING = "running"
    """From the submission of its task."""
    DONE = "done"
    FAILED = "failed"


@dataclass(eq=False, kw_only=True)
class Simulation:
    """One input and the state of its simulation."""

    number: int
    """Number of its stream of samples."""
    value: Any
    status: Status = Status.WAITING
    failures: int = 0
    samples: int = 0
    """Number of its samples, once it is done."""
    timeout_report: str | None = None
    """The watchdog's last message before it ended the process."""
    interrupted_since: float | None = None
    """Time of the first interruption by a worker that is unreachable but not known to have died."""
    task: Ref | None = None
    liveness: TaskLiveness | None = None


class SimulationQueue:
    """Schedules simulations: those to repeat first, then the next inputs.

    ``inputs`` is ``None`` without simulations; ``retries`` is how often a failed simulation is repeated.
    """

    def __init__(
        self,
        inputs: Iterable[Any] | None,
        retries: int,
        new_number: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inputs = iter(() if inputs is None else inputs)
        self._exhausted = inputs is None
        self._retries = retries
        self._new_number = new_number
        self._clock = clock
        self._requeued: deque[Simulation] = deque()
        self._known: dict[int, Simulation] = {}  # those that may have to be repeated; others are only counted
        self._done = 0
        self._failed: list[int] = []
        self._any_samples = False
        self._first_failure: _Failure | None = None

    def next(self) -> Simulation | None:
        """Return the next simulation to run, ``None`` if none is pending."""
        if self._requeued:
            return self._requeued.popleft()
        if self._exhausted:
            return None
        try:
            value = next(self._inputs)
        except StopIteration:
            self._exhausted = True
            return None
        simulation = Simulation(number=self._new_number(), value=value)
        self._known[simulation.number] = simulation
        return simulation

    def get(self, number: int) -> Simulation | None:
        """Return the simulation with a number, ``None`` if it will not run again."""
        return self._known.get(number)

    @property
    def running(self) -> list[Simulation]:
        """Simulations whose tasks are submitted and have not ended."""
        return [each for each in self._known.values() if each.status is Status.RUNNING]

    @property
    def done(self) -> list[Simulation]:
        """Completed simulations that are repeated if a worker loses their samples."""
        return [each for each in self._known.values() if each.status is Status.DONE]

    @property
    def all_ended(self) -> bool:
        """Whether no simulation is running or pending."""
        return self._exhausted and not self._requeued and not self.running

    def counts(self) -> dict[str, int]:
        """Return the numbers of running, completed and failed simulations."""
        return {"running": len(self.running), "done": self._done, "failed": len(self._failed)}

    def mark_done(self, simulation: Simulation, samples: int) -> None:
        """Mark a simulation as done: all its samples were received."""
        self._done += 1
        simulation.status, simulation.samples, simulation.interrupted_since = Status.DONE, samples, None
        self._any_samples = self._any_samples or samples > 0

    def requeue(self, simulation: Simulation) -> None:
        """Schedule a simulation again."""
        self._done -= simulation.status is Status.DONE
        simulation.status = Status.WAITING
        self._requeued.append(simulation)

    def forget(self, simulation: Simulation) -> None:
        """Drop a simulation that will not run again."""
        del self._known[simulation.number]

    def record_failure(self, simulation: Simulation, reason: str, text: str = "") -> bool:
        """Record a failure with its traceback, warn, and return True if retries are left."""
        simulation.failures += 1
        value = repr(simulation.value)
        value = value if len(value) <= 80 else f"{value[:77]}..."
        what = f"simulation {simulation.number} of input {value} failed: {reason}"
        if simulation.failures <= self._retries:
            warn_user(f"{what}; retry {simulation.failures} of {self._retries}")
            return True
        warn_user(f"{what}; skipped after {simulation.failures} failures\n{text}")
        simulation.status = Status.FAILED
        self._failed.append(simulation.number)
        self.forget(simulation)
        if self._first_failure is None:
            self._first_failure = _Failure(f"{what} (failures: {simulation.failures})", text, self._clock())
        return False

    def check(self, received: int, *, final: bool = False) -> None:
        """Raise ``SimulationError`` if a simulation failed for good and no sample has come from any.

        ``received`` is the number of samples that workers have reported, which lags behind unless it is ``final``.
        """
        first = self._first_failure
        if first is None or received or self._any_samples:
            return
        if final or self._clock() - first.since > REPORT_SECONDS:
            message = f"{first.what}, and no simulation has produced a sample"
            raise SimulationError(message) from (WorkerTraceback(first.text) if first.text else None)


@dataclass(frozen=True)
class _Failure:
    """A simulation that failed for good: message, traceback, and time."""

    what: str
    text: str
    since: float
