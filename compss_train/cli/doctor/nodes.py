"""The nodes: what COMPSs and the tasks find there."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from compss_train._utils.version import __version__
from compss_train.cli.doctor.compss_files import declared, install_dir, is_here, judge_node, project_nodes
from compss_train.cli.doctor.findings import Finding, Request
from compss_train.cli.doctor.machine import installed_version, judge_open_files
from compss_train.cli.doctor.tools import Answer, ask_python, look_for_ssh


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


PROBE_SECONDS = 90.0  # importing torch from a cluster's shared disk for the first time is slow

# The trainer imports whatever compss_train depends on; the bare package would say nothing of what is missing.
PROBE = """
import json, os, platform, resource, shutil, sys, tempfile
sys.path.append({package_root!r})
answer = {{"python": platform.python_version(), "cpus": os.cpu_count() or 1, "problems": {{}}}}
answer["open_files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
for name, module in (("torch", "torch"), ("compss_train", "compss_train.trainer")):
    try:
        answer[name] = str(__import__(module).__version__)
    except BaseException as error:
        answer[name] = None
        answer["problems"][name] = f"{{type(error).__name__}}: {{error}}"
answer["gpus"] = sys.modules["torch"].cuda.device_count() if answer["torch"] else 0
home = os.environ.get("JAVA_HOME")
answer["java"] = os.path.exists(home + "/bin/java") if home else shutil.which("java") is not None
answer["compss"] = os.path.exists({starter!r})
for folder in ("/tmp", os.path.expanduser("~")):
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        answer["problems"][folder] = str(error)
print(json.dumps(answer))
"""


def probe(request: Request, node: str) -> dict[str, Any] | Answer:
    """Return what the program saw on the node, or where there is no Python to run it, what came instead."""
    answer = ask_python(node, request.python, program(request, node), PROBE_SECONDS)
    try:
        seen: dict[str, Any] = json.loads(answer.out.splitlines()[-1])
    except (IndexError, ValueError):
        return answer
    return seen


def program(request: Request, node: str) -> str:
    """Return the program for a node."""
    starter = install_dir(request, node) / "Runtime/scripts/system/adaptors/nio/persistent_worker.sh"
    return PROBE.format(package_root=str(Path(__file__).parents[2]), starter=str(starter))
