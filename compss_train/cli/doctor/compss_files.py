"""Checks of COMPSs's two XML files: whether they can be read, agree, and fit the machine."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from compss_train.cli.doctor.findings import Finding, Request
from compss_train.cli.doctor.machine import run_program
from compss_train.engines.compss.configuration import UNREADABLE, read_project, read_resources
from compss_train.engines.compss.worker_nodes import compss_home, presumed_home
from compss_train.engines.nodes import Node, is_local, physical_cores


def check_files(request: Request) -> Iterator[Finding]:
    """Check that the two XML files can be read and name the same nodes."""
    if request.project is not None:
        yield _judge_file("project file", request.project, read_project)
    if request.resources is not None:
        yield _judge_file("resources file", request.resources, read_resources)
    known = declared_nodes(request.resources)
    if known and (unknown := set(project_nodes(request)) - set(known)):
        found = f"{', '.join(sorted(unknown))} of the project file not in the resources file"
        yield Finding("nodes", "missing", found, "give each node an entry in both files")


def project_nodes(request: Request) -> tuple[str, ...]:
    """Return the nodes of the project file."""
    return tuple(_install_dirs(request))


def install_dir(request: Request, node: str) -> Path:
    """Return the installation folder on a node: the project file's, by default the same as on this machine."""
    return _install_dirs(request).get(node) or presumed_home()


def declared_nodes(resources: Path | None) -> dict[str, Node]:
    """Return the nodes of a resources file, none if it cannot be read, which ``check_files`` reports."""
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
    """Compare what the resources file declares of this machine with its cores and GPUs.

    Without a file COMPSs uses its default one, which declares four units on every machine.
    """
    home, path = compss_home(), request.resources
    if home is not None and path is None:
        path = home / "Runtime/configuration/xml/resources/default_resources.xml"
    listed = run_program(["nvidia-smi", "-L"])
    gpus = len(re.findall(r"^GPU \d+", listed.output, re.MULTILINE)) if listed.code == 0 else 0
    local_nodes = [node for node in declared_nodes(path).values() if is_local(node.name)]
    for node in local_nodes:
        for finding in judge_node(node, os.cpu_count() or 1, physical_cores(), gpus):
            yield finding if request.resources is not None else _soften(finding, path)
    total = sum(node.cpus for node in local_nodes)
    if len(local_nodes) > 1 and total > physical_cores():
        found = f"{total} in all, {physical_cores()} physical cores"
        yield Finding("units of this machine", "warning", found, "workers slow each other: declare fewer")


def judge_node(node: Node, logical: int, physical: int, gpus: int) -> Iterator[Finding]:
    """Compare what is declared of a node with its logical cores, physical cores and GPUs."""
    yield _judge_units(node, logical, physical)
    if node.gpus or gpus:
        yield _judge_gpus(node, gpus)


def _soften(finding: Finding, path: Path | None) -> Finding:
    """Return a finding about COMPSs's default file, ``missing`` reduced to ``warning``: runs need not use it."""
    if finding.state != "missing":
        return finding
    advice = f"give runcompss files of your own ({finding.advice})"
    return Finding(finding.name, "warning", f"{finding.found} in COMPSs's own {path}", advice)


def _judge_units(node: Node, logical: int, physical: int) -> Finding:
    name, found = f"units of {node.name}", f"{node.cpus} declared, {physical} cores"
    advice = f"compss-train configure --units {physical}"
    if node.cpus > logical:
        binding = "COMPSs binds each unit to a core, and tasks beyond the cores die"
        return Finding(name, "missing", found, f"{binding}: {advice}, or runcompss --cpu_affinity=disabled")
    if node.cpus > physical:
        return Finding(name, "warning", found, f"two units on one core slow each other: {advice}")
    return Finding(name, "ok", found)


def _judge_gpus(node: Node, gpus: int) -> Finding:
    name, found = f"GPUs of {node.name}", f"{node.gpus} declared, {gpus} found"
    if node.gpus > gpus:
        return Finding(name, "missing", found, f"compss-train configure --gpus {gpus}")
    if node.gpus < gpus:
        unused = "tasks can only use declared GPUs: configure with --gpus"
        return Finding(name, "note", found, unused)
    return Finding(name, "ok", found)
