"""``compss-train doctor`` and ``configure``: check this machine or a cluster, and configure COMPSs.

A check yields findings, with advice for what is missing. It never raises because something is
missing, never blocks beyond a timeout, and never imports torch in this process: it is fast and
works on a broken installation.
"""

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any, TypeVar

from compss_train._utils import __version__
from compss_train.cli import local_checks
from compss_train.cli.arguments import DEFAULT_PYTHON
from compss_train.cli.findings import Finding, installed_version, run_program, verdict
from compss_train.cli.ray_checks import check_ray
from compss_train.engines.compss import configuration
from compss_train.engines.compss.configuration import Installation
from compss_train.engines.nodes import Node, is_local, physical_cores

T = TypeVar("T")

COMPSS_DOCS = "https://compss-doc.readthedocs.io"
JAVA_ADVICE = "install a JDK (Debian: apt install default-jdk) and set JAVA_HOME to its folder"

DEFAULT_RESOURCES = Path("Runtime/configuration/xml/resources/default_resources.xml")
"""In COMPSs's folder: the resources file of ``runcompss`` without ``--resources``."""

SSH_TIMEOUT = 10.0
"""Seconds for a login, above ssh's own 5 for the connection."""
PROBE_TIMEOUT = 90.0
"""Seconds for the program on a node: a first import of torch from a shared disk is slow."""

SSH = [
    "ssh",
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=5"),
    *("-o", "StrictHostKeyChecking=no"),
    *("-o", "UserKnownHostsFile=/dev/null"),
    *("-o", "LogLevel=ERROR"),
]
"""COMPSs's own ssh options, except that the list of known hosts stays unchanged."""


def doctor(options: argparse.Namespace) -> int:
    """Print what is there and what is missing; return 1 if what was asked for is missing.

    That is local training by default, and COMPSs if its nodes or files are named.
    """
    asks_for_compss = options.nodes or options.project or options.resources
    engine = options.engine or ("compss" if asks_for_compss else "local")
    if engine == "local":
        machine, findings = local_checks.check_machine()
        extras = local_checks.examine_extras()
        clusters = local_checks.installed_clusters()
        more = local_checks.as_json(machine, extras, clusters)
        text = local_checks.as_text(machine, findings, extras, clusters)
    else:
        findings = examine(options, engine)
        more = {}
        text = as_text(findings, engine)
    ready = all(finding.state != "missing" for finding in findings)
    if options.json:
        rows = [vars(finding) for finding in findings]
        text = json.dumps({"engine": engine, "ready": ready, "findings": rows, **more}, indent=2)
    print(text)
    return 0 if ready else 1


def configure(options: argparse.Namespace) -> int:
    """Write the two files and print the workers in them."""
    if options.hosts is not None:
        first_port = options.first_port or configuration.FIRST_PORT
        workers = configuration.host_nodes(options.hosts, options.units, options.gpus, first_port)
    else:
        # One more range of ports, after those of the workers, for the coordinator.
        ranges = min(max(1, options.nodes), 254) + 1
        first_port = options.first_port or configuration.free_first_port(ranges)
        workers = configuration.loopback_nodes(
            options.nodes, options.units, options.gpus, first_port
        )
    project, resources = configuration.write(
        options.folder,
        workers,
        python=options.python,
        install_dir=options.install_dir,
        working_dir=options.working_dir,
    )
    for node in workers:
        ports = f"ports {node.first_port} to {node.last_port}"
        print(f"{node.name}: {node.cpus} CPU units, {node.gpus} GPUs, {ports}")
    folder = options.folder.absolute()
    print(f"project.xml, resources.xml and {configuration.ENVIRONMENT_SCRIPT} are in {folder}")
    print(
        f"start programs with: runcompss --lang=python --python_interpreter={options.python} "
        f"--project={project} --resources={resources} train.py"
    )
    return 0


def examine(options: argparse.Namespace, engine: str) -> list[Finding]:
    """Run all checks of the ray or compss engine and return their findings."""
    packages = local_checks.check_packages
    if engine == "ray":
        return [*packages(), *check_ray()]
    checks = (packages, check_pycompss, check_compss_home, check_java, check_runcompss)
    findings = [finding for check in checks for finding in check()]
    installed = _read("project file", options.project, configuration.read_project, findings)
    declared = _read("resources file", options.resources, configuration.read_resources, findings)
    unknown = set(installed) - set(declared)
    if declared and unknown:
        observation = f"{', '.join(sorted(unknown))} of the project file not in the resources file"
        findings.append(
            Finding("nodes", "missing", observation, "give each node an entry in both files")
        )
    findings += check_resources(declared)
    if options.resources is None:
        findings += check_default_resources()
    names = options.nodes or tuple(installed)
    if not names:  # COMPSs needs ssh to this machine too
        return [*findings, _check_ssh("localhost")]

    def check(node: str) -> list[Finding]:
        installation = installed.get(node, Installation())
        return list(check_node(node, options.python, installation, declared.get(node)))

    with ThreadPoolExecutor(min(32, len(names))) as pool:
        for findings_of_node in pool.map(check, names):
            findings += findings_of_node
    return findings


def as_text(findings: Sequence[Finding], engine: str) -> str:
    """Return one line per finding, and a last line with the verdict."""
    lines = local_checks.findings_as_lines(findings)
    missing = ", ".join(finding.name for finding in findings if finding.state == "missing")
    if missing:
        hint = f"see {missing}. The local engine needs none of this."
        lines.append(f"The {engine} engine cannot run here yet: {hint}")
    else:
        lines.append(f"The {engine} engine can run here.")
    return "\n".join(lines)


def check_pycompss() -> Iterator[Finding]:
    """Look for pycompss where Python finds it, or where runcompss will: in COMPSs's own folder.

    Its compiled extension fits a single version of Python: a common cause of failures.
    """
    spec = util.find_spec("pycompss")
    folder = configuration.presumed_home() / "Bindings/python/3"
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent.parent
    observation = f"{installed_version('pycompss') or 'the binding'} in {folder}"
    extensions = [path.name for path in folder.glob("compss*.so")]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if not (folder / "pycompss").is_dir():
        advice = f"it comes with COMPSs, only the compss engine needs it: {COMPSS_DOCS}"
        yield Finding("pycompss", "missing", "not importable", advice)
    elif extensions and not any(name.endswith((suffix, ".abi3.so")) for name in extensions):
        advice = f"use that Python, or build COMPSs for {suffix}"
        yield Finding("pycompss", "missing", f"{observation}, compiled as {extensions[0]}", advice)
    else:
        yield Finding("pycompss", "ok", observation)


def check_compss_home() -> Iterator[Finding]:
    """Look for the folder that COMPSs is installed in."""
    home = configuration.compss_home()
    advice = (
        f"export COMPSS_HOME={configuration.DEFAULT_HOME}, or the folder where COMPSs is installed"
    )
    if home is None:
        yield Finding("COMPSS_HOME", "missing", "not set", advice)
    elif not (home / "Runtime").is_dir():
        yield Finding("COMPSS_HOME", "missing", f"{home}, which has no Runtime folder", advice)
    else:
        observation = str(home) if "COMPSS_HOME" in os.environ else f"not set, but {home}"
        yield Finding("COMPSS_HOME", "ok", observation)


def check_java() -> Iterator[Finding]:
    """Run Java as COMPSs does: that of ``JAVA_HOME``, or the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if not home:
        advice = "set it to a JDK, whose libjvm.so COMPSs loads"
        yield Finding("JAVA_HOME", "warning", "not set", advice)
    result = run_program([f"{home}/bin/java" if home else "java", "-version"])
    yield verdict("java", result.first_line, JAVA_ADVICE, ready=result.code == 0)


def check_runcompss() -> Iterator[Finding]:
    """Look for runcompss on the PATH and ask for its version.

    It prints the version only if its own setup works.
    """
    path = shutil.which("runcompss")
    if path is None:
        scripts = configuration.presumed_home() / "Runtime/scripts/user"
        advice = f"install COMPSs: {COMPSS_DOCS}"
        if scripts.is_dir():
            advice = f'export PATH="{scripts}:$PATH"'
        yield Finding("runcompss", "missing", "not on the PATH", advice)
        return
    result = run_program([path, "--version"])
    version = re.search(r"version\s+(\d\S*)", result.output) if result.code == 0 else None
    observation = f"{version[1]} at {path}" if version else f"{path}: {result.first_line}"
    advice = "runcompss --version must work"
    yield verdict("runcompss", observation, advice, ready=version is not None)


def _read(
    name: str, path: Path | None, read: Callable[[Path], Mapping[str, T]], findings: list[Finding]
) -> Mapping[str, T]:
    """Return the nodes of one of COMPSs's two XML files, and add the finding about it.

    Without a path there are none.
    """
    nodes: Mapping[str, T] = {}
    try:
        if path is not None:
            nodes = read(path)
            findings.append(Finding(name, "ok", f"{path}: {', '.join(nodes) or 'no nodes'}"))
    except configuration.UNREADABLE as error:
        advice = "compss-train configure writes one"
        findings.append(Finding(name, "missing", f"{path}: {error}", advice))
    return nodes


def check_resources(declared: Mapping[str, Node]) -> Iterator[Finding]:
    """Compare what a resources file declares of this machine with its cores and GPUs."""
    gpus = local_checks.nvidia_gpus()
    for node in declared.values():
        if is_local(node.name):
            yield judge_units(node, os.cpu_count() or 1, physical_cores())
            yield from judge_gpus(node, gpus)


def check_default_resources() -> Iterator[Finding]:
    """Compare the units that runcompss declares without ``--resources`` with this machine's."""
    path = configuration.presumed_home() / DEFAULT_RESOURCES
    try:
        declared = configuration.read_resources(path)
    except configuration.UNREADABLE:
        return
    for node in declared.values():
        finding = judge_units(node, os.cpu_count() or 1, physical_cores())
        if is_local(node.name) and finding.state == "missing":
            observation = f"{finding.found} in {path}, which runcompss reads without --resources"
            yield replace(finding, state="warning", found=observation)


def judge_units(node: Node, logical: int, physical: int) -> Finding:
    """Compare the units that are declared of a node with its logical and physical cores."""
    name = f"units of {node.name}"
    observation = f"{node.cpus} declared, {physical} cores"
    advice = f"compss-train configure --units {physical}"
    if node.cpus > logical:
        binding = "COMPSs binds each unit to a core, and tasks beyond the cores die"
        advice = f"{binding}: {advice}, or runcompss --cpu_affinity=disabled"
        return Finding(name, "missing", observation, advice)
    if node.cpus > physical:
        return Finding(
            name, "warning", observation, f"two units on one core slow each other: {advice}"
        )
    return Finding(name, "ok", observation)


def judge_gpus(node: Node, gpus: int) -> Iterator[Finding]:
    """Compare the GPUs that are declared of a node with those that it has."""
    name = f"GPUs of {node.name}"
    observation = f"{node.gpus} declared, {gpus} found"
    if node.gpus > gpus:
        yield Finding(name, "missing", observation, f"compss-train configure --gpus {gpus}")
    elif gpus:
        yield Finding(name, "ok", observation)


def _check_ssh(node: str) -> Finding:
    """Check that a login on the node works without a password."""
    result = run_program([*SSH, node, "true"], SSH_TIMEOUT)
    advice = (
        "COMPSs starts its workers by ssh: run an ssh server there, ssh-keygen here, then "
        f"ssh-copy-id {node}"
    )
    ready = result.code == 0
    observation = "without a password" if ready else result.first_line
    return verdict(f"ssh to {node}", observation, advice, ready=ready)


def check_node(
    node: str, python: str, installation: Installation, declared: Node | None
) -> Iterator[Finding]:
    """Log into a node as COMPSs does to start its worker, and check Python, torch and COMPSs there.

    ``python`` is the interpreter that runcompss is given; ``declared`` is the node in the resources
    file.
    """
    login = _check_ssh(node)
    yield login
    if login.state == "missing":
        return
    folder = installation.folder or configuration.presumed_home()
    # ssh joins words with blanks, so the script is quoted as a single word of the remote command
    # line.
    script = start_script(python, installation.environment)
    command = [*SSH, node, "exec", "/bin/bash", "-c", shlex.quote(script)]
    result = run_program(command, PROBE_TIMEOUT, stdin=probe_program(folder))
    try:
        answer: dict[str, Any] = json.loads(result.output.splitlines()[-1])
    except (IndexError, ValueError):
        observation = f"{python}: {result.first_line}"
        advice = "install Python there under the same path, or name another with --python"
        yield Finding(f"Python on {node}", "missing", observation, advice)
        return
    yield from _compare_versions(node, python, answer)
    observation = str(folder) if answer["compss"] else f"not in {folder}"
    advice = "install it there or correct InstallDir in project.xml"
    yield verdict(f"COMPSs on {node}", observation, advice, ready=answer["compss"])
    if not answer["java"]:
        observation = "neither in JAVA_HOME nor on the PATH of a non-interactive ssh"
        advice = "install a JDK, or export JAVA_HOME in ~/.bashrc"
        yield Finding(f"java on {node}", "missing", observation, advice)
    if declared and not is_local(node):
        yield judge_units(declared, answer["cpus"], answer["cpus"])
        yield from judge_gpus(declared, answer["gpus"])


def start_script(python: str, environment: Path | None) -> str:
    """Return the shell script that starts Python as the workers of COMPSs start it.

    They source the script that the project file names, get the folders of modules that the program
    has, and activate its virtual environment.
    """
    modules = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    lines = []
    if environment is not None:
        lines.append(f"source {shlex.quote(str(environment))}")
    lines.append(f"export PYTHONPATH={shlex.quote(modules)}")
    activated = os.environ.get("VIRTUAL_ENV")
    if activated:
        lines.append(f"source {shlex.quote(activated)}/bin/activate")
    return "\n".join([*lines, f"exec {shlex.quote(python)} -"])


def _compare_versions(node: str, python: str, answer: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare what a node has installed with what this machine has."""
    versions = {
        "python": platform.python_version(),
        "torch": installed_version("torch") or "",
        "compss_train": __version__,
    }
    for name, version in versions.items():
        title = f"{name} on {node}"
        version_of_node = answer[name]
        if version_of_node is None:
            observation = f"not importable by {answer['executable']} ({answer['problems'][name]})"
            yield Finding(title, "missing", observation, _import_advice(python))
            continue
        agree = _significant(name, version_of_node) == _significant(name, version)
        observation = (
            version_of_node if agree else f"{version_of_node}, but {version or 'none'} here"
        )
        advice = "tasks are sent as pickles: use the same version on all nodes"
        yield verdict(title, observation, advice, ready=agree)


def _import_advice(python: str) -> str:
    """Return how workers find what their Python does not import."""
    if python != DEFAULT_PYTHON:
        return "install it there, or put it on a shared disk and name that with --pythonpath"
    return (
        f"workers run {python} as their node finds it: compss-train configure --hosts writes a "
        f"project file with {sys.executable}, for runcompss and doctor --project; or give "
        "--python_interpreter to runcompss, and --python to doctor"
    )


def _significant(name: str, version: str) -> str:
    """Return the part of a version that must agree.

    It is Python's first two numbers, and a package's version without ``+cpu``.
    """
    return ".".join(version.split(".")[:2]) if name == "python" else version.split("+")[0]


# The trainer imports all dependencies of compss_train; the bare package imports none.
PROBE = """
import json, os, platform, shutil, sys
answer = {{"python": platform.python_version(), "cpus": os.cpu_count() or 1, "problems": {{}}}}
answer["executable"] = sys.executable
for name, module in (("torch", "torch"), ("compss_train", "compss_train.trainer")):
    try:
        answer[name] = str(__import__(module).__version__)
    except BaseException as error:
        answer[name] = None
        answer["problems"][name] = f"{{type(error).__name__}}: {{error}}"
answer["gpus"] = sys.modules["torch"].accelerator.device_count() if answer["torch"] else 0
home = os.environ.get("JAVA_HOME")
answer["java"] = os.path.exists(home + "/bin/java") if home else shutil.which("java") is not None
answer["compss"] = os.path.exists({starter!r})
print(json.dumps(answer))
"""


def probe_program(folder: Path) -> str:
    """Return the Python program that examines a node and prints JSON.

    ``folder`` is COMPSs's folder on that node.
    """
    starter = folder / "Runtime/scripts/system/adaptors/nio/persistent_worker.sh"
    return PROBE.format(starter=str(starter))
