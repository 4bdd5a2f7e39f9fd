"""The simulations that a fit runs as tasks of its engine, with retries."""

from functools import partial

from compss_train.engines import Engine, Ref, calls, codec
from compss_train.net import Client, Header
from compss_train.online.events import ConnectedTask
from compss_train.online.inputs import Inputs
from compss_train.online.online_job import OnlineJob
from compss_train.online.options import Simulations
from compss_train.online.simulation_runs import Simulation, SimulationRuns
from compss_train.online.simulation_task import simulate_and_send
from compss_train.online.source_messages import (
    SimulationFailed,
    TimedOut,
    parse_simulation_message,
)
from compss_train.online.stream_router import StreamRouter


class TaskRuns(SimulationRuns[ConnectedTask]):
    """Runs each simulation as a task of the engine."""

    def __init__(
        self,
        simulations: Simulations,
        inputs: Inputs,
        engine: Engine,
        *,
        count: int,
        router: StreamRouter,
        job: OnlineJob,
    ) -> None:
        super().__init__(simulations, inputs, count=count, router=router, job=job)
        self._engine = engine
        self._simulate: Ref = engine.publish(codec.pickled(simulations.simulate))

    def start(self) -> None:
        """Submit simulations up to the limit, and resubmit lost tasks."""
        running = self.running
        for simulation, task in running:
            task.restart(partial(self._never_connected, simulation))
        for _ in range(self._count - len(running)):
            pending = self._next()
            if pending is None:
                return
            arguments = (
                self._simulate,
                codec.pickled(pending.value),  # here, so that the caller gets the exception
                pending.number,
                self._job.coordinator,
                self._options.timeout,
                self._options.steps_of(pending.value),
            )
            resources = self._options.resources
            submit = partial(
                self._engine.submit, simulate_and_send, *arguments, resources=resources
            )
            pending.task = ConnectedTask(self._engine, submit)

    def stop(self, *, goes_on: bool = False) -> None:
        """Notify all tasks that training has ended; none of them goes on in another fit."""
        for _, task in self.running:
            task.send({"stop": True})

    def handle(self, client: Client, header: Header | None) -> None:
        """Process a message of a simulation's task."""
        simulation = self._known.get(client.greeting.get("number", -1))
        task = None if simulation is None else simulation.task
        if simulation is None or task is None:  # it was given up, or this is a duplicate
            client.send({"accepted": False})
        elif header is client.greeting:
            if task.connect(client):
                self._router.register(client, simulation.number)
        elif task.client is not client:
            return
        elif header is None:
            task.disconnect()
            self._router.unregister(client)
            self._died(simulation)
        else:
            message = parse_simulation_message(header)
            if isinstance(message, TimedOut):
                client.send({"noted": True})
                simulation.timeout_report = f"no sample within {message.timeout} s\n{message.stack}"
            else:
                self._ended(client, simulation, message)

    def _died(self, simulation: Simulation[ConnectedTask]) -> None:
        reason = simulation.timeout_report or "its process died"
        simulation.timeout_report = None
        if not self._may_run_again(simulation, SimulationFailed(reason)):
            simulation.task = None  # otherwise its task is restarted

    def _never_connected(
        self, simulation: Simulation[ConnectedTask], error: Exception | None
    ) -> bool:
        simulation.task = None
        failed = SimulationFailed("its task could not reach the coordinator")
        if error is not None:
            failed = SimulationFailed(
                f"{type(error).__name__}: {error}", calls.task_traceback(error)
            )
        if self._may_run_again(simulation, failed):
            self._repeat(simulation)
        return False
