"""The callback that writes the history for TensorBoard."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compss_train._utils.imports import import_optional
from compss_train.reports.records import measured_numbers
from compss_train.training.callback import Callback, TrainerProtocol

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


_RATES = ("samples_per_second", "batches_per_second")


class TensorBoard(Callback):
    """Writes each round to a folder for ``tensorboard --logdir FOLDER``, by round and by wall time.

    Losses, metrics (``recall/0`` of a list) and samples/s have their names; measures of each worker and its seconds
    of training are below ``workers/``; the configuration is a text. A second fit continues the same charts; rounds
    that a resumed fit trains again are replaced. Raises ``ModuleNotFoundError`` without the extra ``tensorboard``,
    and ``OSError`` at the start of a fit if the folder cannot be created.
    """

    def __init__(self, folder: str | Path) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            import_optional("tensorboard", extra="tensorboard", needed_by="TensorBoard")
        self.folder = Path(folder)
        self._writer: SummaryWriter | None = None

    def writes_to(self) -> Path:
        """Return the folder."""
        return self.folder

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Start a new file in the folder, and write the configuration."""
        module = import_optional("torch.utils.tensorboard", extra="tensorboard", needed_by="TensorBoard")
        self.folder.mkdir(parents=True, exist_ok=True)
        first = len(trainer.history)
        self._writer = module.SummaryWriter(str(self.folder), purge_step=first or None)
        text = json.dumps(trainer.configuration, indent=4)
        self._writer.add_text("configuration", "".join(f"    {line}\n" for line in text.splitlines()), first)
        self._writer.flush()

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Write the round."""
        if self._writer is None:
            return
        for name, value in _scalars(record).items():
            self._writer.add_scalar(name, value, record["round"], walltime=record["ended"])
        self._writer.flush()

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Close the file."""
        self._close()

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Close the file."""
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _scalars(record: dict[str, Any]) -> dict[str, float]:
    scalars = _tagged_measures(record) | {name: record[name] for name in _RATES if name in record}
    for own in record["workers"]:
        seconds = {"seconds": own["seconds"]} if "seconds" in own else {}
        measured = _tagged_measures(own) | seconds
        scalars |= {f"workers/{name}/{own['worker']}": value for name, value in measured.items()}
    return scalars


def _tagged_measures(record: dict[str, Any]) -> dict[str, float]:
    return {name.replace("[", "/").replace("]", ""): value for name, value in measured_numbers(record).items()}
