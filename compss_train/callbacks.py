"""Callbacks: what is told how a fit goes. They run in the coordinator, between rounds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tqdm.auto import tqdm

from compss_train.metrics import BOOKKEEPING

if TYPE_CHECKING:
    from compss_train.trainer import DistributedTrainer


class Callback:
    """Does nothing; override what you need. A hook that raises ends the fit with its exception."""

    def on_fit_start(self, trainer: DistributedTrainer, total_samples: int | None) -> None:
        """Before the first round; ``total_samples`` is what will be trained in all, ``None`` where nobody knows."""

    def on_round_end(self, trainer: DistributedTrainer, record: dict[str, Any]) -> None:
        """After a round; ``record`` is its entry in ``trainer.history``."""

    def on_fit_end(self, trainer: DistributedTrainer) -> None:
        """After the last round, with the final parameters in the trainer."""

    def on_exception(self, trainer: DistributedTrainer, error: BaseException) -> None:
        """When a fit ends by an exception, Ctrl-C included; it is raised afterwards."""


@contextmanager
def telling(
    callbacks: Sequence[Callback], trainer: DistributedTrainer, total_samples: int | None
) -> Iterator[None]:
    """Tell the callbacks of a fit's start and of its end or exception; the rounds are told by who runs them."""
    try:
        for callback in callbacks:
            callback.on_fit_start(trainer, total_samples)
        yield
        for callback in callbacks:
            callback.on_fit_end(trainer)
    except BaseException as error:
        for callback in callbacks:
            callback.on_exception(trainer, error)
        raise


class ProgressBar(Callback):
    """A tqdm bar over samples that shows epoch, loss, metrics and samples/s; for terminals and notebooks."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._bar: tqdm[Any] | None = None

    def on_fit_start(self, trainer: DistributedTrainer, total_samples: int | None) -> None:
        """Show an empty bar."""
        self._bar = tqdm(total=total_samples, unit=" samples", unit_scale=True, file=self._file)

    def on_round_end(self, trainer: DistributedTrainer, record: dict[str, Any]) -> None:
        """Move the bar by the round's samples."""
        if self._bar is None:
            return
        shown = {name: f"{record[name]:.4f}" for name in measured_names(record)}
        self._bar.set_postfix({**_where(record), **shown}, refresh=False)
        self._bar.update(record["samples"])

    def on_fit_end(self, trainer: DistributedTrainer) -> None:
        """Leave the bar as it is."""
        self._close()

    def on_exception(self, trainer: DistributedTrainer, error: BaseException) -> None:
        """Leave the bar where it stopped."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


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


class JsonLines(Callback):
    """Appends each round's record to a file as one line of JSON, as soon as the round ends."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_round_end(self, trainer: DistributedTrainer, record: dict[str, Any]) -> None:
        """Append the record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def measured_names(record: dict[str, Any]) -> list[str]:
    """Return the names of a record's losses and metrics, those of validation last."""
    return [name for name in record if name not in BOOKKEEPING]
