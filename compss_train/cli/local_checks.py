"""Checks of ``compss-train doctor`` for training on this machine: packages, cores, memory, GPUs."""

import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from compss_train.cli.findings import Finding, installed_version, run_program, verdict
from compss_train.engines.compss import configuration
from compss_train.engines.nodes import cores
from compss_train.reports.formatting import counted

IMPORT_TIMEOUT = 90.0
"""Seconds for a program that imports torch: the first import from a shared disk is slow."""

PACKAGE_ROOT = Path(__file__).parents[2]

PROBE = f"""
import json, sys
sys.path.append({str(PACKAGE_ROOT)!r})
import torch
import compss_train.trainer
from compss_train.model import devices
count = devices.accelerators()
names = ["GPU"] * count
if torch.cuda.is_available():
    names = [torch.cuda.get_device_name(number) for number in range(count)]
print(json.dumps({{"gpus": names}}))
"""
"""The program that imports what a fit imports, and prints the names of the GPUs it can use."""

MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Where Linux names the limit of a container: cgroups of version 2, and of version 1."""

SHARED_MEMORY = Path("/dev/shm")
LITTLE_SHARED_MEMORY = 256 * 2**20
"""Bytes below which blocks and parameters soon go to the disk; Docker's default is 64 MB."""

OF_DEVELOPERS = frozenset({"apps", "docs", "lint", "test"})
"""Extras for work on the package itself."""


@dataclass(frozen=True)
class Machine:
    """What this machine has for training."""

    cores: int
    """Cores that this process may use."""
    memory: int
    """Bytes of memory that it may use."""
    gpus: Sequence[str]
    """Names of the GPUs that torch can use."""

    def __str__(self) -> str:
        memory = f"{self.memory / 1e9:.0f} GB of memory"
        gpus = "no GPU"
        if self.gpus:
            names = ", ".join(dict.fromkeys(self.gpus))
            gpus = f"{counted(len(self.gpus), 'GPU')} ({names})"
        return f"{counted(self.cores, 'core')}, {memory}, {gpus}"


def check_packages() -> Iterator[Finding]:
    """Report the version of Python, and check that torch and numpy are installed."""
    yield Finding("Python", "ok", platform.python_version())
    for name in ("torch", "numpy"):
        version = installed_version(name)
        observation = version or "not installed"
        yield verdict(name, observation, f"pip install {name}", ready=version is not None)


def check_machine() -> tuple[Machine, list[Finding]]:
    """Return what this machine has, and the findings about packages, GPUs and shared memory."""
    findings = list(check_packages())
    names: list[str] = []
    if all(finding.state == "ok" for finding in findings):
        names = _import_all(findings)
    findings += _check_shared_memory()
    return Machine(cores(), usable_memory(), names), findings


def _import_all(findings: list[Finding]) -> list[str]:
    """Import the package in a process of its own, add what is wrong, and return the GPUs' names."""
    result = run_program([sys.executable, "-c", PROBE], IMPORT_TIMEOUT)
    lines = result.output.splitlines() or ["no answer"]
    if result.code != 0:
        advice = "install it again: pip install --force-reinstall torch, or a package that it names"
        findings.append(Finding("imports", "missing", lines[-1], advice))
        return []
    names: list[str] = json.loads(lines[-1])["gpus"]
    number_seen = nvidia_gpus()
    if number_seen and not names:
        observation = f"{counted(number_seen, 'GPU')} of NVIDIA, but this torch can use none"
        advice = "install torch's build for your CUDA driver: https://pytorch.org/get-started"
        findings.append(Finding("GPUs", "warning", observation, advice))
    return names


def nvidia_gpus() -> int:
    """Return how many GPUs NVIDIA's driver lists, whether torch can use them or not."""
    listed = run_program(["nvidia-smi", "-L"])
    return len(re.findall(r"^GPU \d+", listed.output, re.MULTILINE)) if listed.code == 0 else 0


def usable_memory() -> int:
    """Return the bytes of this machine's memory, or of its container's limit."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in MEMORY_LIMITS:
        try:
            sizes.append(int(path.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(sizes)


def _check_shared_memory() -> Iterator[Finding]:
    """Warn of little shared memory, where workers keep blocks and parameters."""
    try:
        system = os.statvfs(SHARED_MEMORY)
    except OSError:  # macOS has none: values are files
        return
    size = system.f_blocks * system.f_frsize
    if 0 < size < LITTLE_SHARED_MEMORY:
        advice = "larger blocks and parameters go to the disk: docker run --shm-size=8g"
        observation = f"{size / 2**20:.0f} MB in {SHARED_MEMORY}"
        yield Finding("shared memory", "warning", observation, advice)


@dataclass(frozen=True)
class Extras:
    """Extras of the package by whether all their packages are installed."""

    installed: Sequence[str]
    missing: Sequence[str]

    @property
    def command(self) -> str:
        """The command that installs the missing ones; empty if there are none."""
        names = ",".join(self.missing)
        return f"pip install 'compss_train[{names}]'" if names else ""


def examine_extras() -> Extras:
    """Return the extras that users may install, in alphabetical order.

    There are none where the package was not installed, but is read from a folder on the path.
    """
    try:
        distribution = metadata.distribution("compss_train")
    except metadata.PackageNotFoundError:
        return Extras((), ())
    names = set(distribution.metadata.get_all("Provides-Extra") or ()) - OF_DEVELOPERS
    installed: list[str] = []
    missing: list[str] = []
    for name in sorted(names):
        requirements = _requirements_of(name, distribution.requires or ())
        (installed if all(map(_is_met, requirements)) else missing).append(name)
    return Extras(installed, missing)


def _requirements_of(extra: str, requirements: Sequence[str]) -> list[str]:
    """Return what an extra requires, without the marker that names the extra."""
    marker = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    return [text.partition(";")[0].strip() for text in requirements if marker.search(text)]


def _is_met(requirement: str) -> bool:
    """Return whether a package is installed in at least the version that a requirement names."""
    name = re.match(r"[\w.-]+", requirement)
    version = installed_version(name[0]) if name else None
    if version is None:
        return False
    lowest = re.search(r">=\s*([\d.]+)", requirement)
    return lowest is None or release_numbers(version) >= release_numbers(lowest[1])


def release_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with, without zeros at the end."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    release = [int(number) for number in numbers[0].split(".")] if numbers else []
    while release and release[-1] == 0:
        release.pop()
    return tuple(release)


def installed_clusters() -> dict[str, bool]:
    """Return, by the name of its engine, whether what a cluster needs seems to be installed."""
    return {
        "ray": installed_version("ray") is not None,
        "compss": (configuration.presumed_home() / "Runtime").is_dir(),
    }


def as_json(machine: Machine, extras: Extras, clusters: Mapping[str, bool]) -> dict[str, object]:
    """Return what a report for programs says besides the findings."""
    return {
        "machine": {"cores": machine.cores, "memory": machine.memory, "gpus": machine.gpus},
        "extras": {
            "installed": extras.installed,
            "missing": extras.missing,
            "command": extras.command,
        },
        "clusters": clusters,
    }


def as_text(
    machine: Machine, findings: Sequence[Finding], extras: Extras, clusters: Mapping[str, bool]
) -> str:
    """Return the verdict and what is wrong, then extras, then clusters."""
    missing = ", ".join(finding.name for finding in findings if finding.state == "missing")
    ready = (
        f"Not ready for local training, see {missing}" if missing else "Ready for local training"
    )
    lines = [f"{ready}: {machine}.", *findings_as_lines(findings), "", "Extras"]
    if extras.installed:
        lines.append(f"  installed      {', '.join(extras.installed)}")
    if extras.missing:
        lines.append(f"  not installed  {', '.join(extras.missing)}")
        lines.append(f"  install them   {extras.command}")
    if not extras.installed and not extras.missing:
        lines.append("  unknown: compss_train was not installed by pip")
    lines += ["", "Clusters"]
    for engine, is_installed in clusters.items():
        state = "installed" if is_installed else "not installed"
        command = f"compss-train doctor --engine {engine}"
        purpose = "checks the cluster" if is_installed else "says what it needs"
        lines.append(f"  {engine:13}  {state}; {command} {purpose}")
    return "\n".join(lines)


def findings_as_lines(findings: Sequence[Finding]) -> list[str]:
    """Return a line for each finding, with advice where there is any."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        line = f"{finding.state:8} {finding.name:{width}}  {finding.found}"
        lines.append(f"{line}; {finding.advice}" if finding.advice else line)
    return lines
