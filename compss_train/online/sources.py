"""What sends samples, as the coordinator sees it: simulations, tasks with retries, and external
senders.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from compss_train._utils.validation import warn_user
from compss_train.engines import Engine, Ref, calls, codec
from compss_train.exceptions import SimulationError, WorkerTraceback
from compss_train.net import Client, Header, MessageError, parsing, shortened
from compss_train.online.events import ConnectedTask
from compss_train.online.inputs import BEGUN, Inputs, shown
from compss_train.online.online_job import OnlineJob
from compss_train.online.options import Simulations
from compss_train.online.simulation_task import simulate_and_send
from compss_train.online.stream import number_in
from compss_train.online.stream_router import StreamRouter
from compss_train.online.workers import Worker

REPORT_SECONDS = 3.0
"""Seconds after which workers have reported the samples received so far."""
FEW = 3
"""How many simulations tell, if all of them fail, that the others would, too; at least as many as
run at a time.
"""


@dataclass(frozen=True)
class SourceFailure:
    """What has happened to a source of samples, with more lines, the traceback and the place of it,
    if known.
    """

    what: str
    more: str = ""
    text: str = ""
    place: str = ""
    """The exception and the line."""

    def with_reason(self, reason: str) -> SimulationError:
        """Return the error that ends the fit for a reason."""
        error = SimulationError(f"{self.what}; {reason}{self.more}")
        error.__cause__ = WorkerTraceback(self.text) if self.text else None
        return error


@dataclass(eq=False, kw_only=True)
class Simulation:
    """One input, and the state of its simulation."""

    number: int
    """Number of its input, and of its stream of samples."""
    value: Any
    task: ConnectedTask | None = None
    """Its task, while it runs."""
    failures: int = 0
    failure: SourceFailure | None = None
    """The last one."""
    timeout_report: str | None = None
    """The watchdog's last message before it ended the process."""

    def __str__(self) -> str:
        return f"simulation {self.number} of input {shown(self.value)}"


class SimulationRuns:
    """Runs simulations: those to repeat first, then the next inputs. Each has a stream of its
    own.
    """

    def __init__(
        self,
        simulations: Simulations,
        inputs: Inputs,
        engine: Engine,
        router: StreamRouter,
        job: OnlineJob,
    ) -> None:
        self._options = simulations
        self._engine = engine
        self._router = router
        self._job = job
        self._inputs = inputs
        self.may_begin: Callable[[int], bool] = lambda number: True
        """Whether the simulation with this number may begin now."""
        self.remembers = job.options.checkpoint_every is not None
        """Whether complete simulations stay known until a save has all their samples."""
        self._exhausted = simulations.simulate is None
        self._simulate: Ref = engine.publish(codec.pickled(simulations.simulate))
        self._repeated: deque[Simulation] = deque()
        # Those that may have to be repeated; others are only counted.
        self._known: dict[int, Simulation] = {}
        # Of these, those that have been given up since ``forget_given_up``.
        self._given_up: list[int] = []
        self.any_samples = any(samples > 0 for samples in inputs.samples)
        """Whether one has sent samples, as far as it has ended."""
        self._first: list[Simulation] = []
        """The first simulations that have begun, as many as tell whether all fail."""
        self.failure: SourceFailure | None = None
        """That of the first simulation that was given up."""
        self._failed_since = 0.0
        """When the last one was given up."""
        self._places: set[str] = set()
        """Where simulations failed whose traceback was shown."""

    # Which of them run

    @property
    def running(self) -> list[tuple[Simulation, ConnectedTask]]:
        """The simulations that have a task, and their tasks."""
        return [(each, each.task) for each in self._known.values() if each.task is not None]

    @property
    def all_ended(self) -> bool:
        """Whether no simulation is running or pending."""
        return self._exhausted and not self._repeated and not self.running

    @property
    def _done_ones(self) -> list[Simulation]:
        """Completed simulations, which are repeated if a worker loses their samples."""
        return [each for each in self._known.values() if self._inputs.samples[each.number] >= 0]

    @property
    def _few(self) -> int:
        """How many simulations tell, if all of them fail, that the others would, too."""
        return max(FEW, self._options.count)

    def counts(self) -> dict[str, int]:
        """Return the numbers of running, completed and failed simulations."""
        return {
            "running": len(self.running),
            "done": self._inputs.done,
            "failed": self._inputs.failed,
        }

    def start(self) -> None:
        """Submit simulations up to the limit, and resubmit lost tasks."""
        running = self.running
        for simulation, task in running:
            task.restart(partial(self._never_connected, simulation))
        for _ in range(self._options.count - len(running)):
            if (pending := self._next()) is None:
                return
            value = codec.pickled(pending.value)  # here, so that the caller gets the exception
            args = (
                self._simulate,
                value,
                pending.number,
                self._job.coordinator,
                self._options.timeout,
            )
            submit = partial(
                self._engine.submit, simulate_and_send, *args, resources=self._options.resources
            )
            pending.task = ConnectedTask(self._engine, submit)

    def _next(self) -> Simulation | None:
        """Return the next simulation to run, or ``None`` if none is pending."""
        if self._repeated:
            return self._repeated.popleft()
        if self._exhausted or not self.may_begin(len(self._inputs.samples)):
            return None
        try:
            number, value = self._inputs.next()
        except StopIteration:
            if not self._inputs.samples:
                raise ValueError(
                    "inputs= has no item: give at least one, and a new iterator to each fit, as "
                    "one is used up by the first"
                ) from None
            self._exhausted = True
            return None
        buffer = self._job.options.buffer if self._options.senders else None
        if buffer is not None and number >= (most := self._options.first_sender(buffer)):
            raise ValueError(
                f"sweep_size={buffer.sweep_size}: inputs= has more than {most} simulations beside "
                f"senders={self._options.senders}; give the number of simulations and senders"
            )
        simulation = self._known[number] = Simulation(number=number, value=value)
        if len(self._first) < self._few:
            self._first.append(simulation)
        return simulation

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all simulations in a save, after ``forget_safe``: the known ones are
        incomplete.
        """
        failures = [
            [number, each.failures] for number, each in self._known.items() if each.failures
        ]
        return {**self._inputs.state_dict(self._known), "failures": failures}

    def resume(self, failures: Mapping[int, int]) -> None:
        """Run simulations of an earlier program first, which had so many failures: they send what
        buffers lack.
        """
        for number, value in self._inputs.again:
            simulation = Simulation(number=number, value=value, failures=failures.get(number, 0))
            self._known[number] = simulation
            self._repeated.append(simulation)

    def repeat_lost(self, worker: Worker) -> None:
        """Repeat the simulations whose samples a worker has partly lost."""
        for each in self._done_ones:
            if self._lacks(worker, each):
                self._repeat(each)

    def forget_safe(self, workers: Sequence[Worker]) -> list[int]:
        """Forget simulations whose samples are in the save of all workers; return the numbers of
        their streams.
        """
        safe = [
            each
            for each in self._done_ones
            if not any(self._lacks(worker, each) for worker in workers)
        ]
        for simulation in safe:
            del self._known[simulation.number]
        return [simulation.number for simulation in safe]

    def forget_given_up(self) -> None:
        """Forget simulations that were given up, while no save is being made: the next has all
        their samples.

        Those that are given up while workers save are incomplete in it, as workers may have taken
        part before.
        """
        while self._given_up:
            del self._known[self._given_up.pop()]

    def _lacks(self, worker: Worker, simulation: Simulation) -> bool:
        return worker.lacks_samples(simulation.number, self._inputs.samples[simulation.number]) > 0

    def _repeat(self, simulation: Simulation) -> None:
        self._inputs.end(simulation.number, BEGUN)
        self._repeated.append(simulation)

    def named(self, number: int) -> str:
        """Return what messages call a simulation, with its input if that may still have to be
        repeated.
        """
        return str(self._known.get(number, f"simulation {number}"))

    # What becomes of their tasks

    def handle(self, client: Client, header: Header | None) -> None:
        """Process a message of a simulation's task."""
        simulation = self._known.get(client.greeting.get("number", -1))
        task = None if simulation is None else simulation.task
        if simulation is None or task is None:  # skipped, or a duplicate
            client.send({"accepted": False})
        elif header is client.greeting:
            if task.connect(client):
                self._router.register(client, simulation.number)
        elif task.client is not client:
            return
        elif header is None:
            task.disconnect()
            self._router.unregister(client)
            reason = simulation.timeout_report or "its process died"
            simulation.timeout_report = None
            # Otherwise the engine restarts its task.
            if not self._may_run_again(simulation, reason):
                simulation.task = None
        elif "timeout" in header:
            with parsing():
                seconds = float(header["timeout"])
                stack = shortened(str(header["stack"]))
            simulation.timeout_report = f"no sample within {seconds} s\n{stack}"
        else:
            self._ended(client, simulation, header)

    def _never_connected(self, simulation: Simulation, error: Exception | None) -> bool:
        simulation.task = None
        reason = "its task could not reach the coordinator"
        text = ""
        if error is not None:
            reason = f"{type(error).__name__}: {error}"
            text = calls.task_traceback(error)
        if self._may_run_again(simulation, reason, text):
            self._repeat(simulation)
        return False

    def _ended(self, client: Client, simulation: Simulation, header: Header) -> None:
        interrupted = "interrupted" in header  # a worker has lost some of its samples
        samples = 0
        reason = ""
        text = ""
        place = ""
        if "finished" in header:
            samples = number_in(header, "finished")
        elif not interrupted:
            with parsing():
                reason, text = (shortened(str(header[name])) for name in ("failed", "traceback"))
                place = shortened(str(header.get("place", "")))
        lost_workers = self._router.unregister(client)
        simulation.task = None
        if "finished" in header:
            repeat = self._finished(simulation, samples, lost_workers)
        elif interrupted:
            repeat = True
        else:
            if rejected := header.get("rejected"):
                raise SimulationError(
                    f"{simulation} yielded what does not fit: {shortened(str(rejected))}"
                )
            self.any_samples = self.any_samples or bool(header.get("sent"))
            repeat = self._may_run_again(
                simulation, reason, text, place, repeats=bool(header.get("repeats"))
            )
        if repeat:
            self._repeat(simulation)

    def _finished(self, simulation: Simulation, samples: int, lost_workers: list[Worker]) -> bool:
        """Mark a simulation as done; return True if it has to run again for samples that a worker
        lost.
        """
        self._inputs.end(simulation.number, samples)
        self.any_samples = self.any_samples or samples > 0
        if not self.remembers:
            del self._known[simulation.number]
            return False
        return any(self._lacks(worker, simulation) for worker in lost_workers)

    def _may_run_again(
        self,
        simulation: Simulation,
        reason: str,
        text: str = "",
        place: str = "",
        *,
        repeats: bool = False,
    ) -> bool:
        """Record a failure with its traceback and place, warn, and return True if the simulation
        may run again.

        It may if retries are left, unless it ``repeats`` its failure.
        """
        simulation.failures += 1
        retries = self._options.retries
        reason, *details = reason.split("\n", 1)
        what = f"{simulation} failed: {reason}"
        more = "\n".join(["", *details])
        simulation.failure = SourceFailure(what, more, text, place)
        if simulation.failures <= retries and not repeats:
            warn_user(f"{what}; retry {simulation.failures} of {retries}{more}")
            return True
        if place not in self._places:
            self._places.add(place)
            more = f"{more}\n{WorkerTraceback(text).text}"
        why = ", as it would fail again" if repeats else f" after {simulation.failures} failures"
        warn_user(f"{what}; skipped{why}{more}")
        self.failure = self.failure or simulation.failure
        self._failed_since = time.monotonic()
        self._inputs.give_up(simulation.number, simulation.value)
        self._given_up.append(simulation.number)
        return False

    def check(self, received: int) -> None:
        """Raise ``SimulationError`` if no sample has come from any, and the first simulations have
        failed.

        They have if each fails at the same line, or if as many were given up. ``received`` is the
        number of samples that workers have reported, which lags behind.
        """
        if received or self.any_samples:
            return
        failures = [
            each.failure for each in self._first if each.failure is not None and each.failure.place
        ]
        if len(failures) == self._few and len({each.place for each in failures}) == 1:
            raise failures[0].with_reason(
                f"the first {self._few} simulations failed at this line, and none has sent a sample"
            )
        failed = self._inputs.failed
        if (
            self.failure
            and failed >= self._few
            and time.monotonic() - self._failed_since > REPORT_SECONDS
        ):
            raise self.failure.with_reason(
                f"{failed} simulations were given up, and none has sent a sample"
            )

    def stop(self) -> None:
        """Notify all running simulations that training has ended."""
        for _, task in self.running:
            task.send({"stop": True})


class ExternalSenders:
    """Waits until the expected number of senders have completed their streams."""

    def __init__(self, expected: int, router: StreamRouter) -> None:
        self._expected = expected
        self._router = router
        self._streams: dict[str, int] = {}  # of senders with a name
        self._active: dict[Client, int] = {}
        self._completed: dict[int, int] = {}  # by stream, its number of samples
        self._failed = 0  # of these, the streams of senders that cannot continue them
        self.failure: SourceFailure | None = None
        """That of the first of them."""
        self.closed = False
        """Whether further senders are rejected: the workers end reception."""

    @property
    def any_samples(self) -> bool:
        """Whether a stream is complete that has samples."""
        return any(self._completed.values())

    @property
    def all_ended(self) -> bool:
        """Whether none is connected or still expected."""
        return len(self._completed) >= self._expected and not self._active

    def counts(self) -> dict[str, int]:
        """Return the numbers of connected, completed and failed senders, by the names of
        simulations' counts.
        """
        return {
            "running": len(self._active),
            "done": len(self._completed) - self._failed,
            "failed": self._failed,
        }

    def named(self, stream: int) -> str | None:
        """Return what messages call a sender that has a name."""
        return next(
            (f"sender {name!r}" for name, number in self._streams.items() if number == stream), None
        )

    def handle(self, client: Client, header: Header | None) -> None:
        """Process a message of a sender; raise ``MessageError`` if it is malformed."""
        if header is client.greeting:
            self._connect(client, client.greeting.get("name"))
        elif client not in self._active:
            return
        elif header is None:
            self._fail(client, "it disconnected without an error")
        elif "finished" in header:
            self._completed[self._active[client]] = number_in(header, "finished")
            self._remove(client)
        elif "failed" in header:
            with parsing():
                reason = shortened(str(header["failed"]))
            self._fail(client, reason)

    def _connect(self, client: Client, name: object) -> None:
        if self.closed:
            client.send({"accepted": False})
            return
        if not isinstance(name, str | None):
            raise MessageError(f"a name of type {type(name).__name__}; give a string, or null")
        number = self._router.number() if name is None else self._streams.get(name)
        if number is None:
            number = self._streams[str(name)] = self._router.number()
        if number in self._active.values():
            client.send({"error": f"another program sends as {name!r}", "busy": True})
            return
        self._completed.pop(number, None)
        self._active[client] = number
        self._router.register(client, number)

    def _remove(self, client: Client) -> int:
        self._router.unregister(client)
        return self._active.pop(client)

    def _fail(self, client: Client, reason: str) -> None:
        number = self._remove(client)
        name = client.greeting.get("name")
        if name is None:  # it cannot continue the same stream
            self._completed[number] = 0
            self._failed += 1
            what = (
                "a sender has failed: "
                f"{reason.rstrip().splitlines()[-1] if reason.strip() else reason}"
            )
            self.failure = self.failure or SourceFailure(what, text=reason)
            warn_user(f"a sender has failed: {reason}")
        else:
            warn_user(f"sender {shortened(repr(name))} has failed and may reconnect: {reason}")

    def state_dict(self, workers: Sequence[Worker]) -> dict[str, Any]:
        """Return the streams of names, and those that are complete in a save; others are expected
        again.
        """
        named = set(self._streams.values())
        completed = []
        for number, samples in self._completed.items():
            lacks = any(worker.lacks_samples(number, samples) for worker in workers)
            if number not in named or not lacks:
                completed.append([number, samples])
        return {
            "streams": [[*each] for each in self._streams.items()],
            "completed": completed,
            "failed": self._failed,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Continue with the streams of a save; warn of the names that have not completed theirs in
        it.
        """
        self._streams = dict(saved["streams"])
        self._completed = dict(saved["completed"])
        self._failed = saved["failed"]
        if expected := [
            repr(name) for name, number in self._streams.items() if number not in self._completed
        ]:
            warn_user(
                f"the save lacks samples of sender {shortened(', '.join(expected))}: the fit "
                "waits for it under this name; start it again if it has ended"
            )

    def warn_lost_samples(self, worker: Worker) -> None:
        """Warn of completed streams whose samples a dead worker had not checkpointed: none sends
        them again.
        """
        lacking = [
            worker.lacks_samples(number, samples) for number, samples in self._completed.items()
        ]
        if count := sum(each > 0 for each in lacking):
            warn_user(
                f"worker {worker.number} has died; {sum(lacking)} samples of {count} "
                "senders are lost"
            )

    def stop(self, *, goes_on: bool = False) -> None:
        """Notify active senders that training has ended; those with a name wait for a fit that
        ``goes_on``.
        """
        for client in self._active:
            if not goes_on or client.greeting.get("name") is None:
                client.send({"stop": True})
