"""``TrainingRun``: a run that is ready to start, with everything its file describes, and its training."""

import json
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from compss_train._utils.files import FolderLock, atomic_path, write_atomic
from compss_train.callbacks import Callback, JsonLines
from compss_train.callbacks.report import status_of
from compss_train.cli.run_files import (
    HOME,
    Errors,
    RunFile,
    RunFileError,
    format_exception,
    read_run_file,
    read_toml,
)
from compss_train.cli.run_files.data import Dataset, read_data
from compss_train.cli.run_files.run_folder import RUNNING, RunFolder
from compss_train.cli.run_files.sections import ModelSpec, read_fit, read_model, read_output
from compss_train.data import FileDataset
from compss_train.exceptions import BadCheckpointError
from compss_train.model import parameters
from compss_train.trainer import DistributedTrainer
from compss_train.training.callback import TrainerProtocol
from compss_train.training.checkpoints.storage import list_checkpoints, read_latest_checkpoint


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A run that is ready to start; ``fit`` holds the contents of ``[fit]`` and all callbacks."""

    file: RunFile
    model: ModelSpec
    data: Dataset
    validation_data: Dataset | None
    fit: dict[str, Any]
    folder: RunFolder
    resume: bool

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``DistributedTrainer.fit`` and ``check_fit``."""
        arguments = {"x": self.data.x, "y": self.data.y, **self.fit}
        validation = self.validation_data
        if validation is not None:
            in_files = isinstance(validation.x, FileDataset)
            arguments["validation_data"] = validation.x if in_files else validation[:2]
        if self.data.weight is not None:
            arguments["sample_weight"] = self.data.weight
        return {**arguments, "resume": True} if self.resume else arguments

    def number_blocks(self) -> int:
        """Return how many blocks arrays are cut into: one per worker, or as many as when the run started."""
        with suppress(FileNotFoundError, BadCheckpointError):
            _, checkpoint = read_latest_checkpoint(self.folder.checkpoints)
            if self.resume and checkpoint["progress"] is not None:
                return len(checkpoint["progress"]["sizes"])
        return self.model.num_workers


def prepare_run(run_file: RunFile, *, resume: bool = False, overwrite: bool = False) -> TrainingRun:
    """Return the run that a file describes without starting it; raise ``RunFileError`` with all errors.

    A folder that holds a run is an error unless that run is resumed or overwritten, and so are other files with the
    names of a run's files.
    """
    errors = Errors()
    run_file.check_sections(errors)
    folder = RunFolder(run_file.output)
    errors.attempt("[output] folder", _check_folder, folder, resume=resume, overwrite=overwrite)
    if resume and "seed" not in run_file.section("trainer") and folder.run_file.exists():
        seed = read_run_file(folder.run_file).section("trainer").get("seed")
        run_file = run_file.with_value("trainer", "seed", seed)
    model = errors.attempt("", read_model, run_file)
    workers, seed = (1, 0) if model is None else (model.num_workers, model.seed)
    data = errors.attempt("", read_data, run_file, num_workers=workers, seed=seed)
    fit = errors.attempt("[fit]", read_fit, run_file.section("fit"))
    validated, output = bool(run_file.section("validation")), run_file.section("output")
    writers = errors.attempt("[output]", read_output, output, folder, has_validation=validated)
    if model is not None:
        errors.attempt("[build]", model.build_trainer)
    if model is None or data is None or fit is None or writers is None or errors.messages:
        raise errors.found(str(run_file.path))
    # The user's callbacks first: the numbers that they add to records can be written and watched.
    callbacks = [*fit["callbacks"], *writers, *fit.pop("early_stopping")]
    return TrainingRun(
        file=run_file,
        model=model,
        data=data[0],
        validation_data=data[1],
        fit={**fit, "callbacks": callbacks},
        folder=folder,
        resume=resume,
    )


def _check_folder(folder: RunFolder, *, resume: bool, overwrite: bool) -> None:
    """Raise ``ValueError`` if the run cannot write to the folder, or would replace files of others."""
    parent = next(path for path in (folder.path, *folder.path.absolute().parents) if path.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise ValueError(f"{folder.path}: {parent} is not a writable folder")
    has_run_file, saved = folder.run_file.exists(), False
    with suppress(RunFileError):
        saved = HOME in read_toml(folder.run_file)
    if has_run_file and not saved:
        raise ValueError(
            f"{folder.run_file} was not written by a run, and this run would replace it; --output names another "
            "folder"
        )
    if resume and folder.parameters.exists() and not list_checkpoints(folder.checkpoints):
        raise ValueError(
            f"{folder.path} holds a run that has ended, and no checkpoint to resume it from; --overwrite starts "
            "anew, --output names another folder"
        )
    if resume or overwrite:
        return
    if folder.has_results:
        hint = "--resume continues it, --overwrite removes it, --output names another folder"
        raise ValueError(f"{folder.path} holds a run: {hint}")
    if not has_run_file and (existing := folder.existing_files()):
        hint = "--overwrite removes all such files, --output names another folder"
        raise ValueError(f"{existing[0]} exists, and this run would replace it: {hint}")


def train(run: TrainingRun) -> DistributedTrainer:
    """Train and return the trainer with its history; the run's files are written even if the fit is interrupted.

    Raises ``RunFileError`` for an error that the fit finds before its first round.
    """
    setup, files = _FolderSetup(run), _RunFiles(run)
    with ExitStack() as stack, run.model.build_trainer() as trainer:
        stack.callback(setup.lock.release)
        callbacks = [setup, *run.fit["callbacks"], files]
        try:
            trainer.fit(**{**run.arguments(), "callbacks": callbacks})
        except (ValueError, TypeError, ModuleNotFoundError, OSError) as error:
            if files.reached:
                raise
            raise RunFileError(f"{run.file.path}: {format_exception(error)}") from error
        finally:
            if files.reached and trainer.history:
                with atomic_path(run.folder.parameters) as path:
                    parameters.save(path, trainer.get_parameters())
    return trainer


class _FolderSetup(Callback):
    """Prepares the run's folder when the fit starts, as all arguments have been checked then."""

    keeps_state = True  # called before Checkpoint, whose folder it may have to empty

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self.lock = FolderLock(run.folder.path)

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Make and lock the folder; remove the files of an earlier run unless it is resumed."""
        folder = self._run.folder
        folder.path.mkdir(parents=True, exist_ok=True)
        self.lock.acquire()
        if not self._run.resume:
            if folder.checkpoints.is_dir():
                lock = FolderLock(folder.checkpoints)
                lock.acquire()
                lock.release()
            folder.clear()
        if not folder.run_file.exists():  # which says whose folder it is, also if another callback refuses to start
            write_atomic(folder.run_file, self._run.file.dumps(trainer.seed))


class _RunFiles(JsonLines):
    """The last callback: writes the history with all that others add to its records, and the state of the run."""

    reached = False
    """Whether no other callback has refused to start."""

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run.folder.history)
        self._run = run

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Write the run's configuration and the rounds that were completed before; remove outdated parameters."""
        folder = self._run.folder
        write_atomic(folder.run_file, self._run.file.dumps(trainer.seed))
        write_atomic(folder.configuration, json.dumps(trainer.configuration, indent=1))
        folder.parameters.unlink(missing_ok=True)
        trainer.history.save(folder.history)
        folder.write_state(RUNNING)
        self.reached = True

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Write that the run is complete, or why it has stopped."""
        self._run.folder.write_state(status_of(trainer))

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Write the exception."""
        self._run.folder.write_state(status_of(trainer, error))
