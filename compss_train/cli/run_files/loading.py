"""A run that has been: its file, its data, and a trainer with the parameters that it has left."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compss_train.cli.run_files.data import Samples
from compss_train.cli.run_files.file import RunFile, read_run_file
from compss_train.cli.run_files.folder import RunFolder
from compss_train.cli.run_files.model import Model, read_model
from compss_train.cli.run_files.problems import Problems, RunFileError, made
from compss_train.cli.run_files.samples import read_data, read_held_out
from compss_train.model import parameters
from compss_train.trainer import DistributedTrainer


@dataclass(frozen=True)
class OpenRun:
    """A run whose names of files and modules are found as they were when it trained."""

    file: RunFile
    model: Model | None
    problems: Problems

    def data(self) -> Samples:
        """Return what it trained on; raises ``RunFileError`` for all that is wrong with its file."""
        pairs = read_data(self.file, self.model, self.problems)
        self.problems.check()
        return made(pairs)[0]

    def held_out(self) -> Samples:
        """Return its validation data; raises ``RunFileError`` for all that is wrong with its file."""
        pair = read_held_out(self.file, self.model, self.problems)
        self.problems.check()
        return made(pair)

    def trainer(self, *, best: bool = False) -> DistributedTrainer:
        """Return a trainer with its final parameters, those of its last checkpoint, or of its ``best``.

        Raises ``RunFileError`` for all that is wrong with its file, and where it has left no parameters.
        """
        self.problems.check()
        folder = RunFolder(self.file.path.parent)
        trainer = made(self.model).built()
        if best or not folder.parameters.exists():
            _restore(folder, trainer, best=best)
        else:
            trainer.set_parameters(parameters.load(folder.parameters))
        return trainer


@contextmanager
def open_run(path: Path, settings: Iterable[str] = ()) -> Iterator[OpenRun]:
    """Read the file of the run in a folder; the current folder is the run's home in the block."""
    run_file = read_run_file(path, settings, hint="give the folder that compss-train fit has named at its end")
    with run_file.at_home():
        problems = Problems(str(run_file.path))
        model = read_model(run_file, problems)
        if model is not None:
            model.check(problems)
        yield OpenRun(run_file, model, problems)


def _restore(folder: RunFolder, trainer: DistributedTrainer, *, best: bool) -> None:
    if not folder.checkpoints.is_dir():
        raise RunFileError(
            f"{folder.path} has no {folder.checkpoints.name}{'' if best else f' and no {folder.parameters.name}'}; "
            "has a round of this run ended?"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other numbers if training went on, which it does not
        trainer.restore(folder.checkpoints, best=best)
