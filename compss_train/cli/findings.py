"""Findings of ``compss-train doctor``, and what its checks do: run programs, look for packages."""

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

TIMEOUT = 20.0
"""Seconds for a program of this machine: the JVM of runcompss may start from a slow disk."""


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name, state, what was found, and how to fix it if something is
    wrong.

    ``missing``: the engine cannot run. ``warning``: it may fail or be slow.
    """

    name: str
    state: Literal["ok", "warning", "missing"]
    found: str
    advice: str = ""


def verdict(name: str, ready: bool, found: str, advice: str) -> Finding:
    """Return the finding ``ok``, or ``missing`` with advice."""
    return Finding(name, "ok", found) if ready else Finding(name, "missing", found, advice)


@dataclass(frozen=True)
class ProgramResult:
    """Exit code and output of a program; ``code`` is ``None`` if it could not be started or timed
    out.
    """

    code: int | None
    output: str

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next(
            (line.strip() for line in self.output.splitlines() if line.strip()), "no answer"
        )


def run_program(
    command: Sequence[str], timeout: float | None = None, stdin: str = ""
) -> ProgramResult:
    """Run a program and return its result; kill it and all its children after ``timeout``
    seconds.
    """
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
        return ProgramResult(None, f"{command[0]}: {error.strerror}")
    with process:
        try:
            output, _ = process.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return ProgramResult(None, f"no answer from {command[0]} in {seconds:g} s")
    return ProgramResult(process.returncode, output.strip())


def installed_version(package: str) -> str | None:
    """Return the version of an installed package without importing it, or ``None`` if it is not
    installed.
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
