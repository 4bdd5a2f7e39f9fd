"""The simulations that a fit runs, as the coordinator sees them: what has become of each."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from compss_train.exceptions import SimulationError
from compss_train.net import Client, Header
from compss_train.online.events import ConnectedSource
from compss_train.online.inputs import BEGUN, Inputs, shown
from compss_train.online.online_job import OnlineJob
from compss_train.online.options import Simulations
from compss_train.online.solver_steps import SolverSteps
from compss_train.online.source_failures import FIRST, SourceFailure
from compss_train.online.source_messages import (
    Finished,
    Interrupted,
    SimulationFailed,
)
from compss_train.online.stream_router import StreamRouter
from compss_train.online.workers import Worker

REPORT_SECONDS = 3.0
"""Seconds after which workers have reported the samples received so far."""
SourceT = TypeVar("SourceT", bound=ConnectedSource)


@dataclass(eq=False, kw_only=True, slots=True)
class Simulation(Generic[SourceT]):
    """One input, and the state of its simulation."""

    number: int
    """Number of its input, and of its stream of samples."""
    value: Any
    """Its input."""
    task: SourceT | None = None
    """Its task or job, while it runs."""
    failures: int = 0
    """How often it has failed."""
    failure: SourceFailure | None = None
    """The last one."""
    timeout_report: str | None = None
    """The watchdog's last message before it ended the process."""

    def __str__(self) -> str:
        return f"simulation {self.number} of input {shown(self.value)}"


class SimulationRuns(ABC, Generic[SourceT]):
    """Runs simulations: those to repeat first, then the next inputs. Each has its own stream.

    ``TaskRuns`` and ``JobRuns`` say by what programs.
    """

    def __init__(
        self,
        simulations: Simulations,
        inputs: Inputs,
        *,
        count: int,
        router: StreamRouter,
        job: OnlineJob,
    ) -> None:
        self._options = simulations
        self._count = count
        """How many run at a time."""
        self._router = router
        self._job = job
        self.inputs = inputs
        """The inputs, and what has become of the simulation of each."""
        self.may_begin: Callable[[int], bool] = lambda number: True
        """Whether the simulation with this number may begin now."""
        self._exhausted = not simulations.runs_inputs
        """Whether all inputs have begun."""
        self._repeated: deque[Simulation[SourceT]] = deque()
        """Those that are to run again."""
        self._known: dict[int, Simulation[SourceT]] = {}
        """By number, those that have begun, and are neither complete nor forgotten."""
        self._complete: dict[int, Simulation[SourceT]] = {}
        """Complete ones that may have to be repeated: no save of all workers has their samples."""
        self._given_up: list[int] = []
        """Of these, those that have been given up since ``forget_given_up``."""
        self.any_samples = any(samples > 0 for samples in inputs.samples)
        """Whether one has sent samples, as far as it has ended."""
        self._first: list[Simulation[SourceT]] = []
        """The first simulations that have begun, as many as tell whether all fail."""
        self.failure: SourceFailure | None = None
        """That of the first simulation that was given up."""
        self._given_up_at = 0.0
        """When the last one was given up."""
        self._solver_steps = SolverSteps(self._options.simulate)
        self._places: set[str] = set()
        """Where simulations failed whose traceback was shown."""

    # Which of them run

    @property
    def running(self) -> list[tuple[Simulation[SourceT], SourceT]]:
        """The simulations that have a task or job, and these."""
        return [
            (simulation, simulation.task)
            for simulation in self._known.values()
            if simulation.task is not None
        ]

    @property
    def all_ended(self) -> bool:
        """Whether no simulation is running or pending."""
        return self._exhausted and not self._repeated and not self.running

    @property
    def _first_count(self) -> int:
        """How many simulations tell, if all of them fail, that the others would, too."""
        return max(FIRST, self._count)

    def counts(self) -> dict[str, int]:
        """Return the numbers of running, completed and failed simulations."""
        return {
            "running": len(self.running),
            "done": self.inputs.done,
            "failed": self.inputs.failed,
        }

    @property
    def awaited(self) -> int | None:
        """How many are to begin or to run again; ``None`` if it is not known how many there are."""
        repeated = len(self._repeated)
        if self._exhausted:
            return repeated
        inputs = self._options.inputs
        if self._options.sampler is not None or not isinstance(inputs, Sized):
            return None
        return len(inputs) - len(self.inputs.samples) + repeated

    @abstractmethod
    def start(self) -> None:
        """Begin simulations up to the limit, and again those whose programs were lost."""

    @abstractmethod
    def stop(self, *, goes_on: bool = False) -> None:
        """Notify all programs that training has ended, unless the study ``goes_on``."""

    def serves(self, greeting: Header) -> bool:
        """Return whether a client is a simulation's program, by its greeting."""
        return bool(greeting["role"] == "simulation")

    @abstractmethod
    def handle(self, client: Client, header: Header | None) -> None:
        """Process a message of a simulation's program."""

    def _next(self) -> Simulation[SourceT] | None:
        """Return the next simulation to run, or ``None`` if none is pending."""
        if self._repeated:
            return self._repeated.popleft()
        if self._exhausted or not self.may_begin(len(self.inputs.samples)):
            return None
        try:
            number, value = self.inputs.next()
        except StopIteration:
            if not self.inputs.samples:
                raise ValueError(
                    "inputs= has no item: give at least one, and a new iterator to each fit, as "
                    "one is used up by the first"
                ) from None
            self._exhausted = True
            return None
        self._check_sweep(number)
        simulation: Simulation[SourceT] = Simulation(number=number, value=value)
        self._known[number] = simulation
        if len(self._first) < self._first_count:
            self._first.append(simulation)
        return simulation

    def _check_sweep(self, number: int) -> None:
        """Raise ``ValueError`` for a simulation that has the number of a sender's stream."""
        if not self._options.senders:
            return
        buffer = self._job.options.buffer
        first_sender = self._options.first_sender(buffer)
        if number >= first_sender:
            raise ValueError(
                f"sweep_size={buffer.sweep_size}: inputs= has more than {first_sender} simulations "
                f"beside senders={self._options.senders}; give the number of simulations and "
                "senders"
            )

    # What saves have of them

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all simulations in a save, after ``forget_safe``.

        Those that may have to be repeated are incomplete.
        """
        incomplete = {**self._known, **self._complete}
        failures = [
            [number, simulation.failures]
            for number, simulation in incomplete.items()
            if simulation.failures
        ]
        return {**self.inputs.state_dict(incomplete), "failures": failures}

    def resume(self, failures: Mapping[int, int]) -> None:
        """Run simulations of an earlier program first, which had so many failures.

        They send what buffers lack.
        """
        for number, value in self.inputs.again:
            simulation: Simulation[SourceT] = Simulation(
                number=number, value=value, failures=failures.get(number, 0)
            )
            self._known[number] = simulation
            self._repeated.append(simulation)

    def repeat_lost(self, worker: Worker) -> None:
        """Repeat the simulations whose samples a worker has partly lost."""
        lost_simulations = [
            simulation for simulation in self._complete.values() if self._lacks(worker, simulation)
        ]
        for simulation in lost_simulations:
            self._repeat(simulation)

    def forget_safe(self, workers: Sequence[Worker]) -> list[int]:
        """Forget simulations whose samples are in the save of all workers; return their numbers."""
        safe = [
            simulation.number
            for simulation in self._complete.values()
            if not any(self._lacks(worker, simulation) for worker in workers)
        ]
        for number in safe:
            del self._complete[number]
        return safe

    def forget_given_up(self) -> None:
        """Forget simulations that were given up; the next save has all their samples.

        Those that are given up while workers save are incomplete in that save, as workers may have
        taken part before.
        """
        while self._given_up:
            del self._known[self._given_up.pop()]

    def _lacks(self, worker: Worker, simulation: Simulation[SourceT]) -> bool:
        samples = self.inputs.samples[simulation.number]
        return worker.lacks_samples(simulation.number, samples) > 0

    def _repeat(self, simulation: Simulation[SourceT]) -> None:
        self.inputs.end(simulation.number, BEGUN)
        self._complete.pop(simulation.number, None)
        self._known[simulation.number] = simulation
        self._repeated.append(simulation)

    def named(self, number: int) -> str:
        """Return what messages call a simulation, with its input if it may have to be repeated."""
        simulation = self._known.get(number) or self._complete.get(number)
        return f"simulation {number}" if simulation is None else str(simulation)

    # What becomes of them

    def _ended(
        self,
        client: Client,
        simulation: Simulation[SourceT],
        message: Finished | Interrupted | SimulationFailed,
    ) -> None:
        lost_workers = self._router.unregister(client)
        simulation.task = None
        match message:
            case Finished(samples, steps):
                if steps is not None and self._options.steps is None:
                    self._solver_steps.compare(str(simulation), steps)
                repeats = self._finished(simulation, samples, lost_workers)
            case SimulationFailed():
                repeats = self._failed(simulation, message)
            case Interrupted():
                repeats = True
        if repeats:
            self._repeat(simulation)

    def _finished(
        self, simulation: Simulation[SourceT], samples: int, lost_workers: list[Worker]
    ) -> bool:
        """Mark a simulation as done; return True if it has to run again for a worker's samples."""
        self.inputs.end(simulation.number, samples)
        self.any_samples = self.any_samples or samples > 0
        self._complete[simulation.number] = self._known.pop(simulation.number)
        return any(self._lacks(worker, simulation) for worker in lost_workers)

    def _failed(self, simulation: Simulation[SourceT], failed: SimulationFailed) -> bool:
        """Record a failure; return True if the simulation may run again."""
        if failed.rejected:
            raise SimulationError(f"{simulation} yielded what does not fit: {failed.rejected}")
        self.any_samples = self.any_samples or failed.sent > 0
        return self._may_run_again(simulation, failed)

    def _may_run_again(self, simulation: Simulation[SourceT], failed: SimulationFailed) -> bool:
        """Record a failure, warn, and return True if the simulation may run again.

        It may if retries are left, unless it would fail again.
        """
        simulation.failures += 1
        retries = self._options.retries
        failure = SourceFailure.of(simulation, failed)
        simulation.failure = failure
        if simulation.failures <= retries and not failed.repeats:
            failure.warn_of_retry(simulation.failures, retries)
            return True
        is_new = failed.place not in self._places
        self._places.add(failed.place)
        failure.warn_of_skip(simulation.failures, repeats=failed.repeats, with_traceback=is_new)
        self.failure = self.failure or failure
        self._given_up_at = time.monotonic()
        self.inputs.give_up(simulation.number, simulation.value)
        self._given_up.append(simulation.number)
        if self._options.sampler is not None:
            self._exhausted = False  # it may replace the input
        return False

    def check(self, received: int) -> None:
        """Raise ``SimulationError`` if no sample has come, and the first simulations have failed.

        They have if each fails at the same line, or if as many were given up. ``received`` is the
        number of samples that workers have reported, which lags behind.
        """
        if received or self.any_samples:
            return
        first_count = self._first_count
        last_failures = [simulation.failure for simulation in self._first]
        failures = [failure for failure in last_failures if failure is not None and failure.place]
        if len(failures) == first_count and len({failure.place for failure in failures}) == 1:
            raise failures[0].with_reason(
                f"the first {first_count} simulations failed at this line, and none has sent a "
                "sample"
            )
        given_up = self.inputs.failed
        if self.failure is None or given_up < first_count:
            return
        if time.monotonic() - self._given_up_at > REPORT_SECONDS:
            raise self.failure.with_reason(
                f"{given_up} simulations were given up, and none has sent a sample"
            )
