"""``Jobs``: how simulations are submitted to a queue, each as a job that connects by its name."""

import hashlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from compss_train._utils.validation import check_count, check_seconds
from compss_train.exceptions import SimulationError

Command: TypeAlias = str | Sequence[str]

COMMAND_SECONDS = 120.0
"""How long a command of the queue may take."""
_LONGEST_INPUT = 100_000
"""Maximum length of an input as JSON: Linux accepts variables up to 128 KiB."""
_NAME = re.compile(r"simulation-(\d{6,18})-[0-9a-f]{8}")
_BRACES = "{}"
_EXAMPLES = {
    "cancel": ("id", "scancel {}"),
    "find": ("name", "squeue --me -h -o %i --name={}"),
}
"""By the options whose commands must have braces, what these stand for, and an example."""


class QueueError(Exception):
    """A command or function of the queue has failed."""


@dataclass(frozen=True)
class Jobs:
    """How to run each simulation as a job of its own, by the commands of a queue.

    A command is a text, split as a shell does, or a list of arguments; no shell runs it. A function
    is called in another thread than the fit, one at a time.

    Parameters
    ----------
    submit:
        Submits a job: a command whose last line of output is the id of the job, such as
        ``"sbatch --parsable job.sh"``; a cluster after a semicolon is not part of the id. ``{}`` is
        the name of the simulation. The command has the variables COMPSS_TRAIN_ADDRESS,
        COMPSS_TRAIN_TOKEN, COMPSS_TRAIN_NAME and COMPSS_TRAIN_INPUT (the input, as JSON), which the
        job must get: ``SampleSender()`` connects by them. Or a function of a dict of these
        variables that returns the id.
    alive:
        Says which jobs wait or run: a command that prints their ids, separated by blanks or lines,
        such as ``"squeue --me -h -o %i"``. ``{}`` is the ids of all jobs of the study, separated by
        commas; other ids that it prints are ignored. Or a function of the ids that returns those
        that are alive. If it fails, nothing is known, and it is asked again later.
    cancel:
        Cancels a job: a command in which ``{}`` is its id, such as ``"scancel {}"``, or a function
        of the id.
    at_most:
        Maximum number of jobs in the queue at a time, also of those that have sent all their
        samples: a job counts until ``alive`` does not list it any more.
    every:
        Seconds between two calls of ``alive``; 10 by default. A job that two of them do not find,
        and whose samples are not complete, has failed.
    find:
        Says which job has a name: a command that prints its id, in which ``{}`` is the name of the
        simulation, such as ``"squeue --me -h -o %i --name={}"`` with ``submit="sbatch --parsable
        --job-name={} job.sh"``. Or a function of the name that returns a list of ids. A submission
        whose outcome is not known, because the command failed or the program was killed, is then
        not repeated if its job is in the queue. Without it (default), that job may run twice; its
        samples count once.

    Raises ``ValueError`` and ``TypeError`` for other values.
    """

    submit: Command | Callable[[dict[str, str]], Any]
    alive: Command | Callable[[Sequence[str]], Iterable[Any]]
    cancel: Command | Callable[[str], Any]
    at_most: int
    every: float = 10.0
    find: Command | Callable[[str], Iterable[Any]] | None = None

    def __post_init__(self) -> None:
        check_count("at_most", self.at_most)
        check_seconds("every", self.every)
        commands = {"submit": self.submit, "alive": self.alive, "cancel": self.cancel}
        if self.find is not None:
            commands["find"] = self.find
        for name, command in commands.items():
            if not callable(command):
                _check_braces(name, command)

    def submit_job(self, name: str, variables: Mapping[str, str]) -> str:
        """Submit a job and return its id; raise ``QueueError`` if it was refused.

        Raises ``SimulationError`` if there is no id: the job could not be watched.
        """
        if callable(self.submit):
            output = str(_called("submit", self.submit, dict(variables)))
        else:
            output = _run("submit", self.submit, name, variables)
        lines = output.strip().splitlines() or [""]
        job_id = lines[-1].split(";")[0].strip()
        if len(job_id.split()) != 1:
            raise SimulationError(
                f"submit= has submitted a job, and its last line of output is {lines[-1]!r}: it "
                "must be the id of the job alone, as that of sbatch --parsable"
            )
        return job_id

    def living(self, ids: Sequence[str]) -> set[str]:
        """Return which of some jobs wait or run; raise ``QueueError`` if that is not known."""
        if callable(self.alive):
            printed_ids = set(_called("alive", _as_texts, self.alive, ids))
        else:
            printed_ids = set(_run("alive", self.alive, ",".join(ids)).split())
        return printed_ids & set(ids)

    def find_jobs(self, name: str) -> list[str]:
        """Return the ids of the jobs of a name; raise ``QueueError`` if they are not known."""
        if self.find is None:
            return []
        if callable(self.find):
            ids: list[str] = _called("find", _as_texts, self.find, name)
            return ids
        return _run("find", self.find, name).split()

    def cancel_job(self, job_id: str) -> None:
        """Cancel a job; raise ``QueueError`` if that fails, as for one that has ended."""
        if callable(self.cancel):
            _called("cancel", self.cancel, job_id)
        else:
            _run("cancel", self.cancel, job_id)


def _arguments(name: str, command: Command) -> list[str]:
    """Return a command as a list; raise ``TypeError`` or ``ValueError`` for anything else."""
    if isinstance(command, str):
        try:
            arguments = shlex.split(command)
        except ValueError as error:
            raise ValueError(f"{name}={command!r}: {error}") from None
    elif isinstance(command, Sequence) and all(isinstance(word, str) for word in command):
        arguments = list(command)
    else:
        raise TypeError(
            f"{name}={command!r}: give a command, a text or a list of texts, or a function"
        )
    if not arguments:
        raise ValueError(f"{name}={command!r}: give a command that is not empty, or a function")
    return arguments


def _check_braces(name: str, command: Command) -> None:
    """Raise ``TypeError`` or ``ValueError`` for a command that cannot be run, or lacks braces."""
    arguments = _arguments(name, command)
    example = _EXAMPLES.get(name)
    if example is not None and not any(_BRACES in argument for argument in arguments):
        what, words = example
        raise ValueError(
            f"{name}={command!r}: give a command with {{}} in place of the {what}, such as "
            f"{words!r}"
        )


def _run(
    name: str, command: Command, value: str, variables: Mapping[str, str] | None = None
) -> str:
    """Return the output of a command with a value in place of the braces."""
    arguments = [argument.replace(_BRACES, value) for argument in _arguments(name, command)]
    try:
        process = subprocess.run(
            arguments,
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QueueError(f"{name}={command!r} has failed: {error}") from None
    if process.returncode:
        output = (process.stderr.strip() or process.stdout.strip())[-1000:]
        raise QueueError(f"{name}={command!r} has ended with status {process.returncode}: {output}")
    return process.stdout


def _called(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        raise QueueError(f"{name}= has raised {type(error).__name__}: {error}") from error


def _as_texts(function: Callable[[Any], Iterable[Any]], argument: Any) -> list[str]:
    """Return what a function lists, as texts: an error may come with any item."""
    return [str(item) for item in function(argument)]


def input_text(value: Any) -> str:
    """Return an input as the JSON that its job gets; raise ``ValueError`` for one that is none."""
    try:
        text = json.dumps(value, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"the input {value!r:.200} cannot be given to a job: {error}; give numbers, text, "
            "arrays, or lists and dicts of these"
        ) from None
    if len(text) > _LONGEST_INPUT:
        raise ValueError(
            f"an input has {len(text)} characters as JSON, and a job gets at most "
            f"{_LONGEST_INPUT}: give the name of a file that has it"
        )
    return text


def _plain(value: Any) -> Any:
    """Return an array, tensor or number of numpy as lists and numbers."""
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"it has a {type(value).__name__}")


def job_name(number: int, text: str, address: str) -> str:
    """Return the name by which the job of a simulation connects, which tells its input, too.

    So a job of an earlier program cannot send as the simulation of another input. The address is
    that of the study: two that run at the same time have different names in the queue.
    """
    digest = hashlib.sha256(f"{address} {text}".encode()).hexdigest()
    return f"simulation-{number:06d}-{digest[:8]}"


def number_of(name: object) -> int | None:
    """Return the number of the simulation whose job has this name; ``None`` for other names."""
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    return None if match is None else int(match[1])
