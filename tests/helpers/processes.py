"""Processes of this program, or of a session, and the folders that they leave behind."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import psutil

SHARED: WeakSet[Any] = WeakSet()
"""The engines that tests share."""


def children(command: str = "") -> list[psutil.Process]:
    """Processes of this one that do work: loky's resource tracker stays as long as Python does.

    Only those with ``command`` in their command lines, and none of engines that tests share, which
    come and go.
    """
    shared = {pid for engine in SHARED for pid in engine.pids}
    working = []
    for process in psutil.Process().children(recursive=True):
        if process.pid in shared:
            continue
        # It has ended, perhaps without anybody having waited for it yet.
        with suppress(psutil.NoSuchProcess):
            line = " ".join(process.cmdline())
            if "resource_tracker" not in line and command in line:
                working.append(process)
    return working


def is_running(pid: int) -> bool:
    """Return whether a process does anything yet: one that has ended may still wait for its parent
    to notice.
    """
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def leftovers(pid: int) -> list[str]:
    """The folders in shared memory that a coordinator made and that are still there."""
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"compss_train-{pid}-")]


def session(leader: int) -> list[int]:
    """The processes of a session, whoever their parents are by now."""
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getsid(pid) == leader and is_running(pid):
                found.append(pid)
    return found


ROOT = Path(__file__).parents[2]


def python_blocks(document):
    return re.findall(
        r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL
    )
