"""How far a fit is, for the eye: a bar in terminals and notebooks, a line a round elsewhere."""

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
    """Tells where a resumed fit goes on, and why one has stopped; on standard error by default."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._last: int | None = None
        """The last round of this fit."""

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Tell of a checkpoint that the fit goes on from."""
        self._last = None
        if trainer.resumed_from is not None:
            left = "; nothing is left to train" if total_samples == 0 else ""
            self._print(f"resumed from {trainer.resumed_from}{left}")

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Take note of the round."""
        self._last = record["round"]

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Tell why there are no more rounds, where the fit was stopped."""
        if trainer.stopped is not None:
            after = "no round" if self._last is None else f"round {self._last}"
            self._print(f"stopped after {after}: {trainer.stopped}")

    def _print(self, line: str) -> None:
        print(line, file=self._file or sys.stderr, flush=True)


class ProgressBar(_Progress):
    """A tqdm bar over samples that shows epoch, loss, metrics and samples/s; on standard error by default."""

    _bar: tqdm[Any] | None = None

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Show an empty bar."""
        super().on_fit_start(trainer, total_samples)
        self._bar = tqdm(total=total_samples, unit=" samples", unit_scale=True, file=self._file)

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Move the bar by the round's samples."""
        super().on_round_end(trainer, record)
        if self._bar is None:
            return
        self._bar.set_postfix({**_where(record), **_measured(record)}, refresh=False)
        self._bar.update(record["samples"])

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Leave the bar as it is, and tell why it is not full."""
        self._close()
        super().on_fit_end(trainer)

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Leave the bar where it stopped."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class RoundLines(_Progress):
    """Writes a line a round, on standard error by default: for logs, where a bar would be a mess."""

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Write the line."""
        super().on_round_end(trainer, record)
        shown = {"round": record["round"], **_where(record), **_measured(record)}
        speed = f"{record['samples_per_second']:,.0f} samples/s"
        self._print(", ".join([*(f"{name} {value}" for name, value in shown.items()), speed]))


def with_progress(callbacks: Sequence[Callback], progress: bool) -> tuple[Callback, ...]:
    """Return the callbacks, and one that shows progress unless there is one or none is wanted."""
    if not progress or any(isinstance(callback, _Progress) for callback in callbacks):
        return tuple(callbacks)
    return (*callbacks, ProgressBar() if _shows_bars() else RoundLines())


def _shows_bars() -> bool:
    """Tell whether standard error is a notebook's or a terminal; one of no width at all shows nothing of a bar."""
    if "ipykernel" in sys.modules:
        return True
    if not sys.stderr.isatty():
        return False
    with suppress(OSError):  # from what stands for a terminal, in tests or in editors
        return os.get_terminal_size(sys.stderr.fileno()).columns > 0
    return True


def _measured(record: dict[str, Any]) -> dict[str, str]:
    return {name: f"{record[name]:.4f}" for name in measured_names(record) if isinstance(record[name], float)}


def _where(record: dict[str, Any]) -> dict[str, Any]:
    """Return how far a fit is: the epoch, or of an online fit what arrives and is held."""
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
