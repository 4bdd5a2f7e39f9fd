"""Runs the simulations as tasks: a limited number at a time, with retries."""

import time
import traceback
from collections.abc import Callable

import cloudpickle

from compss_train.engines import Engine, Ref, Resources
from compss_train.net.connection import Header
from compss_train.online.event_server import Client, TaskLiveness
from compss_train.online.options import OnlineJob
from compss_train.online.simulation_queue import Simulation, SimulationQueue, Status
from compss_train.online.simulation_task import simulate_and_send
from compss_train.online.simulations import Simulations
from compss_train.online.stream_router import StreamRouter
from compss_train.online.workers import Worker

UNREACHABLE_SECONDS = 60.0
"""How long a simulation retries a worker that is not known to have died: a failed node is noticed late."""


class SimulationRunner:
    """Runs the simulations of a queue as tasks; ``simulate`` is pickled once."""

    def __init__(
        self,
        *,
        engine: Engine,
        queue: SimulationQueue,
        router: StreamRouter,
        simulations: Simulations,
        job: OnlineJob,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._simulations, self._router = engine, queue, router
        self._job, self._clock = job, clock
        self._max_running, self._timeout = simulations.count, simulations.timeout
        self._simulate: Ref = engine.publish(cloudpickle.dumps(simulations.simulate))

    def start(self) -> None:
        """Submit simulations up to the limit, and resubmit lost tasks."""
        running = self._simulations.running
        for simulation in running:
            if simulation.liveness is not None and simulation.liveness.client is None:
                self._check_task(simulation, simulation.liveness)
        for _ in range(self._max_running - len(running)):
            if (pending := self._simulations.next()) is None:
                return
            self._submit(pending)

    def _check_task(self, simulation: Simulation, liveness: TaskLiveness) -> None:
        """Check a task that is not connected."""
        task = simulation.task
        known = task is not None and self._engine.traits.interruptible
        ended = task is not None and bool(self._engine.arrived([task]))
        if ended and not liveness.has_connected:
            self._never_connected(simulation)
        elif ended or (not known and liveness.is_lost):
            self._free(simulation)
            self._submit(simulation)

    def _never_connected(self, simulation: Simulation) -> None:
        reason, text = "its task could not reach the coordinator", ""
        try:
            self._engine.fetch([simulation.task] if simulation.task is not None else [])
        except Exception as error:
            reason, text = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        if self._simulations.record_failure(simulation, reason, text):
            self._simulations.requeue(simulation)
        self._free(simulation)

    def _submit(self, simulation: Simulation) -> None:
        simulation.status, simulation.liveness = Status.RUNNING, TaskLiveness(self._clock)
        value = cloudpickle.dumps(simulation.value)  # here, so that the caller gets the exception
        args = self._simulate, value, simulation.number, self._job.coordinator, self._timeout
        simulation.task = self._engine.submit(simulate_and_send, *args, resources=Resources(own_process=True))

    def handle(self, client: Client, header: Header | None) -> None:
        """Process an event of a simulation task."""
        simulation = self._simulations.get(int(client.number))
        if header is not None and "role" in header:
            self._connect(simulation, client)
        elif simulation is None or simulation.liveness is None or simulation.liveness.client is not client:
            return  # skipped, or a duplicate
        elif header is None:
            self._process_died(client, simulation, simulation.liveness)
        elif "timeout" in header:
            simulation.timeout_report = f"no sample within {header['timeout']} s; it was here:\n{header['stack']}"
        else:
            self._ended(client, simulation, header)

    def _connect(self, simulation: Simulation | None, client: Client) -> None:
        liveness = None if simulation is None else simulation.liveness
        if simulation is None or liveness is None or liveness.client is not None:
            client.send({"accepted": False})
        else:
            liveness.connect(client)
            self._router.register(client, simulation.number)

    def _process_died(self, client: Client, simulation: Simulation, liveness: TaskLiveness) -> None:
        """Record a failure; the engine restarts the task."""
        liveness.disconnect()
        self._router.unregister(client)
        reason, simulation.timeout_report = simulation.timeout_report or "its process died", None
        if not self._simulations.record_failure(simulation, reason):
            self._free(simulation)

    def _ended(self, client: Client, simulation: Simulation, header: Header) -> None:
        lost_workers = self._router.unregister(client)
        if "finished" in header:
            repeat = self._finished(simulation, int(header["finished"]), lost_workers)
        elif "interrupted" in header:
            repeat = self._may_retry(simulation, header["interrupted"], lost_workers)
        else:
            repeat = self._simulations.record_failure(simulation, header["failed"], header["traceback"])
        if repeat:
            self._simulations.requeue(simulation)
        self._free(simulation)

    def _finished(self, simulation: Simulation, samples: int, lost_workers: list[Worker]) -> bool:
        """Mark a simulation as done; return True if it has to run again for samples that a worker lost."""
        self._simulations.mark_done(simulation, samples)
        if self._job.checkpoint_every is None:
            self._simulations.forget(simulation)
            return False
        return any(worker.lacks_samples(self._job, simulation.number, samples) for worker in lost_workers)

    def _may_retry(self, simulation: Simulation, reason: str, lost_workers: list[Worker]) -> bool:
        """Return True if a simulation that lost a worker is retried; a failure if no worker died for long."""
        now = self._clock()
        since = now if lost_workers or simulation.interrupted_since is None else simulation.interrupted_since
        simulation.interrupted_since = since
        return now - since < UNREACHABLE_SECONDS or self._simulations.record_failure(simulation, reason)

    def _free(self, simulation: Simulation) -> None:
        if simulation.task is not None:
            self._engine.delete([simulation.task])
        simulation.task = simulation.liveness = None

    def stop(self) -> None:
        """Notify all running simulations that training has ended."""
        for simulation in self._simulations.running:
            if simulation.liveness is not None and simulation.liveness.client is not None:
                simulation.liveness.client.send({"stop": True})
        self._engine.delete([self._simulate])
