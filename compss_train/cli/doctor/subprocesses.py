"""Run programs with a timeout, on this machine or on a node through ssh."""

import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from compss_train.cli.doctor.findings import Finding

TIMEOUT = 20.0
"""Seconds for a program of this machine: the JVM of runcompss may start from a slow disk."""
SSH_TIMEOUT = 10.0
"""Seconds for a login, above ssh's own 5 for the connection."""

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
        process = _start(command, subprocess.DEVNULL if stdin is None else subprocess.PIPE)
    except OSError as error:
        return Result(None, f"{command[0]}: {error.strerror}")
    with process:
        try:
            output, _ = process.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Result(None, f"no answer from {command[0]} in {seconds:g} s")
    return Result(process.returncode, output.strip())


def _start(command: Sequence[str], stdin: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def check_ssh(node: str) -> Finding:
    """Check that a login on the node works without a password."""
    result = run_program([*SSH, node, "true"], SSH_TIMEOUT)
    if result.code == 0:
        return Finding(f"ssh to {node}", "ok", "without a password")
    advice = f"COMPSs starts its workers by ssh: run an ssh server there, ssh-keygen here, then ssh-copy-id {node}"
    return Finding(f"ssh to {node}", "missing", result.first_line, advice)


def run_python(node: str, python: str, program: str, timeout: float) -> Result:
    """Run a Python program on a node; the program is sent on standard input, so nothing is quoted or copied."""
    # ssh joins words with blanks, so the interpreter's path is quoted as a single word of the remote command line.
    return run_program([*SSH, node, "exec", shlex.quote(python), "-"], timeout, program)
