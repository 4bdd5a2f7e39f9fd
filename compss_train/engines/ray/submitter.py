"""Hands ready tasks to Ray, for processes of any node or a node's agent; keeps their results."""

import math
import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import ray
from ray.exceptions import OutOfMemoryError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as NodeAffinity
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as PlacementGroup

from compss_train.engines import calls
from compss_train.engines.base import Scope
from compss_train.engines.codec import SerializedValue
from compss_train.engines.graph_engine import GraphThread
from compss_train.engines.nodes import Node
from compss_train.engines.ray import agent, cluster
from compss_train.engines.task_graph import Task, Value
from compss_train.engines.watch import say
from compss_train.exceptions import WorkerLostError

NODES_SECONDS = 5.0
"""Seconds between looks for nodes that have joined or left."""

KEEP_SECONDS = 2.0
KEEP_SHARE = 0.05
"""Values are kept at most so often, and in at most this share of the time."""

ROOM_SECONDS = 10.0
"""Seconds that the first task waits for free CPUs until the program says so, or gives up."""

ANY_CPUS = 10**9
"""Ray has the tasks that are ready, and starts those that fit on its nodes."""

Lineage: TypeAlias = tuple[Any, ...]
"""The objects from which Ray makes a value again whose node is lost, as nested tuples."""


@dataclass(eq=False, slots=True)
class RayValue:
    """A value in Ray's object store.

    Ray remembers by which tasks it was made, to make it again. But Ray frees an object that was put
    when nobody has a reference to it, and could not put it again, so ``lineage`` has those
    references.
    """

    ref: Any
    node: str
    lineage: Lineage
    by_worker: bool = False
    """Whether a worker's task has made it, as its parameters and state."""

    @classmethod
    def put(cls, value: SerializedValue) -> "RayValue":
        """Store a value where the coordinator is."""
        ref = ray.put(value)
        return cls(ref, ray.get_runtime_context().get_node_id(), (ref,))

    def load(self) -> Any:
        """Return the value; large arrays are read-only views of shared memory."""
        try:
            return agent.load(ray.get(self.ref))
        except RayError as error:
            raise lost_error("a value", error) from error

    def keep(self) -> None:
        """Put the value here: from now on nothing that it was made from is needed."""
        self.ref = ray.put(ray.get(self.ref))
        self.lineage = (self.ref,)

    def discard(self) -> None:
        """Drop the references."""
        self.ref = None
        self.lineage = ()


class Submitter(GraphThread):
    """Submits ready tasks to Ray, which places them and repeats those of lost processes or nodes.

    Tasks with priority, which others wait for, run in the agent of the node that has most of their
    inputs.
    """

    def __init__(self) -> None:
        super().__init__()
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
        self._running: dict[Task, Any] = {}
        """The last result of each running task: its node, or a failure."""
        self._wanted: set[Value] = set()
        """Values to be kept that are not available yet."""
        self._kept = -math.inf
        self._keep_seconds = 0.0
        """When values were kept last, and how long that took."""
        self._look_for_nodes()
        self._thread.start()

    def ask_agents(self, method: str, seconds: float) -> list[Any]:
        """Call a method of the agents, which may be running tasks; return all answers.

        Raises ``GetTimeoutError`` after so many seconds.
        """
        answers: list[Any] = ray.get(self._call(self.nodes, method), timeout=seconds)
        return answers

    def _call(self, nodes: Container[str], method: str, *args: Any) -> list[Any]:
        # In one step, as the engine's own thread adds agents, and the end of the engine removes
        # them.
        agents = [agent for node, agent in list(self.agents.items()) if node in nodes]
        return [
            getattr(each, method).options(concurrency_group="watch").remote(*args)
            for each in agents
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
        ends = time.monotonic() + ROOM_SECONDS
        while (free := ray.available_resources().get(name, 0.0)) < cpus and time.monotonic() < ends:
            time.sleep(0.1)
        total = ray.cluster_resources().get(name, 0.0)
        where = "placement group" if self._group else "cluster"
        taken = f"a task needs {cpus} CPUs, and {free:g} of the {where}'s {total:g} are free"
        if free < cpus and (context := ray.get_runtime_context()).worker.mode == ray.WORKER_MODE:
            raise RuntimeError(
                f"{taken}; this task or actor has "
                f"{context.get_assigned_resources().get('CPU', 0.0):g} itself. Start it with "
                "num_cpus=0; or in a placement group with a CPU more than workers, "
                "placement_group([{'CPU': 1}] * (num_workers + 1)), that captures child tasks; "
                "or take engine='local'"
            )
        if free < cpus:
            say(
                f"{taken}: tasks, actors and placement groups have the others, and the fit waits "
                "for them"
            )
        self._has_room = True

    def keep(self, values: Sequence[Value]) -> None:
        """Keep values as soon as they are available, unless others were kept a moment ago."""
        if time.monotonic() < self._kept + KEEP_SECONDS + self._keep_seconds / KEEP_SHARE:
            return
        self._kept = time.monotonic()
        self._keep_seconds = 0.0
        for value in values:
            if value.future.done():
                self._keep(value)
            else:
                self._wanted.add(value)

    def _keep(self, value: Value) -> None:
        stored = None if value.future.exception() else value.future.result()
        if (
            isinstance(stored, RayValue)
            and stored.ref is not None
            and stored.lineage != (stored.ref,)
        ):
            began = time.monotonic()
            stored.keep()
            self._keep_seconds += time.monotonic() - began

    def finish_running(self) -> None:
        """Start no more tasks, and wait for the running ones."""
        self._stopping = True
        running = list(self._running.values())
        ray.wait(running, num_returns=len(running) or 1) if running else None

    def cancel_running(self) -> None:
        """End the processes of running tasks."""
        with suppress(RayError):
            ray.get(self._noted(), timeout=NODES_SECONDS)
        for task in [*self._running]:
            self._end(task)

    def cancel(self, scope: Scope) -> None:
        """Cancel the tasks, and end the processes of those that run."""
        for task in self.graph.cancel(scope):
            self._noted().future().add_done_callback(
                lambda _, task=task: self.post(self._end, task)
            )

    def _noted(self) -> Any:
        """Return an object that exists once Ray has noted all tasks submitted until now.

        A task that is cancelled before that ends the whole program: Ray 2.60 counts its inputs down
        twice, and then a check of its own fails. Ray's thread deals with submissions and replies
        one after the other.
        """
        return self._call([self.here], "samples")[0]

    def _end(self, task: Task) -> None:
        if task in self._running and not task.priority:  # agents run short ones only, to their end
            ray.cancel(self._running[task], force=True)

    def _check(self) -> float | None:
        if self._next_look <= time.monotonic():
            self._look_for_nodes()
        return max(0.0, self._next_look - time.monotonic())

    def _look_for_nodes(self) -> None:
        """Let every node have an agent, before other threads see the node."""
        nodes = cluster.nodes_by_id()
        for node in nodes:
            if node not in self.agents or node in self._unwatched:
                self._add_agent(node)
        for name in [node.name for key, node in self.nodes.items() if key not in nodes]:
            left = f"{len(nodes)} node{'s are' if len(nodes) > 1 else ' is'} left"
            say(
                f"node {name} is lost or has left: its tasks run again, and its values are made "
                f"again; {left}"
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
        ).remote(node)
        watches = self._call([node], "watches")[0]
        watches.future().add_done_callback(lambda done: self.post(self._check_agent, node, done))

    def _check_agent(self, node: str, watches: "Future[bool]") -> None:
        if watches.exception() is None and not watches.result():
            self._elsewhere.append(self.agents[node])
            self._unwatched.add(node)

    def _start_ready(self) -> None:
        while (task := self.graph.next_ready(ANY_CPUS)) is not None:
            self._start(task)

    def _start(self, task: Task) -> None:
        inputs: list[RayValue] = []

        def placeholder(argument: Any) -> Any:
            if not isinstance(argument, Value):
                return argument
            inputs.append(argument.future.result())  # type: ignore[arg-type]
            return calls.Placeholder(len(inputs) - 1)

        args = calls.map_args(task.args, placeholder)
        call: Any = SerializedValue.of((task.function, args, task.scope.settings))
        lineage = tuple([each.lineage for each in inputs])
        if call.nbytes > agent.COPIED_BYTES:  # Ray would put it, and free it too early
            call = ray.put(call)
            lineage = (call, *lineage)
        resources = task.resources
        returns = len(task.outputs) + 1
        watched = (
            (0, 0.0)
            if task.watching is None
            else (task.watching.number, task.watching.timeout or 0.0)
        )
        sent = call, resources.cpus, watched, len(task.outputs), *[each.ref for each in inputs]
        options: dict[str, Any] = {"num_returns": returns, "name": calls.name_of(task.function)}
        if task.priority and not resources.gpus:
            node = self._node_near(inputs) if task.place is None else self._node_at(task.place)
            run = self.agents[node].run
        else:
            run = self._run_task
            options |= {
                "num_cpus": resources.cpus,
                "num_gpus": resources.gpus,
                "max_retries": calls.MAX_RUNS - 1,
            }
            if self._group is not None:  # which Ray forgets in a thread of a task
                options["scheduling_strategy"] = PlacementGroup(self._group)
            elif states := [each for each in inputs if each.by_worker]:
                # A worker stays on its node, where its state and blocks are, unless that node is
                # busy.
                near = self._node_near(states)
                options["scheduling_strategy"] = NodeAffinity(
                    near, soft=True, _spill_on_unavailable=True
                )
        try:
            *results, status = run.options(**options).remote(*sent)
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

    def _node_at(self, place: int) -> str:
        """Return the node of a place: all nodes in turn, in the order of their ids."""
        nodes = sorted(name for name, node in self.nodes.items() if node.cpus)
        return nodes[place % len(nodes)] if nodes else self.here

    def _node_near(self, inputs: Sequence[RayValue]) -> str:
        """Return the node that has most of these values, by default the coordinator's."""
        counts = Counter(each.node for each in inputs if each.node in self.nodes)
        return counts.most_common(1)[0][0] if counts else self.here

    def _finish(
        self, task: Task, results: Sequence[Any], lineage: Lineage, done: "Future[Any]"
    ) -> None:
        del self._running[task]
        error = done.exception()
        if error is not None:
            self.graph.fail(task, lost_error(f"task {calls.name_of(task.function)!r}", error))
        elif isinstance(answer := done.result(), calls.Failure):
            self.graph.fail(task, answer.exception())
        else:
            self.graph.complete(
                task, [RayValue(ref, answer, lineage, not task.priority) for ref in results]
            )
            for value in self._wanted.intersection(task.outputs):
                self._keep(value)
            self._wanted.difference_update(task.outputs)


def lost_error(what: str, error: BaseException) -> WorkerLostError:
    """Return the error for a task or value that Ray has lost."""
    text = " ".join(str(error).split())
    if isinstance(error, OutOfMemoryError):
        text, _, _ = text.partition(" Object store memory usage")  # and pages more
        return WorkerLostError(
            f"{what} was ended by Ray's memory monitor, since its node ran out of memory: "
            f"{text}. Use smaller blocks or batches, or fewer workers a node (threads=)"
        )
    return WorkerLostError(
        f"Ray lost {what}, and cannot make it again, after {calls.MAX_RUNS} attempts or because "
        f"its inputs are lost, too: {text}. If memory ran out, use smaller blocks or batches. "
        "fit(resume=) continues from a checkpoint"
    )
