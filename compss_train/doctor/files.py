"""COMPSs's two files: whether they can be read and agree, and what they say to the other checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from compss_train.configuration import UNREADABLE, DeclaredNode, presumed_home, read_project, read_resources
from compss_train.doctor.finding import Finding, Request


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
