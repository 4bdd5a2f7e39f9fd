"""What has happened to a source of samples that failed, as warnings and errors tell it."""

from dataclasses import dataclass

from compss_train.exceptions import SimulationError, WorkerTraceback


@dataclass(frozen=True)
class SourceFailure:
    """The failure of a simulation, or of another program that sends samples."""

    summary: str
    """What has happened, in one line."""
    details: str = ""
    """More lines, each after a line break."""
    traceback: str = ""
    place: str = ""
    """The exception and the line, if they are known."""

    def with_reason(self, reason: str) -> SimulationError:
        """Return the error that ends the fit for a reason."""
        error = SimulationError(f"{self.summary}; {reason}{self.details}")
        error.__cause__ = WorkerTraceback(self.traceback) if self.traceback else None
        return error
