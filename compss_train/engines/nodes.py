"""Nodes that tasks run on, what tasks need, and the address at which they reach this machine.

Imports no torch, so that the doctor can use it.
"""

import ipaddress
import socket
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from loky import cpu_count

LOOPBACK = "127.0.0.1"
"""The loopback address."""

_UNUSED_ADDRESS = ("10.255.255.255", 1)
"""Nothing is sent to it; connecting a datagram socket only makes the system choose a route."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that runs tasks, or a part of it."""

    name: str
    """Its host name or address."""
    cpus: int
    """Computing units, one for each thread of a task."""
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a task while it runs."""

    cpus: int = 1
    """Computing units, which are also the intra-op threads that torch uses in the task."""
    gpus: float = 0
    """GPUs, at most one; a fraction where several tasks share it. COMPSs gives each a whole one."""
    own_process: bool = False
    """Whether the task may end its process, as a hanging simulation does.

    It then runs where a process that dies is replaced and its task runs again.
    """


ONE_CPU = Resources()


def cores() -> int:
    """Return the cores that this process may use (affinity and container limits count)."""
    return int(cpu_count())


def physical_cores() -> int:
    """Return the physical cores that this process may use (affinity and container limits count)."""
    with warnings.catch_warnings():
        # If loky cannot determine the physical cores, it warns and counts the logical ones.
        warnings.simplefilter("ignore")
        return int(cpu_count(only_physical_cores=True))


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is the loopback interface's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name
        return host == "localhost"


def is_local(name: str) -> bool:
    """Return whether a node is this machine under one of its names."""
    host = socket.gethostname()
    return name in {"localhost", host, host.split(".")[0]} or name.startswith("127.")


def address_for(nodes: Sequence[Node]) -> str:
    """Return the address at which tasks on these nodes reach this machine.

    It is the loopback address if all of them are here, else this machine's address on the default
    route or, without one, the address of its host name.
    """
    if nodes and all(is_loopback(node.name) for node in nodes):
        return LOOPBACK
    try:
        return own_address(*_UNUSED_ADDRESS)
    except OSError:
        return socket.gethostbyname(socket.gethostname())


def own_address(host: str, port: int) -> str:
    """Return the address of this machine on the route to a host; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def check_room(tasks: Sequence[Resources], nodes: Sequence[Node], advice: str) -> None:
    """Raise ``ValueError`` if the tasks do not fit on the nodes together, so that some would wait.

    Without known nodes only the size of each task is checked.

    Places the largest tasks first. For tasks of very different sizes there may be another
    placement; a runtime is no more likely to find it. ``advice`` says how there may be more
    resources.
    """
    for task in set(tasks):
        check_size(task, nodes)
    if not nodes:
        return
    free = [
        [float(node.gpus), node.cpus]
        for node in sorted(nodes, key=lambda node: (node.gpus, node.cpus))
    ]
    for task in sorted(tasks, key=lambda task: (task.gpus, task.cpus), reverse=True):
        room = next((node for node in free if node[0] >= task.gpus and node[1] >= task.cpus), None)
        if room is None:
            needed = _amount(sum(task.cpus for task in tasks), sum(task.gpus for task in tasks))
            declared = ", ".join(f"{node.name} {_amount(node.cpus, node.gpus)}" for node in nodes)
            raise ValueError(
                f"{len(tasks)} tasks have to run at the same time and need {needed}, but they do "
                f"not fit on the nodes: {declared}. Use fewer workers, simulators or threads, or "
                f"{advice}"
            )
        room[0] -= task.gpus
        room[1] -= task.cpus


def check_size(task: Resources, nodes: Sequence[Node]) -> None:
    """Raise ``ValueError`` if a task needs more than any node has, since it would never run."""
    if task.gpus > 1:
        raise ValueError(f"a task asks for {task.gpus} GPUs; tasks take at most one")
    largest = max((node.cpus for node in nodes if node.gpus >= task.gpus), default=0)
    if nodes and task.cpus > largest:
        kind = "the largest node with a GPU" if task.gpus else "the largest node"
        raise ValueError(
            f"a task needs {task.cpus} CPUs, {kind} has {largest}; use fewer "
            "threads= or larger nodes"
        )


def _amount(cpus: int, gpus: float) -> str:
    return f"{cpus} computing units" + (f" and {gpus:g} GPUs" if gpus else "")
