"""Checks of the nodes: how COMPSs's two XML files declare them, and ssh, Python, Java and COMPSs on each."""

import json
import os
import platform
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from compss_train._utils.version import __version__
from compss_train.cli.doctor.findings import Finding, Request
from compss_train.cli.doctor.machine import Result, installed_version, judge_open_files, run_program
from compss_train.engines.compss import configuration
from compss_train.engines.nodes import Node, is_local, physical_cores

SSH_TIMEOUT = 10.0
"""Seconds for a login, above ssh's own 5 for the connection."""

# COMPSs's own ssh options, except that the list of known hosts stays unchanged.
SSH = [
    "ssh",
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=5"),
    *("-o", "StrictHostKeyChecking=no"),
    *("-o", "UserKnownHostsFile=/dev/null"),
    *("-o", "LogLevel=ERROR"),
]


def check_files(request: Request) -> Iterator[Finding]:
    """Check that the two XML files can be read and name the same nodes."""
    if request.project is not None:
        yield _judge_file("project file", request.project, configuration.read_project)
    if request.resources is not None:
        yield _judge_file("resources file", request.resources, configuration.read_resources)
    known = declared_nodes(request.resources)
    if known and (unknown := set(project_nodes(request)) - set(known)):
        found = f"{', '.join(sorted(unknown))} of the project file not in the resources file"
        yield Finding("nodes", "missing", found, "give each node an entry in both files")


def project_nodes(request: Request) -> dict[str, Path | None]:
    """Return the nodes of the project file, none if it cannot be read, and their installation folders."""
    try:
        return {} if request.project is None else configuration.read_project(request.project)
    except configuration.UNREADABLE:
        return {}


def install_dir(request: Request, node: str) -> Path:
    """Return the installation folder on a node: the project file's, by default the same as on this machine."""
    return project_nodes(request).get(node) or configuration.presumed_home()


def declared_nodes(resources: Path | None) -> dict[str, Node]:
    """Return the nodes of a resources file, none if it cannot be read, which ``check_files`` reports."""
    try:
        return {} if resources is None else configuration.read_resources(resources)
    except configuration.UNREADABLE:
        return {}


def _judge_file(name: str, path: Path, read: Callable[[Path], Iterable[str]]) -> Finding:
    try:
        nodes = read(path)
    except configuration.UNREADABLE as error:
        return Finding(name, "missing", f"{path}: {error}", "compss-train configure writes one")
    return Finding(name, "ok", f"{path}: {', '.join(nodes) or 'no nodes'}")


def check_resources(request: Request) -> Iterator[Finding]:
    """Compare what the resources file declares of this machine with its cores and GPUs.

    Without a file COMPSs uses its default one, which declares four units on every machine.
    """
    home, path = configuration.compss_home(), request.resources
    if home is not None and path is None:
        path = home / "Runtime/configuration/xml/resources/default_resources.xml"
    listed = run_program(["nvidia-smi", "-L"])
    gpus = len(re.findall(r"^GPU \d+", listed.output, re.MULTILINE)) if listed.code == 0 else 0
    local_nodes = [node for node in declared_nodes(path).values() if is_local(node.name)]
    for node in local_nodes:
        for finding in judge_node(node, os.cpu_count() or 1, physical_cores(), gpus):
            if request.resources is None and finding.state == "missing":  # but runs can use another file
                found, advice = f"{finding.found} in COMPSs's own {path}", finding.advice
                finding = Finding(finding.name, "warning", found, f"give runcompss files of your own ({advice})")
            yield finding
    total = sum(node.cpus for node in local_nodes)
    if len(local_nodes) > 1 and total > physical_cores():
        found = f"{total} in all, {physical_cores()} physical cores"
        yield Finding("units of this machine", "warning", found, "workers slow each other: declare fewer")


def judge_node(node: Node, logical: int, physical: int, gpus: int) -> Iterator[Finding]:
    """Compare what is declared of a node with its logical cores, physical cores and GPUs."""
    name, found = f"units of {node.name}", f"{node.cpus} declared, {physical} cores"
    advice = f"compss-train configure --units {physical}"
    if node.cpus > logical:
        binding = "COMPSs binds each unit to a core, and tasks beyond the cores die"
        yield Finding(name, "missing", found, f"{binding}: {advice}, or runcompss --cpu_affinity=disabled")
    elif node.cpus > physical:
        yield Finding(name, "warning", found, f"two units on one core slow each other: {advice}")
    else:
        yield Finding(name, "ok", found)
    name, found = f"GPUs of {node.name}", f"{node.gpus} declared, {gpus} found"
    if node.gpus > gpus:
        yield Finding(name, "missing", found, f"compss-train configure --gpus {gpus}")
    elif node.gpus < gpus:
        yield Finding(name, "note", found, "tasks can only use declared GPUs: configure with --gpus")
    elif gpus:
        yield Finding(name, "ok", found)


def check_nodes(request: Request) -> Iterator[Finding]:
    """Log into the nodes as COMPSs does to start its workers, and check Python, torch and COMPSs there.

    Without nodes, check ssh to this machine, which COMPSs needs too.
    """
    nodes = request.nodes or tuple(project_nodes(request))
    if not nodes:
        yield check_ssh("localhost")
        return
    with ThreadPoolExecutor(min(32, len(nodes))) as pool:
        for findings in pool.map(partial(_examine, request), nodes):
            yield from findings


def _examine(request: Request, node: str) -> list[Finding]:
    login = check_ssh(node)
    if login.state == "missing":
        return [login]
    answer = probe(request, node)
    if isinstance(answer, Result):
        found = f"{request.python}: {answer.first_line}"
        advice = "install Python there under the same path, or name another with --python"
        return [login, Finding(f"Python on {node}", "missing", found, advice)]
    return [login, *_judge(request, node, answer)]


def _judge(request: Request, node: str, answer: dict[str, Any]) -> Iterator[Finding]:
    yield from _judge_versions(node, answer)
    yield from _judge_installation(request, node, answer)
    for folder in answer["problems"].keys() - {"torch", "compss_train"}:
        yield Finding(
            f"{folder} on {node}", "missing", f"not writable: {answer['problems'][folder]}", "allow writing"
        )
    if (limit := judge_open_files(f"open files on {node}", answer["open_files"])).state != "ok":
        yield limit
    entry = declared_nodes(request.resources).get(node)
    if entry and not is_local(node):
        yield from judge_node(entry, answer["cpus"], answer["cpus"], answer["gpus"])


def _judge_versions(node: str, answer: dict[str, Any]) -> Iterator[Finding]:
    here = {"python": platform.python_version(), "torch": installed_version("torch"), "compss_train": __version__}
    for name, version in here.items():
        label = f"{name} on {node}"
        if answer[name] is None:
            advice = "install it there, or put it on a shared disk and name that with --pythonpath"
            yield Finding(label, "missing", f"not importable ({answer['problems'][name]})", advice)
        elif answer[name] == version or _significant(name, answer[name]) == _significant(name, version):
            yield Finding(label, "ok", answer[name])
        else:
            found = f"{answer[name]}, but {version} here"
            yield Finding(label, "missing", found, "tasks are sent as pickles: use the same version on all nodes")


def _significant(name: str, version: str | None) -> str | None:
    """Return the part that must agree: Python's first two numbers, a package's version without ``+cpu``."""
    if version is None:
        return None
    return ".".join(version.split(".")[:2]) if name == "python" else version.split("+")[0]


def _judge_installation(request: Request, node: str, answer: dict[str, Any]) -> Iterator[Finding]:
    name, folder = f"COMPSs on {node}", install_dir(request, node)
    if answer["compss"]:
        yield Finding(name, "ok", str(folder))
    else:
        advice = "install it there or correct InstallDir in project.xml"
        yield Finding(name, "missing", f"not in {folder}", advice)
    if not answer["java"]:
        found = "neither in JAVA_HOME nor on the PATH of a non-interactive ssh"
        yield Finding(f"java on {node}", "missing", found, "install a JDK, or export JAVA_HOME in ~/.bashrc")


def check_ssh(node: str) -> Finding:
    """Check that a login on the node works without a password."""
    result = run_program([*SSH, node, "true"], SSH_TIMEOUT)
    if result.code == 0:
        return Finding(f"ssh to {node}", "ok", "without a password")
    advice = f"COMPSs starts its workers by ssh: run an ssh server there, ssh-keygen here, then ssh-copy-id {node}"
    return Finding(f"ssh to {node}", "missing", result.first_line, advice)


PROBE_TIMEOUT = 90.0  # seconds: the first import of torch from a shared disk of a cluster is slow

# The trainer imports all dependencies of compss_train; the bare package imports none.
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


def probe(request: Request, node: str) -> dict[str, Any] | Result:
    """Return the answer of the program from the node, or the result of a Python that could not run it."""
    # ssh joins words with blanks, so the interpreter's path is quoted as a single word of the remote command line.
    command = [*SSH, node, "exec", shlex.quote(request.python), "-"]
    result = run_program(command, PROBE_TIMEOUT, stdin=probe_program(request, node))
    try:
        answer: dict[str, Any] = json.loads(result.output.splitlines()[-1])
    except (IndexError, ValueError):
        return result
    return answer


def probe_program(request: Request, node: str) -> str:
    """Return the Python program that examines a node and prints JSON."""
    starter = install_dir(request, node) / "Runtime/scripts/system/adaptors/nio/persistent_worker.sh"
    return PROBE.format(package_root=str(Path(__file__).parents[3]), starter=str(starter))
