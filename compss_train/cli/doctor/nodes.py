"""Checks of the nodes: ssh, Python, packages, Java and COMPSs on each of them."""

import json
import platform
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from compss_train._utils.version import __version__
from compss_train.cli.doctor.compss_files import declared_nodes, install_dir, judge_node, project_nodes
from compss_train.cli.doctor.findings import Finding, Request
from compss_train.cli.doctor.machine import Result, installed_version, judge_open_files, run_program
from compss_train.engines.nodes import is_local

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


def check_nodes(request: Request) -> Iterator[Finding]:
    """Log into the nodes as COMPSs does to start its workers, and check Python, torch and COMPSs there.

    Without nodes, check ssh to this machine, which COMPSs needs too.
    """
    nodes = request.nodes or project_nodes(request)
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
