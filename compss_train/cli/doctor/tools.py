"""Asks other programs, for no longer than a time."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from compss_train.cli.doctor.findings import Finding

SECONDS = 20.0  # for a tool of this machine: the JVM of runcompss may start on a slow disk


@dataclass(frozen=True)
class Answer:
    """What a command said; ``code`` is ``None`` where there was no such command or it took too long."""

    code: int | None
    out: str

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line.strip() for line in self.out.splitlines() if line.strip()), "no answer")


def ask(command: Sequence[str], seconds: float | None = None, text: str | None = None) -> Answer:
    """Run a command on the text as its input; end it, with all that it started, when the time is over."""
    limit = SECONDS if seconds is None else seconds
    try:
        process = _started(command, subprocess.DEVNULL if text is None else subprocess.PIPE)
    except OSError as error:
        return Answer(None, f"{command[0]}: {error.strerror}")
    with process:
        try:
            out, _ = process.communicate(text, timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Answer(None, f"no answer from {command[0]} in {limit:g} s")
    return Answer(process.returncode, out.strip())


def _started(command: Sequence[str], stdin: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


SSH_SECONDS = 10.0  # above ssh's own 5 for the connection

# As COMPSs itself calls ssh, but for the list of known hosts, which a look should leave as it is.
SSH = [
    "ssh",
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=5"),
    *("-o", "StrictHostKeyChecking=no"),
    *("-o", "UserKnownHostsFile=/dev/null"),
    *("-o", "LogLevel=ERROR"),
]


def look_for_ssh(node: str) -> Finding:
    """Look whether a login needs no password."""
    answer = ask([*SSH, node, "true"], SSH_SECONDS)
    if answer.code == 0:
        return Finding(f"ssh to {node}", "ok", "without a password")
    advice = f"COMPSs starts its workers by ssh: run an ssh server there, ssh-keygen here, then ssh-copy-id {node}"
    return Finding(f"ssh to {node}", "missing", answer.first_line, advice)


def ask_python(node: str, python: str, program: str, seconds: float) -> Answer:
    """Run a program in the Python of a node, which gets it as its input: nothing to quote, nothing to copy."""
    # A word of its own on the remote command line, whatever is in it: ssh joins words with blanks.
    return ask([*SSH, node, "exec", shlex.quote(python), "-"], seconds, program)
