"""Checks of this machine: Python and its packages, limits and folders, Java, COMPSs, and running programs."""

import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from compss_train.cli.doctor.findings import Finding, Request
from compss_train.engines.compss.configuration import DEFAULT_HOME, compss_home, presumed_home

TIMEOUT = 20.0
"""Seconds for a program of this machine: the JVM of runcompss may start from a slow disk."""
OPEN_FILES = 1024
"""The number of open files that workers need."""
COMPSS_DOCS = "https://compss-doc.readthedocs.io"
JAVA_ADVICE = "install a JDK (Debian: apt install default-jdk) and set JAVA_HOME to its folder"


@dataclass(frozen=True)
class Result:
    """Exit code and output of a program; ``code`` is ``None`` if it could not be started or timed out."""

    code: int | None
    output: str

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line.strip() for line in self.output.splitlines() if line.strip()), "no answer")


def run_program(command: Sequence[str], timeout: float | None = None, stdin: str | None = None) -> Result:
    """Run a program and return its result; kill it and all its children after ``timeout`` seconds."""
    seconds = TIMEOUT if timeout is None else timeout
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
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


def check_packages(request: Request) -> Iterator[Finding]:
    """Report the version of Python, and check that torch and numpy are installed."""
    yield Finding("Python", "ok", platform.python_version())
    for name in ("torch", "numpy"):
        if version := installed_version(name):
            yield Finding(name, "ok", version)
        else:
            yield Finding(name, "missing", "not installed", f"pip install {name}")


def check_optional(request: Request) -> Iterator[Finding]:
    """Look for programs that only some runs need."""
    for program, use in (
        ("enqueue_compss", "submits to SLURM and other queues"),
        ("dot", "of graphviz: draws task graphs"),
    ):
        path = shutil.which(program)
        yield Finding(program, "ok", path) if path else Finding(program, "note", f"not on the PATH ({use})")


def check_limits(request: Request) -> Iterator[Finding]:
    """Check the limit of open files."""
    yield judge_open_files("open files", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def check_folders(request: Request) -> Iterator[Finding]:
    """Check that COMPSs can write its logs to ``~/.COMPSs`` and its files to ``/tmp``."""
    for name, folder in (("/tmp", Path("/tmp")), ("~/.COMPSs", Path.home() / ".COMPSs")):
        problem = _write_error(folder)
        if problem is None:
            yield Finding(name, "ok", "writable")
        else:
            yield Finding(name, "missing", f"not writable: {problem}", "COMPSs must write there")


def judge_open_files(name: str, limit: int) -> Finding:
    """Return a finding about a limit of open files, of this machine or of a node."""
    if limit in (-1, resource.RLIM_INFINITY):
        return Finding(name, "ok", "no limit")
    if limit < OPEN_FILES:
        return Finding(name, "warning", f"{limit} at most", f"ulimit -n {OPEN_FILES}: workers open many files")
    return Finding(name, "ok", f"{limit} at most")


def installed_version(package: str) -> str | None:
    """Return the version of an installed package without importing it, or ``None`` if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _write_error(folder: Path) -> str | None:
    """Return why files cannot be created in a folder, or ``None`` if they can; a new folder's parent is tested."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return str(error)
    return None


def check_pycompss(request: Request) -> Iterator[Finding]:
    """Look for pycompss where Python finds it, or where runcompss will: in COMPSs's own folder."""
    spec, folder = util.find_spec("pycompss"), presumed_home() / "Bindings/python/3"
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent.parent
    if not (folder / "pycompss").is_dir():
        advice = f"it comes with COMPSs, only the compss engine needs it: {COMPSS_DOCS}"
        yield Finding("pycompss", "missing", "not importable", advice)
    else:
        yield _judge_binding(folder)


def check_compss_home(request: Request) -> Iterator[Finding]:
    """Look for the folder that COMPSs is installed in."""
    home = compss_home()
    advice = f"export COMPSS_HOME={DEFAULT_HOME}, or the folder where COMPSs is installed"
    if home is None:
        yield Finding("COMPSS_HOME", "missing", "not set", advice)
    elif not (home / "Runtime").is_dir():
        yield Finding("COMPSS_HOME", "missing", f"{home}, which has no Runtime folder", advice)
    elif "COMPSS_HOME" in os.environ:
        yield Finding("COMPSS_HOME", "ok", str(home))
    else:
        yield Finding("COMPSS_HOME", "note", f"not set, but runcompss is in {home}")


def check_runcompss(request: Request) -> Iterator[Finding]:
    """Look for runcompss on the PATH and ask for its version, which it prints only if its own setup works."""
    path = shutil.which("runcompss")
    if path is None:
        scripts = presumed_home() / "Runtime/scripts/user"
        advice = f'export PATH="{scripts}:$PATH"' if scripts.is_dir() else f"install COMPSs: {COMPSS_DOCS}"
        yield Finding("runcompss", "missing", "not on the PATH", advice)
        return
    result = run_program([path, "--version"])
    version = re.search(r"version\s+(\d\S*)", result.output)
    if result.code == 0 and version:
        yield Finding("runcompss", "ok", f"{version[1]} at {path}")
    else:
        yield Finding("runcompss", "missing", f"{path}: {result.first_line}", "runcompss --version must work")


def _judge_binding(folder: Path) -> Finding:
    """Check the compiled extension, which fits a single version of Python: a common cause of failures."""
    found = f"{installed_version('pycompss') or 'the binding'} in {folder}"
    extensions = [path.name for path in folder.glob("compss*.so")]
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    if extensions and not any(name.endswith((suffix, ".abi3.so")) for name in extensions):
        built = f"{found}, compiled as {extensions[0]}"
        return Finding("pycompss", "missing", built, f"use that Python, or build COMPSs for {suffix}")
    return Finding("pycompss", "ok", found)


def check_java(request: Request) -> Iterator[Finding]:
    """Look for Java as COMPSs does: in ``JAVA_HOME``, with its library, or on the PATH."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java")
    if home:
        paths = [f"{home}/jre/bin/java", f"{home}/bin/java"]
        java = next((path for path in paths if os.path.isfile(path)), None)
    yield _judge_java_home(home, java)
    result = run_program([java or "java", "-version"])
    if result.code == 0:
        yield Finding("java", "ok", result.first_line)
    else:
        yield Finding("java", "missing", result.first_line, JAVA_ADVICE)


def _judge_java_home(home: str | None, java: str | None) -> Finding:
    if not home:
        return Finding("JAVA_HOME", "warning", "not set", "set it to a JDK, whose libjvm.so COMPSs loads")
    libraries = [path for folder in ("jre/lib", "lib") for path in Path(home).glob(f"{folder}/**/libjvm.*")]
    if java is None or not libraries:
        found = f"{home}, which has no bin/java with a libjvm.so"
        return Finding("JAVA_HOME", "missing", found, JAVA_ADVICE)
    return Finding("JAVA_HOME", "ok", home)
