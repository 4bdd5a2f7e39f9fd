"""The folder of a run: what is in it, by which names."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

CONFIGURATION = "config.toml"


@dataclass(frozen=True)
class RunFolder:
    """Where the files of a run are."""

    path: Path

    @property
    def configuration(self) -> Path:
        """The run file with all settings."""
        return self.path / CONFIGURATION

    @property
    def described(self) -> Path:
        """``trainer.configuration`` when the fit began: all options, versions and the machine."""
        return self.path / "configuration.json"

    @property
    def history(self) -> Path:
        """One line of JSON a round."""
        return self.path / "history.jsonl"

    @property
    def parameters(self) -> Path:
        """The final parameters, or those of the last complete round of a fit that has ended early."""
        return self.path / "parameters.safetensors"

    @property
    def checkpoints(self) -> Path:
        """A folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def report(self) -> Path:
        """A page with curves and the workers' timeline."""
        return self.path / "report.html"

    @property
    def table(self) -> Path:
        """The history as a table."""
        return self.path / "history.csv"

    @property
    def tensorboard(self) -> Path:
        """A folder for TensorBoard."""
        return self.path / "tensorboard"

    @property
    def holds_run(self) -> bool:
        """Whether a run has come to something here, which is a pity to lose."""
        rounds = self.history.exists() and self.history.stat().st_size > 0
        return rounds or self.parameters.exists() or any(self.checkpoints.glob("round-*"))

    def existing(self) -> list[Path]:
        """Return the files and folders that are there."""
        return [path for path in self._all() if path.exists()]

    def clear(self) -> None:
        """Remove what an earlier run has left, and nothing else."""
        for path in self.existing():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _all(self) -> list[Path]:
        files = [self.parameters, self.history, self.table, self.report]
        files += [self.configuration, self.described]
        return [*files, self.checkpoints, self.tensorboard]
