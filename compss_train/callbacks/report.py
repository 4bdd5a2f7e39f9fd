"""A callback that writes the report of a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from compss_train._utils.files import check_writable
from compss_train._utils.validation import check_count
from compss_train.reports import html as report
from compss_train.training.callback import Callback, TrainerProtocol

SHARE = 0.02
"""The most of a fit's time that pages about its rounds take; each takes longer than the one before."""


class Report(Callback):
    """Writes the page of ``compss_train.reports.html`` to an HTML file when a fit ends, by an exception as well.

    With ``every`` it is written after every so many rounds, too, but not so often that it takes more than 2% of the
    time, and browsers that show it read it again every few seconds until the fit has ended. Whoever reads it gets a
    whole page.

    Raises ``ValueError`` unless the name ends in .html and ``every`` is an integer of at least 1 or ``None``, and
    ``OSError`` at the fit's start where the file cannot be written.
    """

    def __init__(self, path: str | Path, every: int | None = None) -> None:
        self.path = Path(path)
        report.check_name(path)
        self.every = None if every is None else check_count("every", every)
        self._rounds = 0
        self._rests_until = 0.0

    def writes_to(self) -> Path:
        """Return the file."""
        return self.path

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Write a report of what the trainer was given, or make sure that one can be written."""
        self._rounds = 0
        check_writable(self.path)
        self._write_running(trainer)

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Write the report if it is time."""
        self._rounds += 1
        is_due = self.every is not None and self._rounds % self.every == 0
        if is_due and time.monotonic() >= self._rests_until:
            self._write_running(trainer)

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Write the report."""
        self._write(trainer, "complete" if trainer.stopped is None else f"stopped: {trainer.stopped}")

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Write the report, which says what has ended the fit."""
        first = (str(error).splitlines() or [""])[0]
        self._write(trainer, f"failed: {type(error).__name__}" + (f": {first[:300]}" if first else ""))

    def _write_running(self, trainer: TrainerProtocol) -> None:
        began = time.monotonic()
        self._write(trainer, "running", refresh=self.every is not None)
        now = time.monotonic()
        self._rests_until = now + (now - began) / SHARE

    def _write(self, trainer: TrainerProtocol, status: str, *, refresh: bool = False) -> None:
        report.write(self.path, trainer.history, trainer.configuration, status=status, refresh=refresh)
