"""The Ray engine: tasks on a cluster, values in its object store. Only this package imports ray."""

import importlib
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

from compss_train.data.remote_block import RemoteBlock
from compss_train.engines.base import Ref, Traits
from compss_train.engines.codec import SerializedValue
from compss_train.engines.graph_engine import GraphEngine
from compss_train.engines.nodes import Node, Resources, check_room, check_size
from compss_train.engines.ray import cluster
from compss_train.engines.task_graph import Stored

if TYPE_CHECKING:
    from compss_train.engines.ray.submitter import Submitter

_END_SECONDS = 5.0
"""Seconds that agents have to answer."""


class RayEngine(GraphEngine):
    """Run tasks on the Ray cluster at ``RAY_ADDRESS``, by default on a new one on this machine.

    A program that has called ``ray.init`` uses that cluster, and is left in it. What is in the main
    script or in a notebook is sent to nodes, and so are the sources of modules beside it, up to
    10 MB, for nodes that lack them. ``modules`` are others that nodes need: modules, or paths of
    modules and packages. ``resources`` are Ray's custom resources that the task of a worker takes
    besides its CPUs and its share of a GPU, such as ``{"bigmem": 1}`` on nodes that were started
    with ``ray start --resources='{"bigmem": 4}'``. Tasks must not write to large arrays and tensors
    that they are given: the processes of a node share their memory.

    Tasks whose process or node is lost run again, up to 4 times in all, and values that were on a
    lost node are made again. Nodes may join and leave at any time. Several threads may use the
    engine, for a fit each.

    Raises ``ModuleNotFoundError`` without ray, ``ConnectionError`` if there is no cluster at the
    address, or if it refuses the token of this program, and ``ValueError`` for an address of Ray
    Client (``ray://``), and for resources that no node has.
    """

    name: ClassVar[str] = "ray"
    traits: ClassVar[Traits] = Traits(
        shared_memory=True, binds_gpus=True, task_seconds=0.004, object_bytes=2**18
    )
    gpu_source: ClassVar[str] = (
        "A cluster has the GPUs that its nodes see, or were started with: ray start --num-gpus=1"
    )
    _engines: ClassVar[int] = 0
    """The number of engines that use the cluster."""
    _leave: ClassVar[Callable[[], None] | None] = None
    """Leaves or ends the cluster, with the last engine, if this class has joined or started it."""
    _scheduler: "Submitter"

    def __init__(
        self,
        modules: Sequence[str | ModuleType] = (),
        *,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self._custom = cluster.check_custom(resources or {})
        RayEngine._leave = cluster.join(modules) or RayEngine._leave
        cluster.check_available(self._custom)
        # These modules import ray, which need not be installed.
        value = importlib.import_module("compss_train.engines.ray.value")
        submitter = importlib.import_module("compss_train.engines.ray.submitter")
        sources = importlib.import_module("compss_train.engines.ray.sources")
        sources.send_sources(modules)
        self._put: Callable[[SerializedValue], Stored] = value.RayValue.put
        self._scheduler = submitter.Submitter(self._custom)
        self._graph = self._scheduler.graph
        RayEngine._engines += 1
        self.end = weakref.finalize(self, self._shut_down, self._scheduler, os.getpid())

    @classmethod
    def nodes(cls) -> Sequence[Node]:
        """Return the nodes of the cluster; joins the one at ``RAY_ADDRESS``, but starts none."""
        ray = cluster.import_ray()
        if not ray.is_initialized() and not os.environ.get(cluster.ADDRESS):
            return super().nodes()
        RayEngine._leave = cluster.join() or RayEngine._leave
        return [*cluster.nodes_by_id().values()]

    @classmethod
    def default_workers(cls, threads: int) -> int:
        """Return how many tasks of ``threads`` threads fit on the nodes."""
        nodes = cls.nodes()
        if len(nodes) == 1 and nodes[0].name == "localhost":
            return super().default_workers(threads)
        return max(1, sum(node.cpus // threads for node in nodes))

    def _store(self, value: object) -> Stored:
        """Put the value into the object store of the coordinator's node; those of Ray are there."""
        if isinstance(value, RemoteBlock) and value.home == self.name:
            stored: Stored = value.stored()  # type: ignore[attr-defined]  # a block of ``datasets``
            return stored
        return self._put(SerializedValue.of(value))

    def _check_size(self, resources: Resources) -> None:
        """Raise ``ValueError`` for a task larger than every node; the first one waits for room."""
        check_size(resources, [*self._scheduler.nodes.values()])
        self._scheduler.await_room(resources.cpus)

    def keep(self, refs: Sequence[Ref]) -> None:
        """Fetch the values and put them again, unless that was done a moment ago."""
        self._check_open()
        graph_refs = [self._own(ref) for ref in refs]
        values = [ref.value for ref in graph_refs if ref.updates is None]
        self._post(self._scheduler.keep, values)

    def slots(self, resources: Resources) -> int:
        """Return how many such tasks fit on the nodes that are there now."""
        nodes = self._scheduler.nodes
        if not self._custom:
            return sum(node.cpus // resources.cpus for node in nodes.values())
        fitting = cluster.fitting_by_id(self._custom)
        return sum(
            min(node.cpus // resources.cpus, fitting.get(key, 0)) for key, node in nodes.items()
        )

    @property
    def merging_places(self) -> int:
        """The number of nodes that run tasks."""
        return max(1, sum(node.cpus > 0 for node in self._scheduler.nodes.values()))

    def _reserve(self, tasks: Sequence[Resources]) -> None:
        """Raise ``ValueError`` if these tasks do not fit on the nodes together; wait for room."""
        check_room(
            tasks,
            [*self._scheduler.nodes.values()],
            "let more nodes join (ray start --address=...)",
        )
        if self._custom and len(tasks) > sum(cluster.fitting_by_id(self._custom).values()):
            raise ValueError(
                f"{len(tasks)} tasks have to run at the same time, and nodes do not have "
                f"resources={self._custom} for each; use fewer workers, or let more nodes join"
            )
        self._scheduler.await_room(sum(task.cpus for task in tasks))

    def trained_samples(self) -> int | None:
        """Return what the processes of all nodes report; ``None`` if a node does not answer."""
        with suppress(cluster.import_ray().exceptions.RayError):
            return int(sum(self._scheduler.ask_agents("samples", _END_SECONDS)))
        return None

    @staticmethod
    def _shut_down(submitter: "Submitter", owner: int) -> None:
        """End the cluster if this class has started it, or leave it, with the last engine."""
        # A forked child of the program does not own its copy of the engine.
        if os.getpid() != owner:
            return
        ray = cluster.import_ray()
        submitter.stop()
        RayEngine._engines -= 1
        if ray.is_initialized():
            submitter.cancel_running()
            with suppress(ray.exceptions.RayError):
                submitter.ask_agents("close", _END_SECONDS)
                if not RayEngine._engines:
                    importlib.import_module("compss_train.engines.ray.sources").forget_sources()
            submitter.agents.clear()
        leave = None if RayEngine._engines else RayEngine._leave
        if leave is not None:
            RayEngine._leave = None
            leave()
