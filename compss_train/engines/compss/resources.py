"""Nodes of the running COMPSs application: their computing units and GPUs, and which tasks fit on them."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from compss_train._utils.validation import warn_user
from compss_train.engines.base import Resources
from compss_train.engines.compss.configuration import UNREADABLE, read_nodes
from compss_train.engines.nodes import Node, is_local
from compss_train.exceptions import WorkerLostError

JVM_OPTIONS = "JVM_OPTIONS_FILE"
"""Environment variable that runcompss sets: the path of a file with the runtime's options, one per line."""


def declared_nodes() -> list[Node]:
    """Return the nodes of the runtime's project file; none if there is no readable configuration."""
    options = runtime_options()
    try:
        return read_nodes(Path(options["compss.project.file"]), Path(options["compss.resources.file"]))
    except (KeyError, *UNREADABLE):
        return []


def runtime_options() -> dict[str, str]:
    """Return the options that runcompss started the runtime with; none outside an application."""
    try:
        lines = Path(os.environ[JVM_OPTIONS]).read_text().splitlines()
    except (KeyError, OSError):
        return {}
    pairs = (line.strip().removeprefix("-D").partition("=") for line in lines if line.startswith("-D"))
    return {name: value for name, _, value in pairs}


def check_fit(tasks: Sequence[Resources], nodes: Sequence[Node]) -> None:
    """Raise ``ValueError`` if the tasks do not fit on the nodes at the same time: COMPSs would wait for ever.

    Places the largest tasks first. For tasks of very different sizes there may be another placement; COMPSs is no
    more likely to find it.
    """
    free = [[node.gpus, node.cpus] for node in sorted(nodes, key=lambda node: (node.gpus, node.cpus))]
    for task in sorted(tasks, key=lambda task: (task.gpus, task.cpus), reverse=True):
        room = next((node for node in free if node[0] >= task.gpus and node[1] >= task.cpus), None)
        if room is None:
            needed = _amount(sum(task.cpus for task in tasks), sum(task.gpus for task in tasks))
            declared = ", ".join(f"{node.name} {_amount(node.cpus, node.gpus)}" for node in nodes)
            raise ValueError(
                f"{len(tasks)} tasks have to run at the same time and need {needed}, but they do not fit on the "
                f"resources that COMPSs was started with: {declared}. Use fewer workers, simulators or threads, or "
                "declare more (runcompss/laptop.sh --units, compss-train configure --units)"
            )
        room[0] -= task.gpus
        room[1] -= task.cpus


def check_gpus(num_gpu: int, num_nodes: int, nodes: Sequence[Node]) -> None:
    """Raise ``ValueError`` for more GPUs than the nodes have; warn of another number of nodes."""
    if nodes and num_nodes and num_nodes != len(nodes) and (num_gpu or num_nodes > 1):
        warn_user(
            f"num_nodes={num_nodes}, but COMPSs was started with {len(nodes)}: "
            f"{', '.join(node.name for node in nodes)}; tasks run on all of these"
        )
    available = sum(node.gpus for node in nodes)
    if nodes and num_gpu > available:
        raise ValueError(
            f"num_gpu={num_gpu}, but the resources that COMPSs was started with have {available} GPUs on "
            f"{len(nodes)} nodes; use num_gpu={available}, or start with resources that declare more"
        )


def check_size(task: Resources, nodes: Sequence[Node]) -> None:
    """Raise ``ValueError`` if a task needs more than any node has, since COMPSs would never run it."""
    if task.gpus > 1:
        raise ValueError(f"a task asks for {task.gpus} GPUs; tasks of the compss engine take at most one")
    largest = max((node.cpus for node in nodes if node.gpus >= task.gpus), default=0)
    if nodes and task.cpus > largest:
        kind = "the largest node with a GPU" if task.gpus else "the largest node"
        raise ValueError(
            f"a task asks for {task.cpus} CPUs and {kind} has {largest}; use fewer threads "
            "(DistributedTrainer(threads=), or ComputingUnits in the environment) or larger nodes"
        )


def check_limits(tasks: Sequence[Resources]) -> None:
    """Raise ``ValueError`` if more of the tasks are on GPUs than may be at a time: the last would wait for ever."""
    for task, number in Counter(tasks).items():
        if 0 < task.gpu_tasks < number:
            raise ValueError(
                f"{number} tasks with a GPU each have to run at the same time, but num_gpu={task.gpu_tasks} limits "
                f"them; use num_gpu={number}, or fewer workers"
            )


def lost_task_error(nodes: Sequence[Node]) -> WorkerLostError:
    """Return the error for a value that the runtime will never have; the declared nodes may explain it."""
    cores = os.cpu_count() or 1
    node = max((node for node in nodes if is_local(node.name)), key=lambda node: node.cpus, default=None)
    bound = runtime_options().get("compss.worker.cpu_affinity") != "disabled"
    if node is not None and node.cpus > cores and bound:
        return WorkerLostError(
            f"COMPSs lost a task: {node.cpus} computing units are declared on {node.name}, which has {cores} "
            "cores. COMPSs binds each unit to a core, and tasks beyond the cores die. Start runcompss with "
            f"--cpu_affinity=disabled, as runcompss/laptop.sh does, or declare {cores} units "
            f"(runcompss/laptop.sh --units={cores}, compss-train configure --units {cores})"
        )
    return WorkerLostError(
        "COMPSs lost a task: its worker process died, most often because memory ran out, or could not start it. "
        "The files job*.err in the application's folder below ~/.COMPSs (runcompss --log_dir) contain more with "
        "runcompss --log_level=debug; if compss_train or torch is missing on a node, compss-train doctor reports it"
    )


def _amount(cpus: int, gpus: int) -> str:
    return f"{cpus} computing units" + (f" and {gpus} GPUs" if gpus else "")
