"""Why COMPSs has lost a task: which node is silent, and what the jobs that failed have printed."""

import re
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compss_train.engines.compss import runtime
from compss_train.engines.compss.configuration import UNREADABLE, read_ports
from compss_train.exceptions import WorkerLostError

_ANSWER_SECONDS = 2.0
"""Seconds in which a node takes a connection."""

_FILES_SECONDS = 5.0
"""Seconds in which COMPSs writes the files of a job that has failed."""

_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*", re.MULTILINE)
"""The last line of a traceback."""

_FAILED_ON = re.compile(r"Job (\d+), running Task \d+ on worker (\S+), has failed")
"""What COMPSs's log says of a job that failed."""

_LOST_VALUE = re.compile(r"DataNotAvailableException: (\S+)|FileNotFoundError: .*?'([^']*\.IT)'")
"""What is printed if a value of a task is on no node any more: its name, or its file."""

_EMPTY_INPUT = "ValueError: invalid literal for int() with base 10: b''"
"""How a job fails whose input another lost task should have computed."""


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A job of COMPSs that has failed: an attempt to run a task."""

    number: int
    output: Path
    """The file with what it has printed."""
    node: str
    """Where it ran; empty if unknown, as COMPSs writes its log late."""
    printed: str

    @property
    def errors(self) -> list[str]:
        """The last lines of its tracebacks."""
        return _ERROR.findall(self.printed)

    @property
    def place(self) -> str:
        """The node, in words."""
        if self.node:
            return f" on node {self.node}"
        return f' on the node that COMPSs has printed above ("Job {self.number}, running ...")'


def lost_task_error() -> WorkerLostError:
    """Return the error for a value that the runtime will never have."""
    folder = Path(runtime.jvm_options().get("compss.log.dir", ""))
    jobs = _await_failed_jobs(folder)
    causes = [job for job in jobs if _EMPTY_INPUT not in job.errors]
    job = next(iter(causes or jobs), None)
    printed = f" ({job.output})" if job is not None else ""
    return WorkerLostError(f"COMPSs lost a task: {_cause(job)}{printed}")


def _cause(job: FailedJob | None) -> str:
    silent = silent_nodes()
    if silent:
        return (
            f"node {', '.join(silent)} no longer answers: it is down or out of reach, or its "
            "worker was killed. Start the program again on the nodes that are left; with "
            "Checkpoint and resume=True it goes on from its last round"
        )
    if job is None:
        return f"its worker process died{_OF_DEAD_PROCESS}"
    value = _LOST_VALUE.search(job.printed)
    if value is not None:
        return (
            f"a job{job.place} did not find a value of an earlier task, {value[1] or value[2]}: "
            "the node that kept it has restarted, or files of its WorkingDir (project.xml) were "
            "removed. Start the program again; with Checkpoint and resume=True it goes on from "
            "its last round"
        )
    if not job.errors:
        return f"its worker process{job.place} died{_OF_DEAD_PROCESS}"
    advice = f". {_of_missing_module()}" if "ModuleNotFoundError" in job.errors[-1] else ""
    return f"it failed{job.place} with {job.errors[-1]}{advice}"


def _await_failed_jobs(folder: Path) -> list[FailedJob]:
    """Return the jobs that have failed, in order, once COMPSs has written the file of one.

    Only these leave files, and the first one made others fail.
    """
    deadline = time.monotonic() + _FILES_SECONDS
    jobs = [*_failed_jobs(folder)]
    while not jobs and time.monotonic() < deadline:
        time.sleep(0.1)
        jobs = [*_failed_jobs(folder)]
    return sorted(jobs, key=lambda job: job.number)


def _failed_jobs(folder: Path) -> Iterator[FailedJob]:
    log = folder / "runtime.log"
    text = log.read_text(errors="replace") if log.is_file() else ""
    nodes = {int(number): node for number, node in _FAILED_ON.findall(text)}
    for output in (folder / "jobs").glob("job*.out"):
        digits = re.search(r"\d+", output.name)
        number = int(digits[0]) if digits else 0
        yield FailedJob(
            number=number,
            output=output,
            node=nodes.get(number, ""),
            printed=output.read_text(errors="replace"),
        )


def silent_nodes() -> list[str]:
    """Return the nodes of this application on none of whose ports a worker listens."""
    try:
        ports = read_ports(Path(runtime.jvm_options()["compss.resources.file"]))
    except (KeyError, *UNREADABLE):
        return []
    used = {node.name for node in runtime.declared_nodes()}
    return [node for node in ports if node in used and not _answers(node, ports[node])]


def _answers(node: str, ports: range) -> bool:
    for port in ports:
        try:
            socket.create_connection((node, port), _ANSWER_SECONDS).close()
        except ConnectionRefusedError:
            continue
        except OSError:  # the host is down or out of reach
            return False
        return True
    return not ports


def _of_missing_module() -> str:
    interpreter = runtime.jvm_options().get("compss.python.interpreter", "python3")
    return (
        f"Workers run {interpreter} as their node finds it: start runcompss with "
        f"--python_interpreter={sys.executable}, which must be there on all nodes; modules of your "
        "own need --pythonpath=FOLDER"
    )


_OF_DEAD_PROCESS = (
    ", most often because memory ran out, or because more computing units are declared than the "
    "node has cores: COMPSs binds each unit to a core, and tasks beyond the cores die. Declare "
    "fewer units (runcompss/laptop.sh --units, compss-train configure --units), or start "
    "runcompss with --cpu_affinity=disabled. compss-train doctor compares units with cores"
)
