"""The simulations of an online fit: which are to run, which run, and how often each has failed. Knows no engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from compss_train._utils.validation import warn_user
from compss_train.engines import Ref
from compss_train.exceptions import SimulationError, WorkerTraceback
from compss_train.online.event_server import Attendance

REPORT_SECONDS = 3.0
"""After which workers have reported what has come until now."""


class Status(Enum):
    """Where a simulation is."""

    WAITING = "waiting"
    RUNNING = "running"
    """From when its task is submitted."""
    DONE = "done"
    FAILED = "failed"


@dataclass(eq=False)
class Simulation:
    """One input, and what has become of it."""

    number: int
    """That of its stream of samples."""
    value: Any
    status: Status = Status.WAITING
    failures: int = 0
    samples: int = 0
    """How many it has given, once it is done."""
    hung: str | None = None
    """What it said when it was about to end because it hangs."""
    interrupted_since: float | None = None
    """When it first could not go on because of a worker that nobody has seen die."""
    task: Ref | None = None
    attendance: Attendance | None = None


class Simulations:
    """Deals out what is to run: again what has failed or lost samples, then the next inputs.

    ``inputs`` is ``None`` where there are none at all; ``retries`` is how often a simulation that has failed runs
    again.
    """

    def __init__(self, inputs: Iterable[Any] | None, retries: int, new_number: Callable[[], int]) -> None:
        self._inputs = iter(() if inputs is None else inputs)
        self._exhausted = inputs is None
        self._retries = retries
        self._new_number = new_number
        self._again: deque[Simulation] = deque()
        self._known: dict[int, Simulation] = {}  # those that may have to run again; others are only counted
        self._done = 0
        self._failed: list[int] = []
        self._gave_samples = False
        self._hopeless: Hopeless | None = None

    def next(self) -> Simulation | None:
        """Return the next one to run, ``None`` where there is none at the moment."""
        if self._again:
            return self._again.popleft()
        if self._exhausted:
            return None
        try:
            value = next(self._inputs)
        except StopIteration:
            self._exhausted = True
            return None
        simulation = Simulation(self._new_number(), value)
        self._known[simulation.number] = simulation
        return simulation

    def of(self, number: int) -> Simulation | None:
        """Return the simulation with a number, if it can still be run."""
        return self._known.get(number)

    @property
    def running(self) -> list[Simulation]:
        """Those whose tasks are submitted and have not ended."""
        return [each for each in self._known.values() if each.status is Status.RUNNING]

    @property
    def done(self) -> list[Simulation]:
        """Those that are done, but would run again for samples that a worker loses."""
        return [each for each in self._known.values() if each.status is Status.DONE]

    @property
    def all_ended(self) -> bool:
        """Whether nothing runs or is to run."""
        return self._exhausted and not self._again and not self.running

    def counts(self) -> dict[str, int]:
        """Return how many run, are done, and were given up."""
        return {"running": len(self.running), "done": self._done, "failed": len(self._failed)}

    def finished(self, simulation: Simulation, samples: int) -> None:
        """Note that all its samples have arrived."""
        self._done += 1
        simulation.status, simulation.samples, simulation.interrupted_since = Status.DONE, samples, None
        self._gave_samples = self._gave_samples or samples > 0

    def run_again(self, simulation: Simulation) -> None:
        """Let it run once more, which is no fault of its own: a worker has died."""
        self._done -= simulation.status is Status.DONE
        simulation.status = Status.WAITING
        self._again.append(simulation)

    def forget(self, simulation: Simulation) -> None:
        """Note that it will never have to run again."""
        del self._known[simulation.number]

    def has_failed(self, simulation: Simulation, reason: str, text: str = "") -> bool:
        """Report a failure, with its traceback, and return whether it may run again."""
        simulation.failures += 1
        what = f"simulation {simulation.number} of input {_shown(simulation.value)} failed: {reason}"
        if simulation.failures <= self._retries:
            warn_user(f"{what}; it runs again ({simulation.failures} of {self._retries})")
            return True
        warn_user(f"{what}, {simulation.failures} times; it is left out\n{text}")
        simulation.status = Status.FAILED
        self._failed.append(simulation.number)
        self.forget(simulation)
        if self._hopeless is None:
            self._hopeless = Hopeless(f"{what} ({simulation.failures} times)", text, time.monotonic())
        return False

    def check(self, received: int, *, at_last: bool = False) -> None:
        """Raise ``SimulationError`` where one was given up, and no sample has come from any: all will fail.

        ``received`` is what the workers have reported, which may take some time unless it is ``at_last``.
        """
        first = self._hopeless
        if first is None or received or self._gave_samples:
            return
        if at_last or time.monotonic() - first.since > REPORT_SECONDS:
            message = f"{first.what}, and no other has given a sample so far"
            raise SimulationError(message) from (WorkerTraceback(first.text) if first.text else None)


@dataclass(frozen=True)
class Hopeless:
    """The first simulation that was given up."""

    what: str
    text: str
    since: float


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
