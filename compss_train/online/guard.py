"""A program that runs a command, and ends its processes with it, or when its input is closed.

``python -I -S guard.py COMMAND ...``: whoever starts it holds the other end of a pipe to its
standard input, which the system closes when that process dies, however it dies. It ends as the
command did, with its status or by its signal. A file of its own, which imports nothing of the
package, so that it starts within milliseconds.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

NAME = "compss-guard"
"""Its name among the processes of Linux, by which others leave it alone.

It ends its own processes.
"""
GRACE_SECONDS = 2.0
"""How long a command may take to end after SIGTERM.

Launchers of MPI end ranks on other nodes in that time.
"""
NOT_STARTED = 127
"""Its status if the command cannot be started, as in shells."""
TICK = 0.005
"""Seconds between looks at processes that are to end."""
_SET_PARENT_DEATH_SIGNAL = 1
"""Option of prctl: a child is sent a signal when the thread that made it ends."""
_SET_NAME = 15
"""Option of prctl: the name of the process."""
_SET_CHILD_SUBREAPER = 36
"""Option of prctl: orphans among its descendants become its children."""
_WAKING_BYTES = 4096
"""How many bytes are read at a time from pipes whose bytes only wake."""


def processes() -> dict[int, tuple[str, int, int]]:
    """Return name, parent and session of each process that has not ended.

    There are none on systems other than Linux.
    """
    running = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended meanwhile
            start, _, end = stat.read_text(errors="replace").rpartition(")")
            state, parent, _, session, *_ = end.split()
            if state != "Z":
                name = start.partition("(")[2]
                running[int(stat.parent.name)] = (name, int(parent), int(session))
    return running


def descendants(process: int) -> list[int]:
    """Return the ids of all descendants of a process, without guards and what they run."""
    running = processes()
    family = [process]
    for member in family:  # grows while it is iterated over
        family += [
            child
            for child, (name, parent, _) in running.items()
            if parent == member and name != NAME
        ]
    return family[1:]


def main(command: list[str]) -> None:
    """Run the command, and end this process as it did."""
    prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: None)  # of Linux
    prctl(_SET_NAME, NAME.encode(), 0, 0, 0)
    prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    terminated: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number))
    guard = os.getpid()
    child = os.fork()
    if not child:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)  # this process has one thread
        if os.getppid() != guard:  # it was killed before
            os._exit(NOT_STARTED)
        _become(command)
    status = None
    while status is None and not terminated:
        ready, _, _ = select.select([0, wakes], [], [])
        if wakes in ready:
            os.read(wakes, _WAKING_BYTES)
        status = _status_of(child)
        if 0 in ready and not os.read(0, _WAKING_BYTES):
            break
    if status is None:
        status = _terminate(child)
    while remaining := descendants(guard):
        for process in remaining:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        _status_of(child)
        time.sleep(TICK)
    _end_as(signal.SIGKILL if status is None else status)


def _become(command: list[str]) -> None:
    """Become the command, without this program's pipe, in a group that can be sent signals."""
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        where = f"in {os.getcwd()} on {os.uname().nodename}"
        print(f"cannot start {command[0]} {where}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(NOT_STARTED)


def _status_of(child: int) -> int | None:
    """Collect children that have ended; return the status of this one if it is among them.

    It is as ``os.waitpid`` gives it.
    """
    status = None
    with suppress(ChildProcessError):
        process, ended_as = os.waitpid(-1, os.WNOHANG)
        while process:
            if process == child:
                status = ended_as
            process, ended_as = os.waitpid(-1, os.WNOHANG)
    return status


def _terminate(child: int) -> int | None:
    """Send SIGTERM to the command's group; return its status, ``None`` if it had to be killed."""
    with suppress(OSError):
        os.killpg(child, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while (status := _status_of(child)) is None and time.monotonic() < deadline:
        time.sleep(TICK)
    if status is None:
        os.killpg(child, signal.SIGKILL)
    return status


def _end_as(status: int) -> None:
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(sys.argv[1:])
