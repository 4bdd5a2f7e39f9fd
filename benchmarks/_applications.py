"""Applications: calls of one function in a process of its own, or under COMPSs on its nodes.

As a program this file is such an application: see ``call``.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _common import HERE, WORKERS

DEADLINE = 1800.0
"""Seconds for an application, which hangs if it takes longer."""
GRACE = 10.0
"""Seconds for its workers to end after it."""


@dataclass(frozen=True)
class Runtime:
    """How COMPSs runs an application: with so many computing units a node.

    By default that is this machine only.
    """

    units: int = WORKERS
    hosts: Sequence[str] = ()
    """The nodes, each with a worker, if there are several; the application runs on the first."""
    pythonpath: Sequence[str] = ()
    """Folders for modules beside ours, on the workers too."""
    environment: Mapping[str, str] = field(default_factory=dict)


def has_compss() -> bool:
    """Return whether COMPSs is here, and say it if not.

    Everything else can be measured without it.
    """
    if shutil.which("runcompss") is not None:
        return True
    command = "compss-train doctor --engine compss"
    print(f"SKIPPED: there is no runcompss on the PATH; {command} says what is missing")
    return False


def call(
    function: Callable[..., Any],
    *arguments: Any,
    runtime: Runtime | None = None,
    within: Sequence[str] = (),
) -> Any:
    """Return what the function returns in a new application: of COMPSs where a runtime is given.

    It is found by its file and name; arguments and result are what JSON can hold, and go through
    files, as what COMPSs prints is not to be relied on. ``within`` are words before the command,
    which say where it runs.
    """
    with tempfile.TemporaryDirectory(prefix="compss_bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        request = folder / "request.json"
        result = folder / "result.json"
        module = Path(function.__code__.co_filename).stem
        request.write_text(json.dumps([module, function.__name__, arguments, str(result)]))
        python = [sys.executable] if runtime is None else _runcompss(runtime, folder)
        command = [*within, *python, str(Path(__file__).resolve()), str(request)]
        variables = {} if runtime is None else runtime.environment
        code = _run(command, folder, {**os.environ, **variables})
        if code or not result.exists():
            lines = (folder / "output").read_text(errors="replace").splitlines()
            last_words = "\n".join(lines[-40:])
            raise RuntimeError(
                f"{function.__name__} ended with {code}; its last words:\n{last_words}"
            )
        return json.loads(result.read_text())


def _runcompss(runtime: Runtime, folder: Path) -> list[str]:
    """Configure COMPSs, and return the words before an application."""
    configure = [
        *(sys.executable, "-m", "compss_train", "configure", f"--units={runtime.units}"),
        *(f"--folder={folder}", f"--working-dir={folder}/workers"),
    ]
    of_several_nodes: list[str] = []
    if runtime.hosts:
        configure.append(f"--hosts={','.join(runtime.hosts)}")
        of_several_nodes = [f"--master_name={runtime.hosts[0]}", "--cpu_affinity=disabled"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    return [
        *("runcompss", "--lang=python", f"--log_dir={folder}", *of_several_nodes),
        *(f"--project={folder}/project.xml", f"--resources={folder}/resources.xml"),
        f"--python_interpreter={sys.executable}",
        f"--pythonpath={':'.join([str(HERE), str(HERE.parent), *runtime.pythonpath])}",
    ]


def _run(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> int | None:
    """Run the command; return its exit code, or ``None`` where it did not end in time.

    No process is left behind.
    """
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            until = time.monotonic() + GRACE
            while _workers(folder) and time.monotonic() < until:
                time.sleep(0.2)
            for worker in _workers(folder):
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)


def _workers(folder: Path) -> list[int]:
    """Return the workers, which ssh starts: they are known by the folder on their command lines."""
    processes = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # one that has just ended
            if entry.name.isdecimal() and os.fsencode(folder) in (entry / "cmdline").read_bytes():
                processes.append(int(entry.name))
    return processes


def _application(request: Path) -> None:
    """Call the function that a file names.

    Its module is imported, so that what it defines has a module for workers, too.
    """
    module, function, arguments, result = json.loads(request.read_text())
    returned = getattr(importlib.import_module(module), function)(*arguments)
    Path(result).write_text(json.dumps(returned))


if __name__ == "__main__":
    _application(Path(sys.argv[1]))
