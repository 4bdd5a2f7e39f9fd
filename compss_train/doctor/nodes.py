"""The nodes: what COMPSs and the tasks find there."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from compss_train import __version__
from compss_train.doctor.files import declared, install_dir, project_nodes
from compss_train.doctor.finding import Finding, Request
from compss_train.doctor.machine import installed_version, judge_open_files
from compss_train.doctor.probe import probe
from compss_train.doctor.resources import is_here, judge_node
from compss_train.doctor.ssh import look_for_ssh
from compss_train.doctor.tools import Answer


def check_nodes(request: Request) -> Iterator[Finding]:
    """Log into the nodes as COMPSs does to start its workers, and look at Python, torch and COMPSs there.

    Without nodes it is this machine, where ssh is needed too.
    """
    nodes = request.nodes or project_nodes(request)
    if not nodes:
        yield look_for_ssh("localhost")
        return
    with ThreadPoolExecutor(min(32, len(nodes))) as pool:
        for findings in pool.map(partial(_examine, request), nodes):
            yield from findings


def _examine(request: Request, node: str) -> list[Finding]:
    login = look_for_ssh(node)
    if login.state == "missing":
        return [login]
    seen = probe(request, node)
    if isinstance(seen, Answer):
        found = f"{request.python}: {seen.first_line}"
        advice = "install Python there under the same path, or name another with --python"
        return [login, Finding(f"Python on {node}", "missing", found, advice)]
    return [login, *_judge(request, node, seen)]


def _judge(request: Request, node: str, seen: dict[str, Any]) -> Iterator[Finding]:
    yield from _judge_versions(node, seen)
    yield from _judge_installation(request, node, seen)
    for folder in seen["problems"].keys() - {"torch", "compss_train"}:
        yield Finding(f"{folder} on {node}", "missing", f"not writable: {seen['problems'][folder]}", "make it so")
    if (limit := judge_open_files(f"open files on {node}", seen["open_files"])).state != "ok":
        yield limit
    entry = declared(request.resources).get(node)
    if entry and not is_here(node):
        yield from judge_node(entry, seen["cpus"], seen["cpus"], seen["gpus"])


def _judge_versions(node: str, seen: dict[str, Any]) -> Iterator[Finding]:
    here = {"python": platform.python_version(), "torch": installed_version("torch"), "compss_train": __version__}
    for name, version in here.items():
        label = f"{name} on {node}"
        if seen[name] is None:
            advice = "install it there, or put it on a shared disk and name that with --pythonpath"
            yield Finding(label, "missing", f"not importable ({seen['problems'][name]})", advice)
        elif seen[name] == version or _significant(name, seen[name]) == _significant(name, version):
            yield Finding(label, "ok", seen[name])
        else:
            found = f"{seen[name]}, but {version} here"
            yield Finding(label, "missing", found, "tasks travel as pickles: use the same version everywhere")


def _significant(name: str, version: str | None) -> str | None:
    """Return what must be equal: of Python the first two numbers, of packages all but the build (``+cpu``)."""
    if version is None:
        return None
    return ".".join(version.split(".")[:2]) if name == "python" else version.split("+")[0]


def _judge_installation(request: Request, node: str, seen: dict[str, Any]) -> Iterator[Finding]:
    name, folder = f"COMPSs on {node}", install_dir(request, node)
    if seen["compss"]:
        yield Finding(name, "ok", str(folder))
    else:
        advice = "install it there or correct InstallDir in project.xml"
        yield Finding(name, "missing", f"not in {folder}", advice)
    if not seen["java"]:
        found = "neither JAVA_HOME nor the PATH of a plain ssh has it"
        yield Finding(f"java on {node}", "missing", found, "install a JDK, or export JAVA_HOME in ~/.bashrc")
