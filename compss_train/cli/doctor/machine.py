"""This machine, apart from COMPSs: Python and its packages, limits, folders."""

from __future__ import annotations

import platform
import resource
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from compss_train.cli.doctor.findings import Finding, Request

OPEN_FILES = 1024


def check_python(request: Request) -> Iterator[Finding]:
    """Look at the version of Python."""
    yield Finding("Python", "ok", platform.python_version())


def check_packages(request: Request) -> Iterator[Finding]:
    """Look for torch and numpy among the installed packages."""
    for name in ("torch", "numpy"):
        version = installed_version(name)
        if version is None:
            yield Finding(name, "missing", "not installed", f"pip install {name}")
        else:
            yield Finding(name, "ok", version)


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
    yield judge_open_files("open files", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def check_folders(request: Request) -> Iterator[Finding]:
    """Look whether COMPSs can write its logs in ``~/.COMPSs`` and its files in ``/tmp``."""
    for name, folder in (("/tmp", Path("/tmp")), ("~/.COMPSs", Path.home() / ".COMPSs")):
        problem = _not_writable(folder)
        if problem is None:
            yield Finding(name, "ok", "writable")
        else:
            yield Finding(name, "missing", f"not writable: {problem}", "COMPSs must write there")


def judge_open_files(name: str, limit: int) -> Finding:
    """Judge a limit to the number of open files, wherever it was seen."""
    if limit in (-1, resource.RLIM_INFINITY):
        return Finding(name, "ok", "no limit")
    if limit < OPEN_FILES:
        return Finding(name, "warning", f"{limit} at most", f"ulimit -n {OPEN_FILES}: workers hold many files")
    return Finding(name, "ok", f"{limit} at most")


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, without importing it; ``None`` where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _not_writable(folder: Path) -> str | None:
    """Return why nothing can be written into a folder, or into what it would be made in; else ``None``."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return str(error)
    return None
