"""COMPSs on this machine: its folder, runcompss, and the binding for Python."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Iterator
from importlib import util
from pathlib import Path

from compss_train.cli.doctor.findings import Finding, Request
from compss_train.cli.doctor.machine import installed_version
from compss_train.cli.doctor.tools import ask
from compss_train.engines.compss.configuration import DEFAULT_HOME, compss_home, presumed_home

COMPSS_DOCS = "https://compss-doc.readthedocs.io"


def check_pycompss(request: Request) -> Iterator[Finding]:
    """Look for pycompss where Python finds it, or where runcompss will: in COMPSs's own folder."""
    if (folder := _pycompss_folder()) is None:
        advice = f"it comes with COMPSs, only the compss engine needs it: {COMPSS_DOCS}"
        yield Finding("pycompss", "missing", "not importable", advice)
    else:
        yield _judge_binding(folder)


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


def check_runcompss(request: Request) -> Iterator[Finding]:
    """Look for runcompss on the PATH and ask for its version, which it tells only where its own set-up is sound."""
    path = shutil.which("runcompss")
    if path is None:
        scripts = presumed_home() / "Runtime/scripts/user"
        advice = f'export PATH="{scripts}:$PATH"' if scripts.is_dir() else f"install COMPSs: {COMPSS_DOCS}"
        yield Finding("runcompss", "missing", "not on the PATH", advice)
        return
    answer = ask([path, "--version"])
    version = re.search(r"version\s+(\d\S*)", answer.out)
    if answer.code == 0 and version:
        yield Finding("runcompss", "ok", f"{version[1]} at {path}")
    else:
        yield Finding("runcompss", "missing", f"{path}: {answer.first_line}", "runcompss --version must work")


def _pycompss_folder() -> Path | None:
    """Return the folder that holds the package and its compiled half."""
    spec = util.find_spec("pycompss")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent.parent
    bundled = presumed_home() / "Bindings/python/3"
    return bundled if (bundled / "pycompss").is_dir() else None


def _judge_binding(folder: Path) -> Finding:
    """Judge the compiled half, which fits one version of Python only: a common way to fail."""
    found = f"{installed_version('pycompss') or 'the binding'} in {folder}"
    extensions = [path.name for path in folder.glob("compss*.so")]
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    if extensions and not any(name.endswith((suffix, ".abi3.so")) for name in extensions):
        built = f"{found}, compiled as {extensions[0]}"
        return Finding("pycompss", "missing", built, f"use that Python, or build COMPSs for {suffix}")
    return Finding("pycompss", "ok", found)


ADVICE = "install a JDK (Debian: apt install default-jdk) and set JAVA_HOME to its folder"


def check_java(request: Request) -> Iterator[Finding]:
    """Look for Java as COMPSs does: in ``JAVA_HOME``, with its library, or on the PATH."""
    home = os.environ.get("JAVA_HOME")
    java = _java_in(Path(home)) if home else shutil.which("java")
    yield _judge_home(home, java)
    answer = ask([java or "java", "-version"])
    if answer.code == 0:
        yield Finding("java", "ok", answer.first_line)
    else:
        yield Finding("java", "missing", answer.first_line, ADVICE)


def _judge_home(home: str | None, java: str | None) -> Finding:
    if not home:
        return Finding("JAVA_HOME", "warning", "not set", "set it to a JDK, whose libjvm.so COMPSs loads")
    if java is None or not _has_libjvm(Path(home)):
        found = f"{home}, where there is no bin/java with a libjvm.so"
        return Finding("JAVA_HOME", "missing", found, ADVICE)
    return Finding("JAVA_HOME", "ok", home)


def _java_in(home: Path) -> str | None:
    return next((str(path) for path in (home / "jre/bin/java", home / "bin/java") if path.is_file()), None)


def _has_libjvm(home: Path) -> bool:
    return any(next(home.glob(f"{folder}/**/libjvm.*"), None) for folder in ("jre/lib", "lib"))
