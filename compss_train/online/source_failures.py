"""What has happened to a source of samples that failed, as warnings and errors tell it."""

from dataclasses import dataclass
from typing import Self

from compss_train._utils.validation import warn_user
from compss_train.exceptions import SimulationError, WorkerTraceback
from compss_train.online.source_messages import SimulationFailed

FIRST = 3
"""How many simulations tell, if all of them fail, that the others would, too.

At least as many as run at a time.
"""


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

    @classmethod
    def of(cls, simulation: object, failed: SimulationFailed) -> Self:
        """Return the failure of a simulation, whose text names it, by its message."""
        reason, line_break, details = failed.failed.partition("\n")
        return cls(
            f"{simulation} failed: {reason}",
            line_break + details,
            failed.traceback,
            place=failed.place,
        )

    def warn_of_retry(self, failures: int, retries: int) -> None:
        """Warn that the simulation runs again after so many failures."""
        warn_user(f"{self.summary}; retry {failures} of {retries}{self.details}")

    def warn_of_skip(self, failures: int, *, repeats: bool, with_traceback: bool) -> None:
        """Warn that the simulation is given up: it ``repeats`` the failure, or has had too many."""
        why = ", as it would fail again" if repeats else f" after {failures} failures"
        traceback = f"\n{WorkerTraceback(self.traceback).text}" if with_traceback else ""
        warn_user(f"{self.summary}; skipped{why}{self.details}{traceback}")

    def with_reason(self, reason: str) -> SimulationError:
        """Return the error that ends the fit for a reason."""
        error = SimulationError(f"{self.summary}; {reason}{self.details}")
        error.__cause__ = WorkerTraceback(self.traceback) if self.traceback else None
        return error
