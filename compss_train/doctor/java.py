"""Java, which COMPSs's runtime is written in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from compss_train.doctor.finding import Finding, Request
from compss_train.doctor.tools import ask

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
