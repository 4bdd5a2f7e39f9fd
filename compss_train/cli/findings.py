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
    """The result of one check: what was found, and how to fix it if something is wrong.

    ``missing``: the engine cannot run. ``warning``: it may fail or be slow.
    """

    name: str
    state: Literal["ok", "warning", "missing"]
    found: str
    advice: str = ""


def verdict(name: str, observation: str, advice: str, *, ready: bool) -> Finding:
    """Return the finding ``ok`` if it is ready, or ``missing`` with advice."""
    if ready:
        return Finding(name, "ok", observation)
    return Finding(name, "missing", observation, advice)


@dataclass(frozen=True)
class ProgramResult:
    """Exit code and output of a program.

    ``code`` is ``None`` if it could not be started or timed out.
    """

    code: int | None
    output: str

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        lines = self.output.strip().splitlines()
        return lines[0].strip() if lines else "no answer"


def run_program(
    command: Sequence[str], timeout: float | None = None, stdin: str = ""
) -> ProgramResult:
    """Run a program and return its result.

    After ``timeout`` seconds, by default ``TIMEOUT``, it is killed with all its children.
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
    """Return the version of an installed package without importing it.

    It is ``None`` if the package is not installed.
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
