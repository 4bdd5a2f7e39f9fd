"""Progress of a fit: a bar in terminals and notebooks, a line per round elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TextIO

from tqdm.auto import tqdm

from compss_train.reports.records import measured_names
from compss_train.training.callback import Callback, TrainerProtocol


class _Progress(Callback):
    """Prints the checkpoint from which a fit is resumed and why it stopped, by default on standard error."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._last_round: int | None = None

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Print the checkpoint from which the fit is resumed."""
        self._last_round = None
        if trainer.resumed_from is not None:
            left = "; nothing is left to train" if total_samples == 0 else ""
            self._print(f"resumed from {trainer.resumed_from}{left}")

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Remember the number of the round."""
        self._last_round = record["round"]

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Print why the fit was stopped, if it was."""
        if trainer.stopped is not None:
            after = "no round" if self._last_round is None else f"round {self._last_round}"
            self._print(f"stopped after {after}: {trainer.stopped}")

    def _print(self, line: str) -> None:
        print(line, file=self._file or sys.stderr, flush=True)


class ProgressBar(_Progress):
    """A tqdm bar over samples with epoch, loss, metrics and samples/s, by default on standard error."""

    _bar: tqdm[Any] | None = None

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Show an empty bar."""
        super().on_fit_start(trainer, total_samples)
        self._bar = tqdm(total=total_samples, unit=" samples", unit_scale=True, file=self._file)

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Advance the bar by the samples of the round."""
        super().on_round_end(trainer, record)
        if self._bar is None:
            return
        self._bar.set_postfix({**_position(record), **_formatted_measures(record)}, refresh=False)
        self._bar.update(record["samples"])

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Close the bar, and print why the fit was stopped, if it was."""
        self._close()
        super().on_fit_end(trainer)

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Close the bar."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class RoundLines(_Progress):
    """Prints a line per round, by default on standard error; suited to log files."""

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Print the line."""
        super().on_round_end(trainer, record)
        shown = {"round": record["round"], **_position(record), **_formatted_measures(record)}
        speed = f"{record['samples_per_second']:,.0f} samples/s"
        self._print(", ".join([*(f"{name} {value}" for name, value in shown.items()), speed]))


def with_progress(callbacks: Sequence[Callback], progress: bool) -> tuple[Callback, ...]:
    """Return the callbacks, with one that shows progress appended if ``progress`` and none of them does."""
    if not progress or any(isinstance(callback, _Progress) for callback in callbacks):
        return tuple(callbacks)
    return (*callbacks, ProgressBar() if _shows_bars() else RoundLines())


def _shows_bars() -> bool:
    """Return whether standard error is a notebook or a terminal, of a width that shows a bar."""
    if "ipykernel" in sys.modules:
        return True
    if not sys.stderr.isatty():
        return False
    with suppress(OSError):  # pseudo-terminals of tests and editors
        return os.get_terminal_size(sys.stderr.fileno()).columns > 0
    return True


def _formatted_measures(record: dict[str, Any]) -> dict[str, str]:
    return {name: f"{record[name]:.4f}" for name in measured_names(record) if isinstance(record[name], float)}


def _position(record: dict[str, Any]) -> dict[str, Any]:
    """Return the progress of a fit: the epoch, or for an online fit the state of buffers and simulations."""
    if "received" not in record:
        return {"epoch": record["epoch"]}
    return {
        "received": record["received"],
        "buffer": record["buffer"],
        "unseen": f"{record['unseen']:.0%}",
        "repeated": f"{record['repetitions_mean']:.1f}",
        "simulations": record["simulations"]["running"],
        "batches/s": f"{record['batches_per_second']:.0f}",
    }
