"""Functions that run in an application of their own, under COMPSs's runtime or in plain Python.

An application writes its result to a file: what COMPSs prints is not to be relied on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MAIN = HERE / "_compss_main.py"
DEADLINE = 1800.0  # seconds for an application: one that takes longer hangs
GRACE = 10.0  # seconds for the workers of an application that has ended
REQUEST, RESULT = "request.json", "result.json"


@dataclass(frozen=True)
class Runtime:
    """How COMPSs runs an application: with so many computing units a node, by default on this machine only."""

    units: int = 2
    hosts: Sequence[str] = ()
    """The nodes, each with a worker, if there are several; the application runs on the first."""
    pythonpath: Sequence[str] = ()
    """Folders for modules beside ours, on the workers too."""
    environment: Mapping[str, str] = field(default_factory=dict)


def skip_without_compss() -> None:
    """End this process, well, where there is no COMPSs: everything else can be measured without it."""
    if shutil.which("runcompss") is None:
        print("SKIPPED: there is no runcompss on the PATH; compss-train doctor says what COMPSs needs")
        sys.exit(0)


def call(
    function: Callable[..., Any], *arguments: Any, runtime: Runtime | None = None, within: Sequence[str] = ()
) -> Any:
    """Return what the function returns in a new application: of COMPSs where a runtime is given.

    It is found by its module and name; arguments and result are what JSON can hold. ``within`` are words before the
    command, which say where it runs.
    """
    with tempfile.TemporaryDirectory(prefix="compss_bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        asked = {"module": function.__module__, "function": function.__name__, "arguments": arguments}
        (folder / REQUEST).write_text(json.dumps(asked))
        python = [sys.executable] if runtime is None else _runcompss(runtime, folder)
        environment = {} if runtime is None else runtime.environment
        code = _run([*within, *python, str(MAIN), str(folder / REQUEST)], folder, {**os.environ, **environment})
        if code or not (folder / RESULT).exists():
            raise RuntimeError(f"{function.__name__} ended with {code}; its last words:\n{_tail(folder)}")
        return json.loads((folder / RESULT).read_text())


def _runcompss(runtime: Runtime, folder: Path) -> list[str]:
    configure = [sys.executable, "-m", "compss_train", "configure", f"--units={runtime.units}"]
    files = [f"--folder={folder}", f"--working-dir={folder}/workers"]
    several: list[str] = []
    if runtime.hosts:
        configure.append(f"--hosts={','.join(runtime.hosts)}")
        several = [f"--master_name={runtime.hosts[0]}", "--cpu_affinity=disabled"]
    subprocess.run([*configure, *files], check=True, stdout=subprocess.DEVNULL)
    return [
        *("runcompss", "--lang=python", f"--log_dir={folder}", *several),
        *(f"--project={folder}/project.xml", f"--resources={folder}/resources.xml"),
        f"--python_interpreter={sys.executable}",
        f"--pythonpath={':'.join([str(HERE), str(HERE.parent), *runtime.pythonpath])}",
    ]


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int | None:
    """Run the command; returns its exit code, or ``None`` where it did not end in time."""
    with (
        (folder / "output").open("wb") as output,
        _ended(folder),
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            return process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _ended(folder: Path) -> Iterator[None]:
    """Leave no process behind: workers, which ssh starts, are known by the folder on their command lines."""
    try:
        yield
    finally:
        until = time.monotonic() + GRACE
        while (left := _processes(folder)) and time.monotonic() < until:
            time.sleep(0.2)
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _processes(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # one that has just ended
            if entry.name.isdecimal() and os.fsencode(folder) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def _tail(folder: Path, lines: int = 40) -> str:
    return "\n".join((folder / "output").read_text(errors="replace").splitlines()[-lines:])
