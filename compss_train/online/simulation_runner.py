"""The simulations' tasks: submitted as many at a time as may run, and again where they fail."""

from __future__ import annotations

import time
import traceback

import cloudpickle

from compss_train.engines import Engine, Ref
from compss_train.online.child_process import submit_simulation
from compss_train.online.connection import Header
from compss_train.online.event_server import Attendance, Client
from compss_train.online.job import OnlineJob
from compss_train.online.options import OnlineOptions
from compss_train.online.simulations import Simulation, Simulations, Status
from compss_train.online.stream_router import Reception
from compss_train.online.workers import Worker

UNREACHABLE_SECONDS = 60.0
"""How long a simulation tries to reach a worker that nobody has seen die: a dead node is noticed later."""


class Crew:
    """Runs ``simulations`` as tasks, whose ``simulate`` is pickled once."""

    def __init__(
        self,
        engine: Engine,
        simulations: Simulations,
        reception: Reception,
        options: OnlineOptions,
        job: OnlineJob,
    ) -> None:
        self._engine, self._simulations, self._reception = engine, simulations, reception
        self._job = job
        self._at_a_time, self._limit = options.num_simulators, options.simulation_timeout
        self._simulate: Ref = engine.publish(cloudpickle.dumps(options.simulate))

    def start(self) -> None:
        """Submit simulations until enough of them run; a task that was lost on its way once more."""
        running = self._simulations.running
        for simulation in running:
            if simulation.attendance is not None and simulation.attendance.peer is None:
                self._look_for(simulation, simulation.attendance)
        for _ in range(self._at_a_time - len(running)):
            if (next_one := self._simulations.next()) is None:
                return
            self._submit(next_one)

    def _look_for(self, simulation: Simulation, attendance: Attendance) -> None:
        """Look whether a task that is not there will still come."""
        ended = None if simulation.task is None else self._engine.ended(simulation.task)
        if ended and not attendance.came:
            self._never_came(simulation)
        elif ended or (ended is None and attendance.is_lost):
            self._submit(simulation)

    def _never_came(self, simulation: Simulation) -> None:
        reason, text = "its task could not reach the coordinator", ""
        try:
            self._engine.fetch([simulation.task] if simulation.task is not None else [])
        except Exception as error:
            reason, text = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        if self._simulations.has_failed(simulation, reason, text):
            self._simulations.run_again(simulation)
        self._free(simulation)

    def _submit(self, simulation: Simulation) -> None:
        simulation.status, simulation.attendance = Status.RUNNING, Attendance()
        value = cloudpickle.dumps(simulation.value)  # here, where it is raised if it cannot be
        simulation.task = submit_simulation(
            self._engine, self._simulate, value, simulation.number, self._job.director, self._limit
        )

    def handle(self, peer: Client, header: Header | None) -> None:
        """Take what a task says."""
        simulation = self._simulations.of(int(peer.number))
        if header is not None and "hello" in header:
            self._welcome(simulation, peer)
        elif simulation is None or simulation.attendance is None or simulation.attendance.peer is not peer:
            return  # it was given up, or runs a second time
        elif header is None:
            self._has_died(peer, simulation, simulation.attendance)
        elif "hanging" in header:
            simulation.hung = f"it gave no sample for {header['hanging']} s, when it was here:\n{header['where']}"
        else:
            self._has_ended(peer, simulation, header)

    def _welcome(self, simulation: Simulation | None, peer: Client) -> None:
        attendance = None if simulation is None else simulation.attendance
        if simulation is None or attendance is None or attendance.peer is not None:
            peer.tell({"go": False})
        else:
            attendance.arrive(peer)
            self._reception.welcome(peer, simulation.number)

    def _has_died(self, peer: Client, simulation: Simulation, attendance: Attendance) -> None:
        """Wait for the engine to run it again."""
        attendance.leave()
        self._reception.leave(peer)
        reason, simulation.hung = simulation.hung or "its process died", None
        if not self._simulations.has_failed(simulation, reason):
            self._free(simulation)

    def _has_ended(self, peer: Client, simulation: Simulation, header: Header) -> None:
        died = self._reception.leave(peer)
        if "finished" in header:
            self._simulations.finished(simulation, int(header["finished"]))
            again = self._job.save_every is not None and any(self._lacks(worker, simulation) for worker in died)
            if self._job.save_every is None:
                self._simulations.forget(simulation)
        elif "interrupted" in header:
            again = self._may_go_on(simulation, header["interrupted"], died)
        else:
            again = self._simulations.has_failed(simulation, header["failed"], header["traceback"])
        if again:
            self._simulations.run_again(simulation)
        self._free(simulation)

    def _may_go_on(self, simulation: Simulation, reason: str, died: list[Worker]) -> bool:
        """Tell whether a simulation that could not reach a worker may run again: it failed if none has died."""
        now = time.monotonic()
        since = now if died or simulation.interrupted_since is None else simulation.interrupted_since
        simulation.interrupted_since = since
        return now - since < UNREACHABLE_SECONDS or self._simulations.has_failed(simulation, reason)

    def _lacks(self, worker: Worker, simulation: Simulation) -> bool:
        return worker.lacks(self._job, simulation.number, simulation.samples)

    def _free(self, simulation: Simulation) -> None:
        if simulation.task is not None:
            self._engine.delete([simulation.task])
        simulation.task = simulation.attendance = None

    def stop(self) -> None:
        """Tell those that run that no more samples are wanted."""
        for simulation in self._simulations.running:
            if simulation.attendance is not None and simulation.attendance.peer is not None:
                simulation.attendance.peer.tell({"stop": True})
        self._engine.delete([self._simulate])
