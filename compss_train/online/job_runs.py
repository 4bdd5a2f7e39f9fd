"""The simulations that a fit runs as jobs of a queue, whose programs connect by name."""

import time
from typing import Any

from compss_train._utils import Closable
from compss_train._utils.validation import warn_user
from compss_train.exceptions import SimulationError
from compss_train.net import Address, Client, Header
from compss_train.online.events import ConnectedSource
from compss_train.online.inputs import BEGUN, Inputs
from compss_train.online.job_journal import EarlierJobs, JobJournal
from compss_train.online.job_queue import JobQueue, Refused, Seen, Submitted, Unknown
from compss_train.online.job_variables import (
    ADDRESS_VARIABLE,
    INPUT_VARIABLE,
    NAME_VARIABLE,
    TOKEN_VARIABLE,
)
from compss_train.online.jobs import Jobs, input_text, job_name, number_of
from compss_train.online.online_job import OnlineJob
from compss_train.online.options import Simulations
from compss_train.online.simulation_runs import Simulation, SimulationRuns
from compss_train.online.source_failures import FIRST
from compss_train.online.source_messages import (
    Finished,
    Progress,
    SamplesLost,
    SenderFailed,
    SimulationFailed,
    parse_sender_message,
)
from compss_train.online.stream_router import StreamRouter

_ABSENCES = 2
"""How many answers in a row must lack a job that has failed.

Its last messages have then arrived, and it was listed if it ever is.
"""
_PROGRESS_SECONDS = 1.0
"""How often a sender that makes progress says so, at most."""


class Job(ConnectedSource):
    """A job of a simulation, from its submission on."""

    def __init__(self, name: str, job_id: str | None = None) -> None:
        super().__init__()
        self.name = name
        self.job_id = job_id
        """Its id, once it is submitted."""
        self.is_adopted = job_id is not None
        """Whether an earlier program has submitted it."""
        self.absences = 0
        """How many answers of the queue in a row have lacked it."""
        self.progressed = 0.0
        """When its sender connected, or has last said that it makes progress."""


class JobRuns(SimulationRuns[Job], Closable):
    """Runs each simulation as a job, which is submitted again when it is gone too early.

    ``earlier`` has the jobs of an earlier program: those that are alive are adopted when their
    simulations are due.
    """

    def __init__(
        self,
        simulations: Simulations,
        inputs: Inputs,
        jobs: Jobs,
        *,
        router: StreamRouter,
        job: OnlineJob,
        address: Address,
        earlier: EarlierJobs,
        journal: JobJournal,
    ) -> None:
        super().__init__(simulations, inputs, count=jobs.at_most, router=router, job=job)
        self._address = address
        self._earlier = {
            name: job_id for job_id, name in earlier.names.items() if self._may_be_due(name)
        }
        """Jobs of an earlier program that were not adopted yet, and may be alive."""
        self._knows_earlier = not self._earlier
        """Whether the queue has said which of these are alive."""
        self._any_submitted = False
        self._goes_on = False
        """Whether jobs are to run on, for the next program."""
        self._queue = JobQueue(
            jobs,
            journal,
            watched=self._earlier,
            ending=set(earlier.names).difference(self._earlier.values()),
            attempts=earlier.attempts,
        )

    def _may_be_due(self, name: str) -> bool:
        """Return whether a job has the name of a simulation that is not complete."""
        number = number_of(name)
        if number is None:
            return False
        if number >= len(self.inputs.samples):
            return not self._exhausted
        return self.inputs.samples[number] == BEGUN

    # Jobs

    def start(self) -> None:
        """Act on what the queue has said, cancel silent jobs, and submit up to the limit."""
        self._handle_events()
        self._cancel_silent()
        if not self._knows_earlier:
            return
        for _ in range(self._count - len(self.running) - self._queue.ending):
            pending = self._next()
            if pending is None:
                return
            self._begin(pending)

    def _begin(self, simulation: Simulation[Job]) -> None:
        """Submit the job of a simulation, or adopt the one that is alive."""
        text = input_text(simulation.value)
        name = job_name(simulation.number, text, self._address.url)
        earlier_id = self._earlier.pop(name, None)
        simulation.task = Job(name, earlier_id)
        if earlier_id is not None:
            return
        variables = {
            ADDRESS_VARIABLE: self._address.url,
            TOKEN_VARIABLE: self._address.token,
            NAME_VARIABLE: name,
            INPUT_VARIABLE: text,
        }
        self._queue.submit(name, variables)

    def _handle_events(self) -> None:
        last_seen: Seen | None = None
        for event in self._queue.events():
            match event:
                case Submitted(name, job_id, earlier):
                    self._any_submitted = True
                    for _, job in self.running:
                        if job.name == name:
                            job.job_id = job_id
                            job.is_adopted = earlier
                case Refused(reason, times):
                    self._refused(reason, times)
                case Unknown(reason):
                    warn_user(reason)
                case Seen():
                    last_seen = event
                case BaseException():
                    raise event
        if last_seen is not None:  # since the one before it, all messages were handled
            self._handle_seen(last_seen)

    def _refused(self, reason: str, times: int) -> None:
        if times >= FIRST and not self._any_submitted and not self.any_samples:
            raise SimulationError(f"no job could be submitted: {reason}")
        if times & (times - 1) == 0:  # the 1st, 2nd, 4th time
            warn_user(f"a job could not be submitted, and is tried again: {reason}")

    def _handle_seen(self, seen: Seen) -> None:
        gone = seen.asked - seen.alive
        for name in [name for name, job_id in self._earlier.items() if job_id in gone]:
            del self._earlier[name]
            self._queue.forget(name, gone=True)
        self._knows_earlier = True
        for simulation, job in self.running:
            if job.job_id in seen.alive or job.client is not None:
                job.absences = 0
            elif job.job_id in gone:
                job.absences += 1
                if job.absences >= _ABSENCES:
                    self._gone(simulation, job)

    def _gone(self, simulation: Simulation[Job], job: Job) -> None:
        if job.is_adopted and not job.has_connected:  # it may have ended between the programs
            self._queue.forget(job.name, gone=True)
            simulation.task = None
            self._repeat(simulation)
        elif job.has_connected:
            self._fail(simulation, job, f"its job {job.job_id} has ended before its stream")
        else:
            self._fail(
                simulation,
                job,
                f"its job {job.job_id} has ended, and no sender has connected as {job.name}",
            )

    def _cancel_silent(self) -> None:
        timeout = self._options.timeout
        if timeout is None:
            return
        now = time.monotonic()
        for simulation, job in self.running:
            if job.client is not None and now - job.progressed > timeout:
                self._fail(simulation, job, f"no sample within {timeout} s")

    def _fail(self, simulation: Simulation[Job], job: Job, reason: str) -> None:
        """Cancel a job that has failed; its simulation runs again if it may."""
        if job.client is not None:
            self._router.unregister(job.client)
            job.send({"stop": True})
        simulation.task = None
        self._queue.forget(job.name, cancel=True)
        if self._may_run_again(simulation, SimulationFailed(reason)):
            self._repeat(simulation)

    def stop(self, *, goes_on: bool = False) -> None:
        """Notify all jobs that training has ended, unless the study ``goes_on`` with another fit.

        The jobs then run on, and their senders wait.
        """
        self._goes_on = goes_on
        if not goes_on:
            for _, job in self.running:
                job.send({"stop": True})

    def close(self) -> None:
        """Cancel all jobs that have not ended, unless the study goes on."""
        self._queue.close(cancel=not self._goes_on)

    # What saves have of them

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all simulations in a save, with the ids of their jobs."""
        jobs = [[job.name, job.job_id] for _, job in self.running if job.job_id is not None]
        return {**super().state_dict(), "jobs": jobs + [[*item] for item in self._earlier.items()]}

    # Messages of their senders

    def serves(self, greeting: Header) -> bool:
        """Return whether a client is the sender of a job, by its name."""
        return number_of(greeting.get("name")) is not None

    def handle(self, client: Client, header: Header | None) -> None:
        """Process a message of a job's sender."""
        number = number_of(client.greeting.get("name"))
        simulation = None if number is None else self._known.get(number)
        job = None if simulation is None else simulation.task
        if header is client.greeting:
            self._connect(client, simulation)
        elif simulation is None or job is None or job.client is not client:
            return
        elif header is None:
            job.disconnect()
            self._router.unregister(client)
        else:
            match parse_sender_message(header):
                case Finished() as finished:
                    self._queue.forget(job.name)
                    self._ended(client, simulation, finished)
                case SenderFailed(reason):
                    lines = reason.rstrip().splitlines() or [""]
                    self._fail(simulation, job, f"{lines[-1]}\n{reason}")
                case SamplesLost(samples):
                    warn_user(f"{simulation} goes on without {samples} samples, which are lost")
                case Progress():
                    job.progressed = time.monotonic()

    def _connect(self, client: Client, simulation: Simulation[Job] | None) -> None:
        name = str(client.greeting.get("name"))
        job = None if simulation is None else simulation.task
        if simulation is not None and job is not None and job.name == name and job.client is None:
            job.connect(client)
            job.progressed = time.monotonic()
            timeout = self._options.timeout
            interval = None if timeout is None else min(_PROGRESS_SECONDS, timeout / 4)
            self._router.register(client, simulation.number, progress=interval)
        elif (job is not None and job.name != name) or not self._may_be_due(name):
            client.send({"accepted": False})
        else:  # another program sends under the name, or its turn is to come
            client.send({"error": f"the simulation {name!r} does not wait for it", "busy": True})
