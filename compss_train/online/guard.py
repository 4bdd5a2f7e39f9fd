"""A program that runs a command, and ends all its processes when it ends or when standard input is
closed.

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
"""Its name among the processes of Linux, by which others leave it alone: it ends its own
processes.
"""
GRACE_SECONDS = 2.0
"""How long a command may take to end after SIGTERM, as launchers of MPI do, which end ranks on
other nodes.
"""
NOT_STARTED = 127
"""Its status if the command cannot be started, as in shells."""
TICK = 0.005
"""Seconds between looks at processes that are to end."""
_SET_PARENT_DEATH_SIGNAL = 1
_SET_NAME = 15
_SET_CHILD_SUBREAPER = 36
"""Options of prctl: a child is sent a signal when the thread that made it ends; orphans become
children.
"""


def processes() -> dict[int, tuple[str, int, int]]:
    """Return name, parent and session of each process that has not ended; nothing on systems other
    than Linux.
    """
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended meanwhile
            start, _, end = stat.read_text(errors="replace").rpartition(")")
            state, parent, _, session, *_ = end.split()
            if state != "Z":
                found[int(stat.parent.name)] = start.partition("(")[2], int(parent), int(session)
    return found


def descendants(process: int) -> list[int]:
    """Return the ids of all descendants of a process, without guards and what they run."""
    known = processes()
    found = [process]
    for each in found:  # grows while it is iterated over
        found += [
            child for child, (name, parent, _) in known.items() if parent == each and name != NAME
        ]
    return found[1:]


def main(command: list[str]) -> None:
    """Run the command, and end this process as it did."""
    prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: None)  # of Linux
    prctl(_SET_NAME, NAME.encode(), 0, 0, 0)
    prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(
            number, lambda number, _: ended.append(number) if number == signal.SIGTERM else None
        )
    ended: list[int] = []
    guard = os.getpid()
    child = os.fork()
    if not child:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)  # this process has one thread
        if os.getppid() != guard:  # it was killed before
            os._exit(NOT_STARTED)
        _become(command)
    status = None
    while status is None and not ended:
        ready = select.select([0, wakes], [], [])[0]
        if wakes in ready:
            os.read(wakes, 4096)
        status = _status_of(child)
        if 0 in ready and not os.read(0, 4096):
            break
    if status is None:
        status = _terminate(child)
    while left := descendants(os.getpid()):
        for process in left:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        _status_of(child)
        time.sleep(TICK)
    _end_as(signal.SIGKILL if status is None else status)


def _become(command: list[str]) -> None:
    """Become the command, in a group of its own that can be sent signals, without this program's
    pipe.
    """
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        where = f"in {os.getcwd()} on {os.uname().nodename}"
        print(f"cannot start {command[0]} {where}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(NOT_STARTED)


def _status_of(child: int) -> int | None:
    """Collect children that have ended; return the status that ``os.waitpid`` gives for this one,
    if any.
    """
    status = None
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            status = found[1] if found[0] == child else status
    return status


def _terminate(child: int) -> int | None:
    """Send SIGTERM to the command's group, and wait for the command; ``None`` if it does not end
    soon.
    """
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
