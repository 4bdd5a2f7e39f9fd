"""COMPSs's two files: whether they can be read and agree, and what they say to the other checks."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from compss_train.cli.doctor.findings import Finding, Request
from compss_train.cli.doctor.tools import ask
from compss_train.engines.compss.configuration import (
    UNREADABLE,
    DeclaredNode,
    compss_home,
    physical_cores,
    presumed_home,
    read_project,
    read_resources,
)


def check_files(request: Request) -> Iterator[Finding]:
    """Look whether the two XML files can be read and name the same nodes."""
    if request.project is not None:
        yield _judge_file("project file", request.project, read_project)
    if request.resources is not None:
        yield _judge_file("resources file", request.resources, read_resources)
    known = declared(request.resources)
    if known and (unknown := set(project_nodes(request)) - set(known)):
        found = f"{', '.join(sorted(unknown))} of the project file not in the resources file"
        yield Finding("nodes", "missing", found, "give each node an entry in both files")


def project_nodes(request: Request) -> tuple[str, ...]:
    """Return the nodes of the project file."""
    return tuple(_install_dirs(request))


def install_dir(request: Request, node: str) -> Path:
    """Return where COMPSs is to be on a node: where the project file says, or where it is here."""
    return _install_dirs(request).get(node) or presumed_home()


def declared(resources: Path | None) -> dict[str, DeclaredNode]:
    """Return the nodes of a resources file, none where it cannot be read: ``check_files`` has said so."""
    try:
        return {} if resources is None else read_resources(resources)
    except UNREADABLE:
        return {}


def _install_dirs(request: Request) -> dict[str, Path | None]:
    try:
        return {} if request.project is None else read_project(request.project)
    except UNREADABLE:
        return {}


def _judge_file(name: str, path: Path, read: Callable[[Path], Iterable[str]]) -> Finding:
    try:
        nodes = read(path)
    except UNREADABLE as error:
        return Finding(name, "missing", f"{path}: {error}", "compss-train configure writes one")
    return Finding(name, "ok", f"{path}: {', '.join(nodes) or 'no nodes'}")


def check_resources(request: Request) -> Iterator[Finding]:
    """Hold what the resources file declares of this machine against what it has.

    Without a file COMPSs takes its own, which says four units whatever the machine is.
    """
    path = request.resources or _default_resources()
    own = [node for node in declared(path).values() if is_here(node.name)]
    for node in own:
        for finding in judge_node(node, os.cpu_count() or 1, physical_cores(), _count_gpus()):
            yield finding if request.resources is not None else _of_default(finding, path)
    total = sum(node.cpus for node in own)
    if len(own) > 1 and total > physical_cores():
        found = f"{total} in all, {physical_cores()} physical cores"
        yield Finding("units of this machine", "warning", found, "workers slow each other: declare fewer")


def judge_node(node: DeclaredNode, logical: int, physical: int, gpus: int) -> Iterator[Finding]:
    """Judge what is declared of a node that has so many cores and GPUs."""
    yield _judge_units(node, logical, physical)
    if node.gpus or gpus:
        yield _judge_gpus(node, gpus)


def is_here(node: str) -> bool:
    """Return whether a node is this machine under one of its names."""
    host = socket.gethostname()
    return node in {"localhost", host, host.split(".")[0]} or node.startswith("127.")


def _of_default(finding: Finding, path: Path | None) -> Finding:
    """Return a finding about COMPSs's own file, which runs need not use: at most a warning."""
    if finding.state != "missing":
        return finding
    advice = f"give runcompss files of your own ({finding.advice})"
    return Finding(finding.name, "warning", f"{finding.found} in COMPSs's own {path}", advice)


def _judge_units(node: DeclaredNode, logical: int, physical: int) -> Finding:
    name, found = f"units of {node.name}", f"{node.cpus} declared, {physical} cores"
    advice = f"compss-train configure --units {physical}"
    if node.cpus > logical:
        return Finding(name, "missing", found, f"COMPSs runs no tasks beyond the cores: {advice}")
    if node.cpus > physical:
        return Finding(name, "warning", found, f"two units on one core slow each other: {advice}")
    return Finding(name, "ok", found)


def _judge_gpus(node: DeclaredNode, gpus: int) -> Finding:
    name, found = f"GPUs of {node.name}", f"{node.gpus} declared, {gpus} found"
    if node.gpus > gpus:
        return Finding(name, "missing", found, f"compss-train configure --gpus {gpus}")
    if node.gpus < gpus:
        unused = "tasks cannot ask for those that are not declared: configure with --gpus"
        return Finding(name, "note", found, unused)
    return Finding(name, "ok", found)


def _default_resources() -> Path | None:
    home = compss_home()
    return home and home / "Runtime/configuration/xml/resources/default_resources.xml"


def _count_gpus() -> int:
    answer = ask(["nvidia-smi", "-L"])
    return len(re.findall(r"^GPU \d+", answer.out, re.MULTILINE)) if answer.code == 0 else 0
