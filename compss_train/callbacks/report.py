"""``Report``: writes the report of a run while it is trained, and how a fit has ended."""

import time
from pathlib import Path
from typing import Any

from compss_train._utils import files
from compss_train.reports import html
from compss_train.training.callback import Callback
from compss_train.training.stopping import status_of
from compss_train.training.trainer_protocol import TrainerProtocol

MAX_SHARE = 0.02
"""Maximum share of a fit's time for writing reports; each takes longer than the previous one."""
MIN_SECONDS = 5.0
"""Minimum time, in seconds, between two reports."""


class Report(Callback):
    """Writes the report of a fit to a file at its end, also after an exception.

    It is the page of ``compss_train.reports.html``. During the fit it is written after a round, but
    only every few seconds, and taking at most 2% of the time. Browsers reload the page until the
    fit has ended. The file is replaced atomically.

    Raises ``ValueError`` unless the name ends in .html, ``ModuleNotFoundError`` without the extra
    ``report``, and ``OSError`` at the start of a fit if the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        html.check_name(path)
        html.load_template()
        self._next_report = 0.0

    def writes_to(self) -> Path:
        """Return the file."""
        return self.path

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Write a report without rounds, which checks that the file can be written."""
        self.path = self.path.absolute()  # wherever the program is when rounds end
        files.check_writable(self.path)
        self._write_running(trainer)

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Write the report if it is due."""
        if time.monotonic() >= self._next_report:
            self._write_running(trainer)

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Write the report."""
        self._write(trainer, status_of(trainer.stopped))

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Write the report with the exception."""
        self._write(trainer, status_of(trainer.stopped, error))

    def _write_running(self, trainer: TrainerProtocol) -> None:
        start = time.monotonic()
        self._write(trainer, "running")
        now = time.monotonic()
        self._next_report = now + max(MIN_SECONDS, (now - start) / MAX_SHARE)

    def _write(self, trainer: TrainerProtocol, status: str) -> None:
        html.write(
            self.path,
            trainer.history,
            trainer.configuration,
            status=status,
            refresh=status == "running",
        )
