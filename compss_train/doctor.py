"""What the compss engine needs, looked for on this machine and on the nodes, with a way to get what is missing.

A check is a function of the request that yields findings. None raises because something is missing, none waits
for ever, and none imports torch in this process, so that the answer comes quickly and even on a broken machine.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from compss_train.launch import DEFAULT_HOME, compss_home, physical_cores

State = Literal["ok", "note", "warning", "missing"]

SECONDS = 20.0  # for a tool of this machine: the JVM of runcompss may start on a slow disk
SSH_SECONDS = 10.0  # above ssh's own 5 for the connection
PROBE_SECONDS = 90.0  # importing torch from a cluster's shared disk for the first time is slow
OPEN_FILES = 1024
COMPSS_DOCS = "https://compss-doc.readthedocs.io"

# As COMPSs itself calls ssh, but for the list of known hosts, which a look should leave as it is.
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
    """What was looked for, how it stands, what was found, and where something is wrong, how to put it right.

    ``missing`` means that the compss engine cannot run; a ``warning`` that it may fail or be slow; a ``note``
    that something optional is not there.
    """

    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Request:
    """What to examine besides this machine: COMPSs's two files, nodes, and the Python that they are to run."""

    project: Path | None = None
    resources: Path | None = None
    nodes: tuple[str, ...] = ()
    python: str = "python3"


@dataclass(frozen=True)
class Answer:
    """What a command said; ``code`` is ``None`` where there was no such command or it took too long."""

    code: int | None
    out: str


@dataclass(frozen=True)
class Declared:
    """What a resources file says that a node has."""

    units: int
    gpus: int


Check = Callable[[Request], Iterable[Finding]]


def examine(request: Request) -> list[Finding]:
    """Make all checks."""
    return [finding for check in CHECKS for finding in check(request)]


def ready(findings: Iterable[Finding]) -> bool:
    """Return whether the compss engine could run: whether nothing is missing."""
    return all(finding.state != "missing" for finding in findings)


def as_text(findings: Sequence[Finding]) -> str:
    """Return a line for each finding, and one for all."""
    width = max(len(finding.name) for finding in findings)
    lines = [
        f"{finding.state:8} {finding.name:{width}}  {finding.found}" + (finding.advice and f"; {finding.advice}")
        for finding in findings
    ]
    missing = [finding.name for finding in findings if finding.state == "missing"]
    verdict = (
        f"The compss engine cannot run here yet: see {', '.join(missing)}. The local engine does not need COMPSs."
        if missing
        else "The compss engine can run here."
    )
    return "\n".join([*lines, verdict])


def as_json(findings: Sequence[Finding]) -> str:
    """Return the findings as JSON: ``{"ready": true, "findings": [...]}``."""
    return json.dumps({"ready": ready(findings), "findings": [asdict(finding) for finding in findings]}, indent=2)


def ask(command: Sequence[str], seconds: float, text: str | None = None) -> Answer:
    """Run a command on the text as its input; end it, with all that it started, when the time is over."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Answer(None, f"{command[0]}: {error.strerror}")
    with process:
        try:
            out, _ = process.communicate(text, timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Answer(None, f"no answer from {command[0]} in {seconds:g} s")
    return Answer(process.returncode, out.strip())


def check_python(request: Request) -> Iterator[Finding]:
    """Look at the version of Python."""
    yield Finding("Python", "ok", platform.python_version())


def check_packages(request: Request) -> Iterator[Finding]:
    """Look for torch and numpy among the installed packages."""
    for name in ("torch", "numpy"):
        version = _version(name)
        if version is None:
            yield Finding(name, "missing", "not installed", f"pip install {name}")
        else:
            yield Finding(name, "ok", version)


def check_pycompss(request: Request) -> Iterator[Finding]:
    """Look for pycompss where Python finds it, or where runcompss will: in COMPSs's own folder.

    Its compiled half fits one version of Python only, which is a common way to fail.
    """
    if (folder := _pycompss_folder()) is None:
        yield Finding(
            "pycompss",
            "missing",
            "not importable",
            f"it comes with COMPSs, only the compss engine needs it: {COMPSS_DOCS}",
        )
        return
    found = f"{_version('pycompss') or 'the binding'} in {folder}"
    extensions = [path.name for path in folder.glob("compss*.so")]
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    if extensions and not any(name.endswith((suffix, ".abi3.so")) for name in extensions):
        built = f"{found}, compiled as {extensions[0]}"
        yield Finding("pycompss", "missing", built, f"use that Python, or build COMPSs for {suffix}")
    else:
        yield Finding("pycompss", "ok", found)


def check_compss_home(request: Request) -> Iterator[Finding]:
    """Look for the folder that COMPSs is installed in."""
    home = compss_home()
    advice = f"export COMPSS_HOME={DEFAULT_HOME}, or wherever COMPSs is installed"
    if home is None:
        yield Finding("COMPSS_HOME", "missing", "not set", advice)
    elif not (home / "Runtime").is_dir():
        yield Finding("COMPSS_HOME", "missing", f"{home}, where there is no Runtime folder", advice)
    elif "COMPSS_HOME" in os.environ:
        yield Finding("COMPSS_HOME", "ok", str(home))
    else:
        yield Finding("COMPSS_HOME", "note", f"not set, but runcompss lies in {home}")


def check_java(request: Request) -> Iterator[Finding]:
    """Look for Java as COMPSs does: in ``JAVA_HOME``, with its library, or on the PATH."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") if not home else _java_in(Path(home))
    advice = "install a JDK (Debian: apt install default-jdk) and set JAVA_HOME to its folder"
    if not home:
        yield Finding("JAVA_HOME", "warning", "not set", "set it to a JDK, whose libjvm.so COMPSs loads")
    elif java is None or not _has_libjvm(Path(home)):
        yield Finding("JAVA_HOME", "missing", f"{home}, where there is no bin/java with a libjvm.so", advice)
    else:
        yield Finding("JAVA_HOME", "ok", home)
    answer = ask([java or "java", "-version"], SECONDS)
    if answer.code == 0:
        yield Finding("java", "ok", _first_line(answer.out))
    else:
        yield Finding("java", "missing", _first_line(answer.out), advice)


def check_runcompss(request: Request) -> Iterator[Finding]:
    """Look for runcompss on the PATH and ask for its version, which it tells only where its own set-up is sound."""
    path = shutil.which("runcompss")
    if path is None:
        scripts = (compss_home() or DEFAULT_HOME) / "Runtime/scripts/user"
        advice = f'export PATH="{scripts}:$PATH"' if scripts.is_dir() else f"install COMPSs: {COMPSS_DOCS}"
        yield Finding("runcompss", "missing", "not on the PATH", advice)
        return
    answer = ask([path, "--version"], SECONDS)
    version = re.search(r"version\s+(\d\S*)", answer.out)
    if answer.code == 0 and version:
        yield Finding("runcompss", "ok", f"{version[1]} at {path}")
    else:
        yield Finding("runcompss", "missing", f"{path}: {_first_line(answer.out)}", "runcompss --version must work")


def check_optional(request: Request) -> Iterator[Finding]:
    """Look for what only some runs need."""
    for tool, use in (
        ("enqueue_compss", "submits to SLURM and other queues"),
        ("dot", "of graphviz: draws task graphs"),
    ):
        path = shutil.which(tool)
        yield Finding(tool, "ok", path) if path else Finding(tool, "note", f"not on the PATH ({use})")


def check_limits(request: Request) -> Iterator[Finding]:
    """Look at the number of files that may be open."""
    yield _open_files("open files", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def check_folders(request: Request) -> Iterator[Finding]:
    """Look whether COMPSs can write its logs in ``~/.COMPSs`` and its files in ``/tmp``."""
    for name, folder in (("/tmp", Path("/tmp")), ("~/.COMPSs", Path.home() / ".COMPSs")):
        problem = _not_writable(folder)
        if problem is None:
            yield Finding(name, "ok", "writable")
        else:
            yield Finding(name, "missing", f"not writable: {problem}", "COMPSs must write there")


def check_files(request: Request) -> Iterator[Finding]:
    """Look whether the two XML files can be read and name the same nodes."""
    for name, path in (("project file", request.project), ("resources file", request.resources)):
        try:
            nodes = _node_names(path)
        except (OSError, ElementTree.ParseError) as error:
            yield Finding(name, "missing", f"{path}: {error}", "compss-train configure writes one")
        else:
            if path is not None:
                yield Finding(name, "ok", f"{path}: {', '.join(nodes) or 'no nodes'}")
    if request.project is not None and request.resources is not None:
        unknown = set(_project_nodes(request)) - set(_declared(request.resources))
        if unknown and _declared(request.resources):
            found = f"{', '.join(sorted(unknown))} of the project file not in the resources file"
            yield Finding("nodes", "missing", found, "give each node an entry in both files")


def check_resources(request: Request) -> Iterator[Finding]:
    """Hold what the resources file declares of this machine against what it has.

    Without a file COMPSs takes its own, which says four units whatever the machine is.
    """
    path = request.resources or _default_resources()
    own = {name: declared for name, declared in _declared(path).items() if _is_here(name)}
    for name, declared in own.items():
        for finding in _judge(name, declared, os.cpu_count() or 1, physical_cores(), _count_gpus()):
            if request.resources is None and finding.state == "missing":
                advice = f"give runcompss files of your own ({finding.advice})"
                yield Finding(finding.name, "warning", f"{finding.found} in COMPSs's own {path}", advice)
            else:
                yield finding
    total = sum(declared.units for declared in own.values())
    if len(own) > 1 and total > physical_cores():
        found = f"{total} in all, {physical_cores()} physical cores"
        yield Finding("units of this machine", "warning", found, "workers slow each other: declare fewer")


def check_nodes(request: Request) -> Iterator[Finding]:
    """Log into the nodes as COMPSs does to start its workers, and look at Python, torch and COMPSs there.

    Without nodes it is this machine, where ssh is needed too.
    """
    nodes = request.nodes or _project_nodes(request)
    if not nodes:
        yield from _look_for_ssh("localhost")
        return
    with ThreadPoolExecutor(min(32, len(nodes))) as pool:
        for findings in pool.map(partial(_examine_node, request), nodes):
            yield from findings


CHECKS: tuple[Check, ...] = (
    check_python,
    check_packages,
    check_pycompss,
    check_compss_home,
    check_java,
    check_runcompss,
    check_optional,
    check_limits,
    check_folders,
    check_files,
    check_resources,
    check_nodes,
)

# Runs in the Python of a node, which gets it through ssh's standard input: nothing to quote, nothing to copy.
PROBE = """
import json, os, platform, resource, shutil, sys, tempfile
sys.path.append({package_root!r})
answer = {{"python": platform.python_version(), "cpus": os.cpu_count() or 1, "problems": {{}}}}
answer["open_files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
for name in ("torch", "compss_train"):
    try:
        answer[name] = str(__import__(name).__version__)
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


def _examine_node(request: Request, node: str) -> list[Finding]:
    findings = list(_look_for_ssh(node))
    if not ready(findings):
        return findings
    # A word of its own on the remote command line, whatever is in it: ssh joins words with blanks.
    answer = ask([*SSH, node, "exec", _quoted(request.python), "-"], PROBE_SECONDS, _probe(request, node))
    try:
        seen: dict[str, Any] = json.loads(answer.out.splitlines()[-1])
    except (IndexError, ValueError):
        found = f"{request.python}: {_first_line(answer.out)}"
        advice = "install Python there under the same path, or name another with --python"
        return [*findings, Finding(f"Python on {node}", "missing", found, advice)]
    return [*findings, *_judge_node(request, node, seen)]


def _look_for_ssh(node: str) -> Iterator[Finding]:
    answer = ask([*SSH, node, "true"], SSH_SECONDS)
    if answer.code == 0:
        yield Finding(f"ssh to {node}", "ok", "without a password")
    else:
        advice = (
            f"COMPSs starts its workers by ssh: run an ssh server there, ssh-keygen here, then ssh-copy-id {node}"
        )
        yield Finding(f"ssh to {node}", "missing", _first_line(answer.out) or f"exit code {answer.code}", advice)


def _judge_node(request: Request, node: str, seen: dict[str, Any]) -> Iterator[Finding]:
    yield from _judge_versions(node, seen)
    if seen["compss"]:
        yield Finding(f"COMPSs on {node}", "ok", str(_install_dir(request, node)))
    else:
        found = f"not in {_install_dir(request, node)}"
        yield Finding(
            f"COMPSs on {node}", "missing", found, "install it there or correct InstallDir in project.xml"
        )
    if not seen["java"]:
        found = "neither JAVA_HOME nor the PATH of a plain ssh has it"
        yield Finding(f"java on {node}", "missing", found, "install a JDK, or export JAVA_HOME in ~/.bashrc")
    for folder in seen["problems"].keys() - {"torch", "compss_train"}:
        yield Finding(f"{folder} on {node}", "missing", f"not writable: {seen['problems'][folder]}", "make it so")
    if (limit := _open_files(f"open files on {node}", seen["open_files"])).state != "ok":
        yield limit
    declared = _declared(request.resources).get(node)
    if declared and not _is_here(node):
        yield from _judge(node, declared, seen["cpus"], seen["cpus"], seen["gpus"])


def _judge_versions(node: str, seen: dict[str, Any]) -> Iterator[Finding]:
    here = {"python": platform.python_version(), "torch": _version("torch"), "compss_train": _own_version()}
    for name, version in here.items():
        label = f"{name} on {node}"
        if seen[name] is None:
            advice = "install it there, or put it on a shared disk and name that with --pythonpath"
            yield Finding(label, "missing", f"not importable ({seen['problems'][name]})", advice)
        elif seen[name] == version or _minor(name, seen[name]) == _minor(name, version):
            yield Finding(label, "ok", seen[name])
        else:
            found = f"{seen[name]}, but {version} here"
            yield Finding(label, "missing", found, "tasks travel as pickles: use the same version everywhere")


def _judge(node: str, declared: Declared, logical: int, physical: int, gpus: int) -> Iterator[Finding]:
    name, found = f"units of {node}", f"{declared.units} declared, {physical} cores"
    advice = f"compss-train configure --units {physical}"
    if declared.units > logical:
        yield Finding(name, "missing", found, f"COMPSs runs no tasks beyond the cores: {advice}")
    elif declared.units > physical:
        yield Finding(name, "warning", found, f"two units on one core slow each other: {advice}")
    else:
        yield Finding(name, "ok", found)
    if declared.gpus > gpus:
        found = f"{declared.gpus} declared, {gpus} found"
        yield Finding(f"GPUs of {node}", "missing", found, f"compss-train configure --gpus {gpus}")
    elif declared.gpus or gpus:
        unused = "tasks cannot ask for those that are not declared: configure with --gpus"
        state: State = "ok" if declared.gpus == gpus else "note"
        found = f"{declared.gpus} declared, {gpus} found"
        yield Finding(f"GPUs of {node}", state, found, "" if state == "ok" else unused)


def _probe(request: Request, node: str) -> str:
    starter = _install_dir(request, node) / "Runtime/scripts/system/adaptors/nio/persistent_worker.sh"
    return PROBE.format(package_root=str(Path(__file__).parent.parent), starter=str(starter))


def _install_dir(request: Request, node: str) -> Path:
    for entry in _entries(request.project):
        if entry.get("Name") == node and (folder := entry.findtext("InstallDir")):
            return Path(folder)
    return compss_home() or DEFAULT_HOME


def _entries(path: Path | None) -> list[ElementTree.Element]:
    """Return the compute nodes of a file, none where it cannot be read: ``check_files`` has said so."""
    try:
        return _read_entries(path)
    except (OSError, ElementTree.ParseError):
        return []


def _read_entries(path: Path | None) -> list[ElementTree.Element]:
    return [] if path is None else ElementTree.parse(path).getroot().findall("ComputeNode")


def _node_names(path: Path | None) -> list[str]:
    return [entry.get("Name", "") for entry in _read_entries(path)]


def _project_nodes(request: Request) -> tuple[str, ...]:
    return tuple(entry.get("Name", "") for entry in _entries(request.project))


def _declared(path: Path | None) -> dict[str, Declared]:
    return {
        entry.get("Name", ""): Declared(units=_units(entry, "CPU"), gpus=_units(entry, "GPU"))
        for entry in _entries(path)
    }


def _units(entry: ElementTree.Element, kind: str) -> int:
    processors = [item for item in entry.findall("Processor") if (item.findtext("Type") or "CPU").upper() == kind]
    numbers = [item.findtext("ComputingUnits") or "" for item in processors]
    return sum(int(number) for number in numbers if number.strip().isdecimal())


def _default_resources() -> Path | None:
    home = compss_home()
    return home and home / "Runtime/configuration/xml/resources/default_resources.xml"


def _is_here(node: str) -> bool:
    return node in {"localhost", socket.gethostname(), socket.gethostname().split(".")[0]} or node.startswith(
        "127."
    )


def _count_gpus() -> int:
    answer = ask(["nvidia-smi", "-L"], SECONDS)
    return len(re.findall(r"^GPU \d+", answer.out, re.MULTILINE)) if answer.code == 0 else 0


def _open_files(name: str, limit: int) -> Finding:
    if limit in (-1, resource.RLIM_INFINITY):
        return Finding(name, "ok", "no limit")
    if limit < OPEN_FILES:
        return Finding(name, "warning", f"{limit} at most", f"ulimit -n {OPEN_FILES}: workers hold many files")
    return Finding(name, "ok", f"{limit} at most")


def _not_writable(folder: Path) -> str | None:
    """Return why nothing can be written into a folder, or into what it would be made in; else ``None``."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return str(error)
    return None


def _pycompss_folder() -> Path | None:
    """Return the folder that holds the package and its compiled half."""
    spec = util.find_spec("pycompss")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent.parent
    bundled = (compss_home() or DEFAULT_HOME) / "Bindings/python/3"
    return bundled if (bundled / "pycompss").is_dir() else None


def _java_in(home: Path) -> str | None:
    return next((str(path) for path in (home / "jre/bin/java", home / "bin/java") if path.is_file()), None)


def _has_libjvm(home: Path) -> bool:
    return any(next(home.glob(f"{folder}/**/libjvm.*"), None) for folder in ("jre/lib", "lib"))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _own_version() -> str:
    from compss_train import __version__

    return __version__


def _minor(name: str, version: str | None) -> str | None:
    """Return what must be equal: of Python the first two numbers, of packages all but the build (``+cpu``)."""
    if version is None:
        return None
    return ".".join(version.split(".")[:2]) if name == "python" else version.split("+")[0]


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no answer")
