"""The callback that writes the report of a run."""

import time
from pathlib import Path
from typing import Any

from compss_train._utils.files import check_writable
from compss_train._utils.validation import check_count
from compss_train.reports import html
from compss_train.training.callback import Callback, TrainerProtocol
from compss_train.training.stopping import TERMINATED

MAX_SHARE = 0.02
"""Largest share of a fit's time for writing reports; each takes longer than the one before."""
MIN_SECONDS = 5.0
"""Shortest time from one report to the next."""


def status_of(trainer: TrainerProtocol, error: BaseException | None = None) -> str:
    """Return how a fit has ended: ``"complete"``, ``"stopped by ..."``, ``"stopped: ..."`` or ``"failed: ..."``."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C"
    if isinstance(error, SystemExit) and error.code == TERMINATED:
        return "stopped by SIGTERM"
    if error is not None:
        line = (str(error).splitlines() or [""])[0]
        return f"failed: {type(error).__name__}" + (f": {line[:300]}" if line else "")
    return "complete" if trainer.stopped is None else f"stopped: {trainer.stopped}"


class Report(Callback):
    """Writes the report of ``compss_train.reports.html`` to a file at the end of a fit, also after an exception.

    It is also written after every ``every`` rounds unless that is ``None``, but at most every few seconds, and not
    if it would take more than 2% of the time; browsers that show it reload it until the fit has ended. The file is
    replaced atomically.

    Raises ``ValueError`` unless the name ends in .html and ``every`` is an integer of at least 1 or ``None``,
    ``ModuleNotFoundError`` without the extra ``report``, and ``OSError`` at the start of a fit if the file cannot
    be written.
    """

    def __init__(self, path: str | Path, every: int | None = 1) -> None:
        self.path = Path(path)
        html.check_name(path)
        html.load_template()
        self.every = None if every is None else check_count("every", every)
        self._rounds = 0
        self._next_report = 0.0

    def writes_to(self) -> Path:
        """Return the file."""
        return self.path

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Write a report without rounds, which checks that the file can be written."""
        self._rounds = 0
        check_writable(self.path)
        self._write_running(trainer)

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Write the report if it is due."""
        self._rounds += 1
        is_due = self.every is not None and self._rounds % self.every == 0
        if is_due and time.monotonic() >= self._next_report:
            self._write_running(trainer)

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Write the report."""
        self._write(trainer, status_of(trainer))

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Write the report with the exception."""
        self._write(trainer, status_of(trainer, error))

    def _write_running(self, trainer: TrainerProtocol) -> None:
        start = time.monotonic()
        self._write(trainer, "running", refresh=self.every is not None)
        now = time.monotonic()
        self._next_report = now + max(MIN_SECONDS, (now - start) / MAX_SHARE)

    def _write(self, trainer: TrainerProtocol, status: str, *, refresh: bool = False) -> None:
        html.write(self.path, trainer.history, trainer.configuration, status=status, refresh=refresh)
