"""Hands ready tasks to Ray, for processes of any node or a node's agent; keeps their results."""

import math
import secrets
import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as NodeAffinity
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as PlacementGroup

from compss_train.engines import calls
from compss_train.engines.base import Scope
from compss_train.engines.codec import SerializedValue
from compss_train.engines.graph_engine import GraphThread
from compss_train.engines.nodes import Node
from compss_train.engines.ray import agent, cluster
from compss_train.engines.ray.value import Lineage, RayValue, lost_error, put
from compss_train.engines.task_graph import Task, Value
from compss_train.engines.watch import say
from compss_train.exceptions import TaskCancelledError, WorkerLostError

NODES_SECONDS = 5.0
"""Seconds between looks for nodes that have joined or left."""

KEEP_SECONDS = 2.0
"""Least seconds between two times when values are kept."""

KEEP_SHARE = 0.05
"""Largest share of the time in which values are kept, and read from there by other nodes."""

KEEP_RATE = 12.5e6
"""Bytes a second in which other nodes are taken to read kept values: a link of 100 Mbit/s."""

FIRST_KEEP_SECONDS = 60.0
"""Seconds until values are kept although the size of the last ones is not known yet."""

KEEP_CALLS_A_NODE = 4
"""Calls of ``keep`` for each node but the coordinator's, of which one keeps the values.

Each of these nodes reads kept parameters from the coordinator's node, whose link would be the
slowest of a merge if that were more often. Where calls are far apart, it does not matter.
"""

ROOM_SECONDS = 10.0
"""Seconds that the first task waits for free CPUs until the program says so, or gives up."""

CANCEL_SECONDS = 5.0
"""Seconds that Ray has to note the tasks that are to be cancelled; then nobody waits for them."""

ANY_CPUS = 10**9
"""Ray has the tasks that are ready, and starts those that fit on its nodes."""


_MODULE_ADVICE = (
    "Sources beside the main file are sent, if they have 10 MB at most. Send this one with "
    "RayEngine(modules=['FILE_OR_FOLDER']), ray.init(runtime_env={'py_modules': "
    "[...]}) or ray job submit --working-dir=., or put it into a folder that all nodes have under "
    "the same path"
)


class Submitter(GraphThread):
    """Submits ready tasks to Ray, which places them and repeats those of lost processes or nodes.

    Tasks with priority, which others wait for, run in the agent of the node that has most of their
    inputs.
    """

    def __init__(self, custom: Mapping[str, float] | None = None) -> None:
        super().__init__()
        self._custom = custom
        """The custom resources of tasks that processes run."""
        self._id = secrets.token_hex(8)
        """Tells the engine's agents and reports from those of the program's other engines."""
        self._run_task = ray.remote(agent.run_task)
        # Ray would start an actor that asks for nothing on any node, whatever its strategy.
        options: Any = {"num_cpus": 0, "memory": 1, "max_restarts": -1, "max_task_retries": -1}
        self._new_agent = ray.remote(concurrency_groups={"watch": 1}, **options)(agent.Agent)
        self.agents: dict[str, Any] = {}
        """The agents by their nodes.

        Ray moves those of nodes that are lost; they may have to make values again.
        """
        self._elsewhere: list[Any] = []
        """Agents that Ray has started elsewhere; they may have to make values again."""
        self._unwatched: set[str] = set()
        """Nodes without their agents."""
        self.nodes: Mapping[str, Node] = {}
        """The nodes that are there, by their ids."""
        self.here: str = ray.get_runtime_context().get_node_id()
        """The id of the coordinator's node."""
        captured = ray.get_runtime_context().should_capture_child_tasks_in_placement_group
        self._group = ray.util.get_current_placement_group() if captured else None
        """What is reserved for this program's tasks, as in a trial of Ray Tune.

        They may use nothing else.
        """
        self._has_room = False
        """Whether the first tasks need not wait for room."""
        self._next_look = 0.0
        """When to look for nodes again."""
        self._running: dict[Task, Any] = {}
        """The last result of each running task: its node, or a failure."""
        self._cancelled: dict[Task, float] = {}
        """Running tasks that are to be cancelled, and when the wait for Ray ends."""
        self._abandoned: dict[Task, Any] = {}
        """The last results of tasks that run on although nobody waits for them."""
        self._wanted: set[Value] = set()
        """Values to be kept that are not available yet."""
        self._kept_at = time.monotonic()
        """When values were kept last, or the engine started."""
        self._keep_seconds = 0.0
        """How long that took."""
        self._kept_bytes = 0
        """The size of the values that were kept last, as far as they are available."""
        self._calls_to_keep = 0
        """How often values were to be kept since they were."""
        self._look_for_nodes()
        self._thread.start()

    def ask_agents(self, method: str, seconds: float) -> list[Any]:
        """Call a method of the agents, which may be running tasks; return all answers.

        Raises ``GetTimeoutError`` after so many seconds.
        """
        answers: list[Any] = ray.get(self._call(self.nodes, method), timeout=seconds)
        return answers

    def _call(self, nodes: Container[str], method: str, *args: Any) -> list[Any]:
        # A copy: the engine's own thread adds agents, and the end of the engine removes them.
        agents = [actor for node, actor in list(self.agents.items()) if node in nodes]
        return [
            getattr(actor, method).options(concurrency_group="watch").remote(*args)
            for actor in agents
        ]

    def await_room(self, cpus: int) -> None:
        """Wait a moment before the first tasks until so many CPUs are free.

        Ray would let the tasks wait for ever without a word.

        Raises ``RuntimeError`` in a task or an actor, which may itself have what is missing.
        Elsewhere a line says that tasks wait.
        """
        if self._has_room:
            return
        name = "CPU" if self._group is None else f"CPU_group_{self._group.id.hex()}"
        deadline = time.monotonic() + ROOM_SECONDS
        free = ray.available_resources().get(name, 0.0)
        while free < cpus and time.monotonic() < deadline:
            time.sleep(0.1)
            free = ray.available_resources().get(name, 0.0)
        if free < cpus:
            self._report_no_room(cpus, free, ray.cluster_resources().get(name, 0.0))
        self._has_room = True

    def _report_no_room(self, cpus: int, free: float, total: float) -> None:
        owner = "placement group" if self._group else "cluster"
        taken = f"a task needs {cpus} CPUs, and {free:g} of the {owner}'s {total:g} are free"
        context = ray.get_runtime_context()
        if context.worker.mode == ray.WORKER_MODE:
            raise RuntimeError(
                f"{taken}; this task or actor has "
                f"{context.get_assigned_resources().get('CPU', 0.0):g} itself. Start it with "
                "num_cpus=0; or in a placement group with a CPU more than workers, "
                "placement_group([{'CPU': 1}] * (num_workers + 1)), that captures child tasks; "
                "or take engine='local'"
            )
        say(
            f"{taken}: tasks, actors and placement groups have the others, and the fit waits for "
            "them"
        )

    def keep(self, values: Sequence[Value]) -> None:
        """Keep values as soon as they are available, unless others were kept a moment ago."""
        self._calls_to_keep += 1
        if not self._is_time_to_keep():
            return
        self._calls_to_keep = 0
        self._kept_at = time.monotonic()
        self._keep_seconds = 0.0
        self._kept_bytes = 0
        for value in values:
            if value.future.done():
                self._keep(value)
            else:
                self._wanted.add(value)

    def _is_time_to_keep(self) -> bool:
        """Return whether so many values were made since the last were kept, or so long ago."""
        elapsed = time.monotonic() - self._kept_at
        if elapsed < KEEP_SECONDS + self._keep_seconds / KEEP_SHARE:
            return False
        readers = len(self.nodes) - 1
        if self._calls_to_keep > KEEP_CALLS_A_NODE * readers:
            return True
        if not self._kept_bytes:
            return elapsed >= FIRST_KEEP_SECONDS
        return elapsed >= readers * self._kept_bytes / KEEP_RATE / KEEP_SHARE

    def _keep(self, value: Value) -> None:
        stored = None if value.future.exception() else value.future.result()
        if isinstance(stored, RayValue) and stored.is_remakable:
            start = time.monotonic()
            with suppress(WorkerLostError):  # who needs the value is told, or Ray makes it again
                self._kept_bytes += stored.keep()
            self._keep_seconds += time.monotonic() - start

    def finish_running(self) -> None:
        """Start no more tasks, and wait for the running ones."""
        self._stopping = True
        running = list(self._running.values())
        if running:
            ray.wait(running, num_returns=len(running))

    def cancel_running(self) -> None:
        """End the processes of running tasks."""
        tasks = [*self._running, *self._abandoned]
        if not tasks:
            return
        try:
            ray.get(self._noted(), timeout=NODES_SECONDS)
        except RayError:  # to cancel them now could end the whole program: ``_noted``
            self._end_processes(tasks)
            return
        for task in tasks:
            self._end(task)

    def cancel(self, scope: Scope) -> None:
        """Cancel the tasks, and end the processes of those that run."""
        for task in self.graph.cancel(scope):
            self._cancelled[task] = time.monotonic() + CANCEL_SECONDS
            self._noted().future().add_done_callback(
                lambda _, task=task: self.post(self._end, task)
            )

    def _abandon_overdue(self) -> None:
        """Let nobody wait for cancelled tasks that Ray has not noted in time; end their processes.

        It has not while the agent of this node is being started again.
        """
        now = time.monotonic()
        overdue = [task for task, deadline in self._cancelled.items() if deadline <= now]
        self._end_processes(overdue)
        for task in overdue:
            del self._cancelled[task]
            self._abandoned[task] = self._running.pop(task)
            self.graph.fail(task, TaskCancelledError())

    def _end_processes(self, tasks: Sequence[Task]) -> None:
        """End the processes of tasks although Ray does not answer, by the ids they reported.

        Other nodes do so when the message reaches them. Tasks that are not watched run on until
        Ray cancels them.
        """
        if not tasks:
            return
        say(
            f"Ray does not answer: {len(tasks)} cancelled tasks end with their processes, or when "
            "it does"
        )
        fits = {task.watching.number for task in tasks if task.watching is not None}
        with suppress(OSError, ValueError):
            agent.end_fits(self._id, fits)
        self._call({*self.nodes} - {self.here}, "end_fits", fits)

    def _noted(self) -> Any:
        """Return an object that exists once Ray has noted all tasks submitted until now.

        A task that is cancelled before that ends the whole program: Ray 2.60 counts its inputs down
        twice, and then a check of its own fails. Ray's thread deals with submissions and replies
        one after the other.
        """
        return self._call([self.here], "samples")[0]

    def _end(self, task: Task) -> None:
        self._cancelled.pop(task, None)
        status = self._running.get(task) or self._abandoned.pop(task, None)
        if status is not None and not task.priority:  # agents run short ones only, to their end
            ray.cancel(status, force=True)

    def _check(self) -> float | None:
        if self._next_look <= time.monotonic():
            self._look_for_nodes()
        next_deadline = min(self._cancelled.values(), default=math.inf)
        if next_deadline <= time.monotonic():
            self.post(self._abandon_overdue)
        return max(0.0, min(self._next_look, next_deadline) - time.monotonic())

    def _look_for_nodes(self) -> None:
        """Let every node have an agent, before other threads see the node."""
        nodes = cluster.nodes_by_id()
        for node in nodes:
            if node not in self.agents or node in self._unwatched:
                self._add_agent(node)
        remaining = "1 node is left" if len(nodes) == 1 else f"{len(nodes)} nodes are left"
        for name in [node.name for key, node in self.nodes.items() if key not in nodes]:
            say(
                f"node {name} is lost or has left: its tasks run again, and its values are made "
                f"again; {remaining}"
            )
        self.nodes = nodes
        self._next_look = time.monotonic() + NODES_SECONDS

    def _add_agent(self, node: str) -> None:
        """Start the agent of a node; a later look starts another if Ray placed it elsewhere.

        Ray does so if a node is new, for example.
        """
        self._unwatched.discard(node)
        self.agents[node] = self._new_agent.options(
            scheduling_strategy=NodeAffinity(node, soft=True)
        ).remote(node, self._id)
        watches = self._call([node], "watches")[0]
        watches.future().add_done_callback(lambda done: self.post(self._check_agent, node, done))

    def _check_agent(self, node: str, watches: "Future[bool]") -> None:
        if watches.exception() is None and not watches.result():
            self._elsewhere.append(self.agents[node])
            self._unwatched.add(node)

    def _start_ready(self) -> None:
        while (task := self.graph.next_ready(ANY_CPUS)) is not None:
            try:
                self._start(task)
            except WorkerLostError as error:  # what it is called with has no room here
                self.graph.fail(task, error)

    def _start(self, task: Task) -> None:
        inputs: list[RayValue] = []

        def placeholder(argument: Any) -> Any:
            if not isinstance(argument, Value):
                return argument
            inputs.append(argument.future.result())  # type: ignore[arg-type]
            return calls.Placeholder(len(inputs) - 1)

        args = calls.map_args(task.args, placeholder)
        call: Any = SerializedValue.of((task.function, args, task.scope.settings))
        lineage = tuple([value.lineage for value in inputs])
        if call.nbytes > agent.COPIED_BYTES:  # Ray would put it, and free it too early
            call = put(call)
            lineage = (call, *lineage)
        watching = task.watching
        watched = agent.Watched(self._id)
        if watching is not None:
            watched = agent.Watched(self._id, watching.number, watching.timeout or 0.0)
        arguments = [call, task.resources.cpus, watched, len(task.outputs)]
        arguments += [value.ref for value in inputs]
        run, options = self._placed(task, inputs)
        options |= {"num_returns": len(task.outputs) + 1, "name": calls.name_of(task.function)}
        try:
            *results, status = run.options(**options).remote(*arguments)
        except RuntimeError as error:
            error.add_note(
                "Give each trial of Ray Tune a CPU for every worker, tune.with_resources(trial, "
                "tune.PlacementGroupFactory([{}] + [{'CPU': 1}] * num_workers)); or use "
                "engine='local' or 'serial' in trials."
            )
            self.graph.fail(task, error)
            return
        self._running[task] = status
        status.future().add_done_callback(
            lambda done: self.post(self._finish, task, results, lineage, done)
        )

    def _placed(self, task: Task, inputs: Sequence[RayValue]) -> tuple[Any, dict[str, Any]]:
        """Return what runs a task, an agent or any process, and the options that say where."""
        resources = task.resources
        if task.priority and not resources.gpus:
            node = self._node_near(inputs) if task.place is None else self._node_at(task.place)
            return self.agents[node].run, {}
        options: dict[str, Any] = {
            "num_cpus": resources.cpus,
            "num_gpus": resources.gpus,
            "max_retries": calls.MAX_RUNS - 1,
            "resources": self._custom,
        }
        states = [value for value in inputs if value.by_worker]
        if self._group is not None:  # which Ray forgets in a thread of a task
            options["scheduling_strategy"] = PlacementGroup(self._group)
        elif states:
            # A worker stays on its node, where its state and blocks are, unless the node is busy.
            node = self._node_near(states)
            options["scheduling_strategy"] = NodeAffinity(
                node, soft=True, _spill_on_unavailable=True
            )
        return self._run_task, options

    def _node_at(self, place: int) -> str:
        """Return the node of a place: all nodes in turn, in the order of their ids."""
        nodes = sorted(name for name, node in self.nodes.items() if node.cpus)
        return nodes[place % len(nodes)] if nodes else self.here

    def _node_near(self, inputs: Sequence[RayValue]) -> str:
        """Return the node that has most of these values, by default the coordinator's."""
        counts = Counter(value.node for value in inputs if value.node in self.nodes)
        return counts.most_common(1)[0][0] if counts else self.here

    def _finish(
        self, task: Task, results: Sequence[Any], lineage: Lineage, done: "Future[Any]"
    ) -> None:
        self._cancelled.pop(task, None)
        if self._abandoned.pop(task, None) is not None:
            return
        del self._running[task]
        error = done.exception()
        if error is not None:
            self.graph.fail(task, lost_error(f"task {calls.name_of(task.function)!r}", error))
            return
        answer = done.result()
        if isinstance(answer, calls.Failure):
            self.graph.fail(task, answer.exception(_MODULE_ADVICE))
            return
        values = [
            RayValue(ref, node=answer, lineage=lineage, by_worker=not task.priority)
            for ref in results
        ]
        self.graph.complete(task, values)
        for output in self._wanted.intersection(task.outputs):
            self._keep(output)
        self._wanted.difference_update(task.outputs)
