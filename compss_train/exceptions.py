"""The errors that are this package's own; wrong arguments are plain ``ValueError`` and ``TypeError``."""

import queue
from pathlib import Path


class NotBuiltError(RuntimeError):
    """The trainer was used before ``build``; call ``trainer.build(net, optimizer, loss)`` first."""


class DivergedError(ArithmeticError):
    """A worker's loss became NaN or infinite; lower the learning rate or check the data."""


class WorkerLostError(RuntimeError):
    """A task's process died each time it was run, most often because memory ran out."""


class ScriptLoadingError(RuntimeError):
    """PyCOMPSs is only importing the script, which it runs afterwards; nothing can be trained yet."""


class EngineClosedError(RuntimeError):
    """The engine was shut down while something still waited for it, or was used afterwards."""


class TrainingEndedError(RuntimeError):
    """Samples were to be sent, but training has ended and wants no more of them."""


class SimulationError(RuntimeError):
    """Simulations failed, each as often as it may, before any sample came from one."""


class BadFileError(ValueError):
    """A file cannot be read, or does not hold what it should. ``file`` is its name, ``reason`` what is wrong."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, reason)
        self.file = file
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.file} {self.reason}"


class BadCheckpointError(ValueError):
    """A checkpoint is incomplete, damaged or of another format. ``path`` is where it is, ``reason`` what is wrong.

    ``good`` is the newest good one beside it, which can be resumed from instead, or ``None``.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason
        self.good: Path | None = None

    def __str__(self) -> str:
        hint = "" if self.good is None else f"; {self.good} is good: resume from that folder to go on from there"
        return f"the checkpoint {self.path} cannot be used: {self.reason}{hint}"


class WorkerTraceback(Exception):  # noqa: N818 - a cause to print, not an error to catch
    """The traceback of a task's exception as text: the cause of that exception where the coordinator raises it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


class BufferFullError(queue.Full):
    """A put found no room in time, or never can."""

    def __init__(self, reason: str, stored: int = 0) -> None:
        super().__init__(reason)
        self.stored = stored
        """How many of the samples given to ``put_many`` were stored before, the first ones."""


class ReceptionOverError(BufferFullError):
    """A put came after, or was waiting when, reception was over."""


class BufferDrainedError(queue.Empty):
    """A get found nothing held and nothing to come: reception is over."""
