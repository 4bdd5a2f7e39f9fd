"""Whether the nodes of COMPSs can run tasks at the same time, as those that wait for each other must."""

from __future__ import annotations

from collections.abc import Sequence

from compss_train.configuration import DeclaredNode
from compss_train.engines.base import Resources


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
