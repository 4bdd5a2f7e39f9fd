"""The exceptions of this package. Invalid arguments raise ``ValueError`` and ``TypeError``."""

import linecache
import queue
import re
from pathlib import Path


class NotBuiltError(RuntimeError):
    """The trainer was used before ``build``; call ``trainer.build(net, optimizer, loss)`` first."""


class DivergedError(ArithmeticError):
    """A loss or parameter became NaN or infinite; lower the learning rate or check the data."""

    sample: tuple[int, int, str] | None = None
    """Simulation, step, and ``"x"`` or ``"y"`` of the first one that an online fit got."""


class WorkerLostError(RuntimeError):
    """A task or value is lost: its process died in every attempt, or a full node had no room.

    Processes die most often because they run out of memory.
    """


class ScriptLoadingError(RuntimeError):
    """Training was started while PyCOMPSs imports the script, which it only runs afterwards."""


class EngineClosedError(RuntimeError):
    """The engine was shut down while a call waited for it, or was used afterwards."""


class TaskCancelledError(RuntimeError):
    """A value was asked for that is gone: the fit that made it has failed."""

    def __init__(self) -> None:
        super().__init__(
            "the fit that made this value has failed: its tasks were cancelled, its values freed"
        )


class TrainingEndedError(RuntimeError):
    """Samples were sent after the end of training."""


class SimulationError(RuntimeError):
    """No simulation has given samples, none is complete, or a sample does not fit others."""


class BadFileError(ValueError):
    """A file cannot be read or has invalid contents.

    ``file`` is its name, ``reason`` the problem.
    """

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, reason)
        self.file = file
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.file} {self.reason}"


class BadCheckpointError(ValueError):
    """A checkpoint is incomplete, damaged or of another format.

    ``path`` is its folder, ``reason`` the problem. ``good`` is the latest valid checkpoint in the
    same folder, from which a fit can resume, or ``None``. ``damaged`` is false for a checkpoint in
    another version of the format.
    """

    def __init__(self, path: Path, reason: str, *, damaged: bool = True) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason
        self.damaged = damaged
        self.good: Path | None = None

    def __str__(self) -> str:
        hint = "" if self.good is None else f"; {self.good} is valid: resume from it instead"
        return f"the checkpoint {self.path} cannot be used: {self.reason}{hint}"


class WorkerTraceback(Exception):  # noqa: N818 - a cause to print, not an error to catch
    """The traceback of a task's exception as text.

    It is the cause of that exception when the coordinator raises it. Lines of source that the
    worker did not have, such as a notebook's, are those of this process.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = re.sub(r'(  File "(.+)", line (\d+), in .+\n)(?!    )', self._with_source, text)

    @staticmethod
    def _with_source(frame: re.Match[str]) -> str:
        source = linecache.getline(frame[2], int(frame[3])).strip()
        return f"{frame[1]}    {source}\n" if source else frame[1]

    def __str__(self) -> str:
        return f"\n{self.text.rstrip()}"


class BufferFullError(queue.Full):
    """There was no space for a put within the timeout, or can never be."""

    def __init__(self, reason: str, stored: int = 0, *, final: bool = False) -> None:
        super().__init__(reason)
        self.stored = stored
        """Number of samples of ``put_many`` that had been stored, counted from the first."""
        self.final = final
        """Whether there can never be space."""


class ReceptionOverError(BufferFullError):
    """A put came after, or was waiting when, reception was over."""


class BufferDrainedError(queue.Empty):
    """A get found the buffer empty after the end of reception: no more samples will come."""


class ParameterServerClosedError(RuntimeError):
    """The parameter server was closed; make another one."""
