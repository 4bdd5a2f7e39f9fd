"""Nodes of the running COMPSs application: their computing units, which tasks fit on them, and their addresses."""

import os
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from compss_train._utils.validation import warn_user
from compss_train.engines.base import Resources
from compss_train.engines.compss.configuration.files import UNREADABLE, DeclaredNode, read_nodes
from compss_train.engines.compss.configuration.nodes import is_local
from compss_train.engines.machine import LOOPBACK, is_loopback
from compss_train.exceptions import WorkerLostError

JVM_OPTIONS = "JVM_OPTIONS_FILE"
"""Environment variable that runcompss sets: the path of a file with the runtime's options, one per line."""
COMPUTING_UNITS = "ComputingUnits"
"""Environment variable with the number of computing units of a task, as dislib uses it."""


def declared_nodes() -> list[DeclaredNode]:
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


def thread_share(num_workers: int, nodes: list[DeclaredNode]) -> int:
    """Return the default number of computing units of a worker's tasks.

    The value of ``ComputingUnits`` if that variable is set, else each worker's share of the smallest node.
    """
    if (units := os.environ.get(COMPUTING_UNITS, "")).isdigit():
        return max(1, int(units))
    if not nodes:
        return 1
    workers_per_node = -(-num_workers // len(nodes))
    return max(1, min(node.cpus for node in nodes) // workers_per_node)


def address_for(nodes: Sequence[DeclaredNode]) -> str:
    """Return the address at which tasks on these nodes reach this machine."""
    return LOOPBACK if nodes and all(is_loopback(node.name) for node in nodes) else outward_address()


_UNUSED_ADDRESS = ("10.255.255.255", 1)
"""Nothing is sent to it; connecting a datagram socket only makes the system choose a route."""


def outward_address() -> str:
    """Return this machine's address on the default route; without such a route, the address of its host name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_UNUSED_ADDRESS)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def fit_together(tasks: Sequence[Resources], nodes: Sequence[DeclaredNode]) -> bool:
    """Return whether all tasks fit on the nodes at the same time, by placing the largest tasks first.

    For tasks of very different sizes there may be another placement; COMPSs is no more likely to find it.
    """
    free = [[node.gpus, node.cpus] for node in sorted(nodes, key=lambda node: (node.gpus, node.cpus))]
    for task in sorted(tasks, key=lambda task: (task.gpus, task.cpus), reverse=True):
        room = next((node for node in free if node[0] >= task.gpus and node[1] >= task.cpus), None)
        if room is None:
            return False
        room[0] -= task.gpus
        room[1] -= task.cpus
    return True


def check_fit(tasks: Sequence[Resources], nodes: Sequence[DeclaredNode]) -> None:
    """Raise ``ValueError`` if the tasks do not fit on the nodes at the same time: COMPSs would wait for ever."""
    if fit_together(tasks, nodes):
        return
    needed = _amount(sum(task.cpus for task in tasks), sum(task.gpus for task in tasks))
    declared = ", ".join(f"{node.name} {_amount(node.cpus, node.gpus)}" for node in nodes)
    raise ValueError(
        f"{len(tasks)} tasks have to run at the same time and need {needed}, but they do not fit on the resources "
        f"that COMPSs was started with: {declared}. Use fewer workers, simulators or threads, or declare "
        "more (runcompss/laptop.sh --units, compss-train configure --units)"
    )


def check_gpus(num_gpu: int, num_nodes: int, nodes: Sequence[DeclaredNode]) -> None:
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


def check_limits(tasks: Sequence[Resources]) -> None:
    """Raise ``ValueError`` if more of the tasks are on GPUs than may be at a time: the last would wait for ever."""
    for task, number in Counter(tasks).items():
        if 0 < task.gpu_tasks < number:
            raise ValueError(
                f"{number} tasks with a GPU each have to run at the same time, but num_gpu={task.gpu_tasks} limits "
                f"them; use num_gpu={number}, or fewer workers"
            )


def lost_task_error(nodes: Sequence[DeclaredNode], cores: int) -> WorkerLostError:
    """Return the error for a value that, according to the runtime, will never be available.

    ``nodes`` are the declared ones and ``cores`` those of this machine, which may explain it.
    """
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
