"""Solvers as they are: ``Solver`` runs an executable per input, and makes samples of its fields."""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from compss_train._utils.validation import check_count
from compss_train.data.values import check_sample
from compss_train.engines.nodes import Node
from compss_train.online import solver_output
from compss_train.online.solver_listener import SolverListener
from compss_train.online.solver_messages import SolverFields
from compss_train.online.solver_process import SolverProcess

if TYPE_CHECKING:
    from compss_train.data.block import Block

VARIABLE = "COMPSS_TRAIN_SOLVER"
"""The environment variable with the address for the solver."""
_HOST_FILES = {"PBS_NODEFILE", "OAR_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE"}
_OUTPUT = "output"
"""What stands for the file of its output in a command."""
_END_SECONDS = 10.0
"""How long a program may take to end after its rank 0 has disconnected without saying so."""


class SteppedX(NamedTuple):
    """What a simulation yields for x alone with its time step."""

    step: int
    x: Block


@dataclass(frozen=True)
class Solver:
    """A ``simulate`` of ``Simulations``: an executable that sends fields with ``compss_train.h``.

    Parameters
    ----------
    command:
        The executable and its arguments, such as ``["mpirun", "-n", "2", "./heat", "{0}",
        "{name}"]``. ``{0}`` is the first item of an input that is a sequence, ``{name}`` a key of
        one that is a dict, ``{}`` a single value; without any of these, inputs are ``None``.
        Numbers are written in full, as Python's ``repr`` does; ``{0:.3f}`` formats one, ``{{`` is a
        brace.
    sample:
        A function of the input, the number of the time step, counted from 0, and a dict of its
        fields: arrays of float64 by name, those of MPI ranks put together in the order of ranks,
        with texts sent with them in its attribute ``metadata``. It returns (x, y), or x alone, or
        ``None`` to leave the time step out. It runs in another process.
    cpus:
        How many cores a run takes, 1 by default; they are reserved with the engine.
    environment:
        Variables to set for the executable besides those of the process that starts it.
    output:
        A folder, on a file system that all nodes share, for what the executable writes to its
        standard output and error: ``simulation-000003.out`` for simulation 3, and where it runs
        again ``simulation-000003-run-2.out``. In the command ``{output}`` is that path without
        ``.out``, for launchers that write a file for each rank (``srun --output={output}.%t``,
        ``mpirun --output-filename {output}.ranks``). ``None`` (default): it goes to the output of
        the process that starts it.

    The executable runs in the folder in which the program made this object. It connects to the
    address in ``COMPSS_TRAIN_SOLVER``: a socket file, or TCP with a token in a job on several nodes
    and with ``environment={"COMPSS_TRAIN_SOLVER": "tcp"}``. It has failed, and runs again as any
    simulation, if it ends otherwise than with ``compss_train_finalize`` and exit status 0, or sends
    what makes a sample with NaN or infinite values; the warning has its last lines of output. All
    its processes end with the task that runs it.

    Raises ``ValueError`` and ``TypeError`` for other arguments.
    """

    command: Sequence[str | os.PathLike[str]]
    sample: Callable[[Any, int, SolverFields], Any]
    cpus: int = field(default=1, kw_only=True)
    environment: Mapping[str, str] | None = field(default=None, kw_only=True, repr=False)
    output: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    folder: str = field(default_factory=os.getcwd, init=False)
    """Where the executable runs."""

    def __post_init__(self) -> None:
        is_text = isinstance(self.command, str | bytes)
        if is_text or not isinstance(self.command, Sequence) or not self.command:
            raise TypeError(
                f"command={self.command!r}: give a list of an executable and its arguments"
            )
        environment: object = {} if self.environment is None else self.environment
        if not isinstance(environment, Mapping):
            raise TypeError(
                f"environment={environment!r}: give a dict of variables, such as "
                '{"OMP_NUM_THREADS": "1"}'
            )
        _check_texts("command", self.command, "inputs are written {0}")
        _check_texts("environment", environment, "give a dict of texts")
        _check_texts("environment", environment.values(), "give a dict of texts")
        if any(not name or "=" in name for name in environment):
            raise ValueError(f"environment={environment!r}: a name is not empty, and has no '='")
        if not callable(self.sample):
            raise TypeError(
                f"sample={self.sample!r}: give a function of (input, step, fields) "
                "that returns (x, y)"
            )
        check_count("cpus", self.cpus)
        if self.output is not None:
            object.__setattr__(self, "output", _absolute_folder("output", self.output))

    def arguments(self, value: Any, log: Path | None = None) -> list[str]:
        """Return the command for an input, whose output goes to the file ``log``.

        Raises ``ValueError`` if it does not fit, or if the command reads nothing of it.
        """
        texts = [os.fspath(argument) for argument in self.command]
        output: str | None = None
        if self.output is not None:
            path = Path(self.output, "simulation") if log is None else log.with_suffix("")
            output = str(path)
        arguments = [_filled(text, value, output) for text in texts]
        names = {name for text in texts for name in _names_in(text)}
        if output is not None and not _has_key(value, _OUTPUT):
            names.discard(_OUTPUT)
        if value is not None and not names:
            raise ValueError(
                f"command={texts!r} reads nothing of its inputs: write {{}} where the value is "
                "to stand, {0} for the first item or {name} for a key; a solver that reads "
                "nothing has inputs of None"
            )
        return arguments

    def __call__(self, value: Any) -> Iterator[Any]:
        """Run the executable for an input, and yield samples: (time step, x, y), or ``SteppedX``.

        Raises ``ChildProcessError`` if the executable fails or sends what makes no sample, and
        ``ValueError`` if the command does not fit the input.
        """
        with closing(self.run(value)) as samples:
            for sample in samples:
                if sample is not None:
                    yield sample

    def run(
        self,
        value: Any,
        steps: int | None = None,
        *,
        simulation: int | None = None,
        on_start: Callable[[SolverProcess], None] = lambda process: None,
    ) -> Generator[Any]:
        """Yield the same, and ``None`` for a time step that ``sample`` leaves out.

        The file of its output has the number of the ``simulation``. ``on_start`` gets the process.

        Raises ``ChildProcessError`` also if the executable sends fewer than ``steps`` time steps,
        unless that is ``None``.
        """
        self.arguments(value)  # before there is a file for its output
        log: Path | None = None
        if self.output is not None:
            log = solver_output.new_file(os.fspath(self.output), simulation)
        command = self.arguments(value, log)
        environment = dict(self.environment or {})
        may_leave_node = _may_leave_this_node({**os.environ, **environment})
        with ExitStack() as stack:
            listener = stack.enter_context(SolverListener(tcp=may_leave_node))
            environment[VARIABLE] = listener.address
            process = stack.enter_context(SolverProcess(command, environment, self.folder, log=log))
            on_start(process)
            sent = 0
            for step, fields in enumerate(_steps(listener, process)):
                sample = self.sample(value, step, fields)
                yield None if sample is None else _checked(sample, step, process)
                sent += 1
            if steps is not None and sent < steps:
                raise process.failure(f"ended after {sent} of {steps} time steps")


def _check_texts(option: str, texts: Iterable[Any], advice: str) -> None:
    """Raise ``TypeError`` or ``ValueError`` for what no program can be started with."""
    for text in texts:
        if not isinstance(text, str | os.PathLike):
            raise TypeError(f"{option}= has texts only, not {text!r}; {advice}")
        path = os.fspath(text)
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            is_valid = False
        else:
            is_valid = "\0" not in path
        if not is_valid:
            raise ValueError(
                f"{option}= has {path!r}: the system takes no text with this character"
            )


def _checked(sample: Any, step: int, process: SolverProcess) -> Any:
    """Return a sample with its time step; raise an error for what is no sample, or not finite."""
    check_sample("sample= returned", sample)
    parts = sample if isinstance(sample, tuple) else (sample,)
    if len(parts) not in (1, 2):
        raise TypeError(f"sample= returned a tuple of {len(parts)}; it returns (x, y), x, or None")
    for name, part in zip("xy", parts, strict=False):
        if not _is_finite(part):
            raise process.failure(f"sent time step {step}, whose {name} has NaN or infinite values")
    return (step, *parts) if len(parts) == 2 else SteppedX(step, *parts)


def _names_in(argument: str) -> list[str]:
    """Return what an argument of the command has in its braces."""
    return [name for _, name, *_ in string.Formatter().parse(argument) if name is not None]


def _absolute_folder(option: str, folder: object) -> str:
    """Return the path of a folder, which may not exist yet, as all processes find it.

    Raises ``TypeError`` and ``ValueError`` for anything else.
    """
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"{option}={folder!r}: give the path of a folder")
    path = os.fspath(folder)
    if not isinstance(path, str) or not path or "://" in path or "\0" in path:
        raise ValueError(
            f"{option}={path!r}: give the path of a folder on a file system that all nodes share"
        )
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"{option}={path!r} exists and is no folder; give another path")
    return os.path.abspath(path)


def _has_key(value: Any, name: str) -> bool:
    return isinstance(value, Mapping) and name in value


def shared_cores(count: int, cpus: int, nodes: Sequence[Node], sharers: str = "") -> str | None:
    """Return what to say about so many simulations of so many cores each.

    ``None`` if there is room, or if the nodes are unknown.
    """
    cores_of_nodes = sum(node.cpus for node in nodes)
    if not nodes or count * cpus <= cores_of_nodes:
        return None
    return (
        f"{count} simulations of {cpus} cores each share {cores_of_nodes} cores{sharers}: give a "
        "smaller count= or cpus=; if ranks of MPI wait for one another, let them yield (Open MPI: "
        "mpirun --mca mpi_yield_when_idle 1)"
    )


def _filled(argument: str, value: Any, output: str | None) -> str:
    """Return an argument of the command with parts of an input in place of the braces.

    A key of the input comes before the file of the output, if it has its name.
    """
    if hasattr(value, "tolist"):  # an array or a tensor
        value = value.tolist()
    items: list[Any] = []
    named: dict[str, Any] = {} if output is None else {_OUTPUT: output}
    if isinstance(value, Mapping):
        named |= {str(name): _plain(item) for name, item in value.items()}
    else:
        items = list(value) if isinstance(value, list | tuple) else [value]
    try:
        if len(items) > 1 and "" in _names_in(argument):
            raise ValueError(f"{{}} is a single value, and {{0}} the first of {len(items)}")
        return argument.format(*map(_plain, items), **named)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        problem = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        if error.args == (_OUTPUT,):
            problem += ", and {output} needs Solver(..., output=folder)"
        raise ValueError(f"{argument!r} in command= does not fit the input: {problem}") from error


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _is_finite(part: Any) -> bool:
    """Return whether an array, tensor or number has no NaN and no infinite value."""
    if hasattr(part, "isfinite"):  # a tensor, of any dtype and device
        return bool(part.isfinite().all())
    array = np.asarray(part)
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _may_leave_this_node(environment: Mapping[str, str]) -> bool:
    """Return whether MPI ranks may run on other nodes, as the user or a batch system says."""
    has_several_nodes = environment.get("SLURM_JOB_NUM_NODES", "1") != "1"
    has_hosts = not _HOST_FILES.isdisjoint(environment)
    return has_several_nodes or has_hosts or environment.get(VARIABLE) == "tcp"


def _steps(listener: SolverListener, process: SolverProcess) -> Iterator[SolverFields]:
    """Iterate over the time steps of a solver; raise ``ChildProcessError`` unless it ends well."""
    try:
        with listener.accept(process) as messages:
            yield from messages.steps()
    except ValueError as error:
        raise process.failure(str(error)) from None
    if not messages.ended and not process.status(_END_SECONDS):
        raise process.failure(
            "has disconnected without compss_train_finalize: it may not have sent everything"
        )
    if process.status(None):
        raise process.failure()
