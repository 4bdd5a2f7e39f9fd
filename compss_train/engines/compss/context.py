"""Where this process runs: under the COMPSs runtime or not, and which nodes the runtime was told about."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from compss_train.engines.base import Resources
from compss_train.engines.compss.configuration import UNREADABLE, DeclaredNode, read_nodes
from compss_train.engines.machine import LOOPBACK, is_loopback

JVM_OPTIONS = "JVM_OPTIONS_FILE"
"""Environment variable that runcompss sets: a file with the runtime's options, one a line."""
COMPUTING_UNITS = "ComputingUnits"
"""Environment variable by which dislib's users say how many computing units a task takes."""


def under_compss() -> bool:
    """Return whether this process is the main program of a COMPSs application.

    Pycompss is looked for, not imported: runcompss and ``pycompss.interactive`` have imported it by then.
    """
    return _context("in_master")


def is_loading() -> bool:
    """Return whether PyCOMPSs only imports the script, as it does with each before it starts the runtime."""
    return _context("is_loading")


def in_worker() -> bool:
    """Return whether this process runs tasks of a COMPSs application."""
    return _context("in_worker")


def _context(question: str) -> bool:
    context = getattr(sys.modules.get("pycompss.util.context"), "CONTEXT", None)
    return bool(getattr(context, question, bool)())  # False where this PyCOMPSs does not know the question


def declared_nodes() -> list[DeclaredNode]:
    """Return the nodes of the runtime's project, empty where there is no such configuration to read."""
    options = _options()
    try:
        return read_nodes(Path(options["compss.project.file"]), Path(options["compss.resources.file"]))
    except (KeyError, *UNREADABLE):
        return []


def _options() -> dict[str, str]:
    try:
        lines = Path(os.environ[JVM_OPTIONS]).read_text().splitlines()
    except (KeyError, OSError):
        return {}
    pairs = (line.strip().removeprefix("-D").partition("=") for line in lines if line.startswith("-D"))
    return {name: value for name, _, value in pairs}


def thread_share(num_workers: int, nodes: list[DeclaredNode]) -> int:
    """Return the computing units that a worker's tasks take where the user names none.

    ``ComputingUnits`` where that variable is set, as for dislib; else each worker's share of the smallest node's.
    """
    if (units := os.environ.get(COMPUTING_UNITS, "")).isdigit():
        return max(1, int(units))
    if not nodes:
        return 1
    workers_a_node = -(-num_workers // len(nodes))
    return max(1, min(node.cpus for node in nodes) // workers_a_node)


_ELSEWHERE = ("10.255.255.255", 1)
"""An address that is nobody's: nothing is sent there, it only makes the system choose a way out."""


def address_for(nodes: Sequence[DeclaredNode]) -> str:
    """Return the address at which tasks on these nodes reach this machine."""
    return LOOPBACK if nodes and all(is_loopback(node.name) for node in nodes) else outward_address()


def outward_address() -> str:
    """Return this machine's address on the default route; without one, that of its name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def fit_together(tasks: Sequence[Resources], nodes: Sequence[DeclaredNode]) -> bool:
    """Return whether the nodes have room for all tasks at once, the largest task placed first wherever it fits.

    Tasks of very different sizes might fit in another way, which COMPSs is no likelier to find.
    """
    free = [[node.gpus, node.cpus] for node in sorted(nodes, key=lambda node: (node.gpus, node.cpus))]
    for task in sorted(tasks, key=lambda task: (task.gpus, task.cpus), reverse=True):
        room = next((node for node in free if node[0] >= task.gpus and node[1] >= task.cpus), None)
        if room is None:
            return False
        room[0] -= task.gpus
        room[1] -= task.cpus
    return True


def check_together(tasks: Sequence[Resources], nodes: Sequence[DeclaredNode]) -> None:
    """Raise ``ValueError`` where the nodes cannot run the tasks at the same time: COMPSs would wait for ever."""
    if fit_together(tasks, nodes):
        return
    needed = _amount(sum(task.cpus for task in tasks), sum(task.gpus for task in tasks))
    declared = ", ".join(f"{node.name} {_amount(node.cpus, node.gpus)}" for node in nodes)
    raise ValueError(
        f"{len(tasks)} tasks that need {needed} have to run at the same time, and the resources that COMPSs was "
        f"started with have no room for them: {declared}. Use fewer workers, simulators or threads, or declare "
        "more (runcompss/laptop.sh --units, compss-train configure --units)"
    )


def _amount(cpus: int, gpus: int) -> str:
    return f"{cpus} computing units" + (f" and {gpus} GPUs" if gpus else "")
