"""What a check takes and finds, and the checks of nodes: in COMPSs's two XML files, and by ssh on each of them."""

import json
import os
import platform
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeVar

from compss_train._utils import __version__
from compss_train.engines.compss import configuration
from compss_train.engines.nodes import Node, is_local, physical_cores

T = TypeVar("T")

TIMEOUT = 20.0
"""Seconds for a program of this machine: the JVM of runcompss may start from a slow disk."""
SSH_TIMEOUT = 10.0
"""Seconds for a login, above ssh's own 5 for the connection."""
PROBE_TIMEOUT = 90.0
"""Seconds for the program on a node: the first import of torch from a shared disk of a cluster is slow."""

# COMPSs's own ssh options, except that the list of known hosts stays unchanged.
SSH = [
    "ssh",
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=5"),
    *("-o", "StrictHostKeyChecking=no"),
    *("-o", "UserKnownHostsFile=/dev/null"),
    *("-o", "LogLevel=ERROR"),
]


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name, state, what was found, and how to fix it if something is wrong.

    ``missing``: the compss engine cannot run. ``warning``: it may fail or be slow.
    """

    name: str
    state: Literal["ok", "warning", "missing"]
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Request:
    """What to check besides this machine: COMPSs's two XML files, nodes, and the Python of the nodes."""

    project: Path | None = None
    resources: Path | None = None
    nodes: tuple[str, ...] = ()
    python: str = "python3"

    @cached_property
    def installations(self) -> dict[str, Path | None]:
        """The installation folders on the nodes of the project file, empty if it cannot be read."""
        return _read_or(configuration.read_project, self.project, {})

    @cached_property
    def declared(self) -> dict[str, Node]:
        """The nodes of the resources file, empty if it cannot be read."""
        return _read_or(configuration.read_resources, self.resources, {})

    def install_dir(self, node: str) -> Path:
        """Return the installation folder on a node, by default the same as on this machine."""
        return self.installations.get(node) or configuration.presumed_home()


def _read_or(read: Callable[[Path], T], path: Path | None, default: T) -> T:
    try:
        return default if path is None else read(path)
    except configuration.UNREADABLE:  # which ``check_files`` reports
        return default


@dataclass(frozen=True)
class Result:
    """Exit code and output of a program; ``code`` is ``None`` if it could not be started or timed out."""

    code: int | None
    output: str

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line.strip() for line in self.output.splitlines() if line.strip()), "no answer")


def run_program(command: Sequence[str], timeout: float | None = None, stdin: str = "") -> Result:
    """Run a program and return its result; kill it and all its children after ``timeout`` seconds."""
    seconds = TIMEOUT if timeout is None else timeout
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Result(None, f"{command[0]}: {error.strerror}")
    with process:
        try:
            output, _ = process.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Result(None, f"no answer from {command[0]} in {seconds:g} s")
    return Result(process.returncode, output.strip())


def installed_version(package: str) -> str | None:
    """Return the version of an installed package without importing it, or ``None`` if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_files(request: Request) -> Iterator[Finding]:
    """Check that the two XML files can be read and name the same nodes."""
    for name, path, read in (
        ("project file", request.project, configuration.read_project),
        ("resources file", request.resources, configuration.read_resources),
    ):
        try:
            if path is not None:
                yield Finding(name, "ok", f"{path}: {', '.join(read(path)) or 'no nodes'}")
        except configuration.UNREADABLE as error:
            yield Finding(name, "missing", f"{path}: {error}", "compss-train configure writes one")
    if request.declared and (unknown := set(request.installations) - set(request.declared)):
        found = f"{', '.join(sorted(unknown))} of the project file not in the resources file"
        yield Finding("nodes", "missing", found, "give each node an entry in both files")


def check_resources(request: Request) -> Iterator[Finding]:
    """Compare what the resources file declares of this machine with its cores and GPUs.

    Without a file COMPSs uses its default one, which declares four units on every machine.
    """
    home, given = configuration.compss_home(), request
    if home is not None and request.resources is None:
        given = Request(resources=home / "Runtime/configuration/xml/resources/default_resources.xml")
    listed = run_program(["nvidia-smi", "-L"])
    gpus = len(re.findall(r"^GPU \d+", listed.output, re.MULTILINE)) if listed.code == 0 else 0
    here = [node for node in given.declared.values() if is_local(node.name)]
    for node in here:
        for finding in judge_node(node, os.cpu_count() or 1, physical_cores(), gpus):
            if request.resources is None and finding.state == "missing":  # but runs can use another file
                advice = f"give runcompss files of your own ({finding.advice})"
                found = f"{finding.found} in COMPSs's own {given.resources}"
                finding = replace(finding, state="warning", found=found, advice=advice)
            yield finding
    total = sum(node.cpus for node in here)
    if len(here) > 1 and total > physical_cores():
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
        yield Finding(name, "warning", found, "tasks can only use declared GPUs: configure with --gpus")
    elif gpus:
        yield Finding(name, "ok", found)


def check_nodes(request: Request) -> Iterator[Finding]:
    """Log into the nodes as COMPSs does to start its workers, and check Python, torch and COMPSs there.

    Without nodes, check ssh to this machine, which COMPSs needs too.
    """
    names = request.nodes or tuple(request.installations)
    if not names:
        yield _check_ssh("localhost")
        return
    with ThreadPoolExecutor(min(32, len(names))) as pool:
        for findings in pool.map(partial(_check_node, request), names):
            yield from findings


def _check_ssh(node: str) -> Finding:
    """Check that a login on the node works without a password."""
    result = run_program([*SSH, node, "true"], SSH_TIMEOUT)
    if result.code == 0:
        return Finding(f"ssh to {node}", "ok", "without a password")
    advice = f"COMPSs starts its workers by ssh: run an ssh server there, ssh-keygen here, then ssh-copy-id {node}"
    return Finding(f"ssh to {node}", "missing", result.first_line, advice)


def _check_node(request: Request, node: str) -> list[Finding]:
    login = _check_ssh(node)
    if login.state == "missing":
        return [login]
    # ssh joins words with blanks, so the interpreter's path is quoted as a single word of the remote command line.
    command = [*SSH, node, "exec", shlex.quote(request.python), "-"]
    result = run_program(command, PROBE_TIMEOUT, stdin=probe_program(request, node))
    try:
        answer = json.loads(result.output.splitlines()[-1])
    except (IndexError, ValueError):
        found = f"{request.python}: {result.first_line}"
        advice = "install Python there under the same path, or name another with --python"
        return [login, Finding(f"Python on {node}", "missing", found, advice)]
    return [login, *_judge_answer(request, node, answer)]


def _judge_answer(request: Request, node: str, answer: dict[str, Any]) -> Iterator[Finding]:
    here = {"python": platform.python_version(), "torch": installed_version("torch"), "compss_train": __version__}
    for name, version in here.items():
        label = f"{name} on {node}"
        if answer[name] is None:
            advice = "install it there, or put it on a shared disk and name that with --pythonpath"
            yield Finding(label, "missing", f"not importable ({answer['problems'][name]})", advice)
        elif _significant(name, answer[name]) == _significant(name, version or ""):
            yield Finding(label, "ok", answer[name])
        else:
            found = f"{answer[name]}, but {version} here"
            yield Finding(label, "missing", found, "tasks are sent as pickles: use the same version on all nodes")
    name, folder = f"COMPSs on {node}", request.install_dir(node)
    if answer["compss"]:
        yield Finding(name, "ok", str(folder))
    else:
        yield Finding(name, "missing", f"not in {folder}", "install it there or correct InstallDir in project.xml")
    if not answer["java"]:
        found = "neither in JAVA_HOME nor on the PATH of a non-interactive ssh"
        yield Finding(f"java on {node}", "missing", found, "install a JDK, or export JAVA_HOME in ~/.bashrc")
    entry = request.declared.get(node)
    if entry and not is_local(node):
        yield from judge_node(entry, answer["cpus"], answer["cpus"], answer["gpus"])


def _significant(name: str, version: str) -> str:
    """Return the part that must agree: Python's first two numbers, a package's version without ``+cpu``."""
    return ".".join(version.split(".")[:2]) if name == "python" else version.split("+")[0]


# The trainer imports all dependencies of compss_train; the bare package imports none.
PROBE = """
import json, os, platform, shutil, sys
sys.path.append({package_root!r})
answer = {{"python": platform.python_version(), "cpus": os.cpu_count() or 1, "problems": {{}}}}
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
print(json.dumps(answer))
"""


def probe_program(request: Request, node: str) -> str:
    """Return the Python program that examines a node and prints JSON."""
    starter = request.install_dir(node) / "Runtime/scripts/system/adaptors/nio/persistent_worker.sh"
    return PROBE.format(package_root=str(Path(__file__).parents[3]), starter=str(starter))
