"""The COMPSs runtime as this process sees it: what runs here, on which nodes, and how it ends."""

import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from compss_train.engines import sources
from compss_train.engines.compss.configuration import UNREADABLE, read_nodes
from compss_train.engines.nodes import Node, is_local

JVM_OPTIONS = "JVM_OPTIONS_FILE"
"""Environment variable with the path of the runtime's options, one per line; runcompss sets it."""


def under_compss() -> bool:
    """Return whether this process is the main program of a COMPSs application.

    Does not import pycompss: runcompss and ``pycompss.interactive`` have imported it before.
    """
    return _context("in_master")


def is_loading() -> bool:
    """Return whether PyCOMPSs only imports the script, as it does before it starts the runtime."""
    return _context("is_loading")


def in_worker() -> bool:
    """Return whether this process runs tasks of a COMPSs application."""
    return _context("in_worker")


def _context(question: str) -> bool:
    context = getattr(sys.modules.get("pycompss.util.context"), "CONTEXT", None)
    # False if this version of PyCOMPSs has no such method.
    return bool(getattr(context, question, bool)())


def main_file() -> str | None:
    """Return the main file of this program, which PyCOMPSs's launcher executes in its own module.

    ``None`` in a notebook.
    """
    launched = getattr(sys.modules["__main__"], "LAUNCH_STATUS", None)
    path: str | None = sources.main_file() if launched is None else launched.get_app_path()
    return path


def import_pycompss() -> ModuleType:
    """Return the module ``pycompss.api.api``; raise ``ImportError`` without PyCOMPSs."""
    try:
        return importlib.import_module("pycompss.api.api")
    except ImportError as error:
        raise ImportError(
            "the compss engine needs PyCOMPSs, which is not installed in this Python; start the "
            "program with runcompss, install pycompss (docs/compss.md says how), or use "
            "engine='local'"
        ) from error


def seconds_left() -> float | None:
    """Return the seconds until COMPSs ends the application.

    ``None`` without ``runcompss --wall_clock_limit``.

    PyCOMPSs sets an alarm for that time, and COMPSs cancels all tasks.
    """
    handler = getattr(signal.getsignal(signal.SIGALRM), "__module__", "")
    seconds = signal.getitimer(signal.ITIMER_REAL)[0]
    return seconds if seconds and handler.startswith("pycompss.") else None


def keep_answer_pipe_open() -> int | None:
    """Let COMPSs see at once when a task of this process ends; return the pipe's descriptor.

    PyCOMPSs opens a pipe for each answer and closes it again. COMPSs's Java process, which reads
    the pipe, then finds its end, and polls again 20 ms later, so that a task waits for 10 ms on
    average. While the pipe has a writer, Java blocks in the read instead. The system closes the
    pipe when this process dies, and its forks close it at their start, so that COMPSs still
    notices. Returns ``None`` where there are no such pipes (another system or version) and has no
    effect there.
    """
    with suppress(OSError):
        for number in os.listdir("/proc/self/fd"):
            try:
                path = os.readlink(f"/proc/self/fd/{number}")
            except OSError:  # closed since
                continue
            if path.endswith(".outbound"):  # commands come here; named from Java's point of view
                answers = os.open(
                    path.removesuffix(".outbound") + ".inbound", os.O_WRONLY | os.O_NONBLOCK
                )
                os.register_at_fork(after_in_child=partial(_close, answers))
                return answers
    return None


def _close(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)


@cache
def skip_destructors_at_exit() -> None:
    """Make ``exit`` end this process without C++ destructors; further calls do nothing.

    When COMPSs aborts an application, the JVM calls ``exit`` while Python's main thread waits
    inside the binding and holds the global interpreter lock. A destructor of libtorch would wait
    for that lock forever. In a normal exit Python has been finalized and the JVM has run its
    shutdown hooks by then; C's streams are closed here, and the exit code is kept. Exit handlers of
    C libraries that were loaded before are not run. Without ``on_exit`` in libc (it is a function
    of glibc) nothing changes.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)  # registered last, so that it runs first


def declared_nodes() -> list[Node]:
    """Return the nodes that runcompss started the runtime with; empty if they cannot be read."""
    options = jvm_options()
    try:
        return read_nodes(
            Path(options["compss.project.file"]), Path(options["compss.resources.file"])
        )
    except (KeyError, *UNREADABLE):
        return []


def jvm_options() -> dict[str, str]:
    """Return the runtime's options by name, without ``-D``; empty if they cannot be read."""
    try:
        return _options_in(os.environ[JVM_OPTIONS])
    except (KeyError, OSError):
        return {}


@cache
def _options_in(path: str) -> dict[str, str]:
    # Kept, because runcompss removes the file.
    lines = Path(path).read_text().splitlines()
    return dict(line.strip().removeprefix("-D").partition("=")[::2] for line in lines)


def units_beyond_cores(nodes: Sequence[Node]) -> str | None:
    """Return a warning if this machine declares more computing units than it has cores."""
    cores = os.cpu_count() or 1
    if jvm_options().get("compss.worker.cpu_affinity") == "disabled":
        return None
    for node in nodes:
        if node.cpus > cores and is_local(node.name):
            return (
                f"{node.name} declares {node.cpus} computing units and has {cores} cores: COMPSs "
                f"binds each unit to a core, and tasks beyond the cores die. Declare {cores} "
                "(compss-train configure --units), or start runcompss with --cpu_affinity=disabled"
            )
    return None
