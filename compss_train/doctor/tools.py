"""Asks other programs, for no longer than a time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

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
