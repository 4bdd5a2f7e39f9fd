"""``RunFolder``: the files in the folder of a run, and how its history is read."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compss_train.cli.run_files.errors import RunFileError
from compss_train.reports.history import History

RUN_FILE = "config.toml"


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run's files."""

    path: Path

    @property
    def run_file(self) -> Path:
        """The run file with all settings."""
        return self.path / RUN_FILE

    @property
    def configuration(self) -> Path:
        """``trainer.configuration`` at the start of the fit: all options, versions and the machine, as JSON."""
        return self.path / "configuration.json"

    @property
    def history(self) -> Path:
        """The history as JSON lines, one a round."""
        return self.path / "history.jsonl"

    @property
    def parameters(self) -> Path:
        """The final parameters; after an interrupted fit, those of the last complete round."""
        return self.path / "parameters.safetensors"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def report(self) -> Path:
        """The HTML page with curves and the timeline of the workers."""
        return self.path / "report.html"

    @property
    def csv(self) -> Path:
        """The history as CSV."""
        return self.path / "history.csv"

    @property
    def tensorboard(self) -> Path:
        """The log folder of TensorBoard."""
        return self.path / "tensorboard"

    @property
    def has_results(self) -> bool:
        """Whether a run has completed a round here."""
        rounds = self.history.exists() and self.history.stat().st_size > 0
        return rounds or self.parameters.exists() or self.has_checkpoints

    @property
    def has_checkpoints(self) -> bool:
        """Whether the folder holds a checkpoint."""
        return any(self.checkpoints.glob("round-*"))

    def existing_files(self) -> list[Path]:
        """Return the files and folders that exist."""
        files = [self.parameters, self.history, self.csv, self.report, self.run_file, self.configuration]
        return [path for path in (*files, self.checkpoints, self.tensorboard) if path.exists()]

    def clear(self) -> None:
        """Remove the files of a run, and no others."""
        for path in self.existing_files():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def read_history(path: Path) -> tuple[Path, History]:
    """Return the history in a file of JSON lines or in a run's folder, after the path of the file.

    Raises ``RunFileError`` for an empty history, ``BadFileError`` and ``OSError`` for a file that cannot be read.
    """
    file = RunFolder(path).history if path.is_dir() else path
    history = History.load(file)
    if not history:
        raise RunFileError(f"{file} has no round yet")
    return file, history


def read_configuration(folder: Path) -> dict[str, Any]:
    """Return the trainer's configuration that a run has saved, empty if the folder does not have it."""
    path = RunFolder(folder).configuration
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
