"""Reads the two files, whoever wrote them: with or without a namespace, and as far as COMPSs itself forgives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

UNREADABLE = (OSError, ElementTree.ParseError)
"""What reading raises where there is no file, or none of XML."""


@dataclass(frozen=True, slots=True)
class DeclaredNode:
    """A worker node as a resources file describes it."""

    name: str
    cpus: int
    """Computing units of its CPUs."""
    gpus: int


def read_nodes(project: Path, resources: Path) -> list[DeclaredNode]:
    """Return the nodes that COMPSs starts workers on: those of the project that have resources."""
    names = read_project(project)
    return [node for node in read_resources(resources).values() if node.name in names]


def read_project(path: Path) -> dict[str, Path | None]:
    """Return the nodes of a project file, and where it says that COMPSs is installed on each."""
    folders = {name: entry.findtext("{*}InstallDir") for name, entry in _entries(path)}
    return {name: Path(folder) if folder else None for name, folder in folders.items()}


def read_resources(path: Path) -> dict[str, DeclaredNode]:
    """Return the nodes of a resources file by name; a number that is none counts as 0."""
    return {name: DeclaredNode(name, _units(entry, "CPU"), _units(entry, "GPU")) for name, entry in _entries(path)}


def _entries(path: Path) -> Iterator[tuple[str, ElementTree.Element]]:
    for entry in ElementTree.parse(path).getroot().findall("{*}ComputeNode"):
        yield entry.get("Name", ""), entry


def _units(entry: ElementTree.Element, kind: str) -> int:
    processors = [item for item in entry.findall("{*}Processor") if _text(item, "Type", "CPU").upper() == kind]
    numbers = [_text(item, "ComputingUnits", "0") for item in processors]
    return sum(int(number) for number in numbers if number.isdecimal())


def _text(element: ElementTree.Element, tag: str, default: str) -> str:
    return (element.findtext(f"{{*}}{tag}") or "").strip() or default
