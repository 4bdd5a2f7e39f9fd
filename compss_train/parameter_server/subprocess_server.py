"""Serving parameters from a process of its own, where threads of this one cannot be relied on.

PyCOMPSs is such a place: while its binding waits for a task it holds Python's lock, and no other thread runs.
"""

from __future__ import annotations

import json
import subprocess
import sys

from compss_train._utils.closing import Closable

CLOSE_SECONDS = 1.0
"""How long the process may take to end by itself."""


class ServingApart(Closable):
    """A server that runs in another process: its ``address``, the ``token`` that clients need, and ``close``."""

    def __init__(self, process: subprocess.Popen[str], address: str, token: str) -> None:
        self.address = address
        self.token = token
        self._process = process

    def close(self) -> None:
        """End the process; may be called again."""
        _end(self._process)


def serve_apart(address: str = "tcp://127.0.0.1:*") -> ServingApart:
    """Serve parameters as ``serve`` does, from a process that ends with this one, however that ends.

    Starting it takes as long as it takes to import torch. Raises ``OSError`` where it cannot listen at the address.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "compss_train.parameter_server", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is this process's to handle
    )
    try:
        told = json.loads(_line(process))
        if "error" in told:
            raise OSError(told["error"])
    except BaseException:
        _end(process)
        raise
    return ServingApart(process, told["address"], told["token"])


def _line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise OSError("the parameter server's process ended before it served; what it says is above")
    return line


def _end(process: subprocess.Popen[str]) -> None:
    """Close the pipe at whose end the process ends, and kill it where it does not."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
