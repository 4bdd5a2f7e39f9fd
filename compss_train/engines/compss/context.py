"""Where this process runs: under the COMPSs runtime or not, and which nodes the runtime was told about."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

JVM_OPTIONS = "JVM_OPTIONS_FILE"
"""Environment variable that runcompss sets: a file with the runtime's options, one a line."""
COMPUTING_UNITS = "ComputingUnits"
"""Environment variable by which dislib's users say how many computing units a task takes."""


def under_compss() -> bool:
    """Return whether this process is the main program of a COMPSs application.

    Pycompss is looked for, not imported: runcompss and ``pycompss.interactive`` have imported it by then.
    """
    module = sys.modules.get("pycompss.util.context")
    return module is not None and bool(module.CONTEXT.in_master())


@dataclass(frozen=True, slots=True)
class Node:
    """A worker node as the runtime's configuration describes it."""

    name: str
    cpus: int
    """Computing units of its CPUs."""
    gpus: int


def declared_nodes() -> list[Node]:
    """Return the nodes of the runtime's project, empty where there is no such configuration to read."""
    options = _options()
    try:
        project = ElementTree.parse(options["compss.project.file"]).getroot()
        resources = ElementTree.parse(options["compss.resources.file"]).getroot()
    except (KeyError, OSError, ElementTree.ParseError):
        return []
    names = {node.get("Name") for node in project if _tag(node) == "ComputeNode"}
    return [_node(node) for node in resources if _tag(node) == "ComputeNode" and node.get("Name") in names]


def _options() -> dict[str, str]:
    try:
        lines = Path(os.environ[JVM_OPTIONS]).read_text().splitlines()
    except (KeyError, OSError):
        return {}
    pairs = (line.strip().removeprefix("-D").partition("=") for line in lines if line.startswith("-D"))
    return {name: value for name, _, value in pairs}


def _node(element: ElementTree.Element) -> Node:
    units = {"CPU": 0, "GPU": 0}
    for processor in element:
        if _tag(processor) == "Processor":
            kind = _text(processor, "Type") or "CPU"
            units[kind] = units.get(kind, 0) + int(_text(processor, "ComputingUnits") or 0)
    return Node(element.get("Name", ""), units["CPU"], units["GPU"])


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(element: ElementTree.Element, tag: str) -> str:
    return next(((child.text or "").strip() for child in element if _tag(child) == tag), "")


def thread_share(num_workers: int, nodes: list[Node]) -> int:
    """Return the computing units that a worker's tasks take where the user names none.

    ``ComputingUnits`` where that variable is set, as for dislib; else each worker's share of the smallest node's.
    """
    if (units := os.environ.get(COMPUTING_UNITS, "")).isdigit():
        return max(1, int(units))
    if not nodes:
        return 1
    workers_a_node = -(-num_workers // len(nodes))
    return max(1, min(node.cpus for node in nodes) // workers_a_node)
