"""``TrainingRun``: a run that is ready to start, with everything its file describes, and its training."""

import json
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from compss_train._utils.files import FolderLock, atomic_path, write_atomic
from compss_train.callbacks import Callback
from compss_train.callbacks.checks import check_callbacks
from compss_train.cli.run_files.data import Dataset, read_data
from compss_train.cli.run_files.errors import (
    ErrorCollector,
    InvalidValueError,
    RunFileError,
    format_exception,
    require,
)
from compss_train.cli.run_files.model import ModelSpec, read_model
from compss_train.cli.run_files.options import Option, parse_options, signature_options
from compss_train.cli.run_files.output import read_early_stopping, read_output, stopping_options
from compss_train.cli.run_files.run_file import HOME, RunFile, read_run_file, read_toml
from compss_train.cli.run_files.run_folder import RunFolder
from compss_train.data import FileDataset
from compss_train.exceptions import BadCheckpointError
from compss_train.model import parameters
from compss_train.trainer import DistributedTrainer
from compss_train.training.callback import AnyCallback, TrainerProtocol
from compss_train.training.checkpoints.storage import list_checkpoints, read_latest_checkpoint
from compss_train.training.fit_options import FitOptions
from compss_train.training.merge import Merge


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


_OTHER_SECTIONS = ("x", "y", "validation_data", "sample_weight", "resume")
"""Arguments of ``fit`` that other sections, or the command line, give."""


def fit_options() -> dict[str, Option]:
    """Return the keys of ``[fit]``: keywords of ``fit``, and one that adds a callback."""
    return {**signature_options(DistributedTrainer.fit, exclude=_OTHER_SECTIONS), **stopping_options()}


def prepare_run(run_file: RunFile, *, resume: bool = False, overwrite: bool = False) -> TrainingRun:
    """Return the run that a file describes without starting it; raise ``RunFileError`` with all errors.

    A folder that holds a run is an error unless that run is resumed or overwritten, and so are other files with the
    names of a run's files.
    """
    errors = ErrorCollector(str(run_file.path))
    run_file.check_sections(errors)
    folder = RunFolder(run_file.output)
    with errors.catch("[output] folder"):
        _check_folder(folder, resume=resume, overwrite=overwrite)
    if resume:
        run_file = _with_saved_seed(folder, run_file)
    model = read_model(run_file, errors)
    workers, seed = (1, 0) if model is None else (model.num_workers, model.seed)
    data = read_data(run_file, errors, num_workers=workers, seed=seed)
    options = _read_fit(run_file, folder, errors)
    if model is not None:
        model.check_build(errors)
    errors.raise_errors()
    training_data, validation_data = require(data)
    return TrainingRun(
        file=run_file,
        model=require(model),
        data=training_data,
        validation_data=validation_data,
        fit=require(options),
        folder=folder,
        resume=resume,
    )


def _check_folder(folder: RunFolder, *, resume: bool, overwrite: bool) -> None:
    """Raise ``InvalidValueError`` if the run cannot write to the folder, or would replace files of others."""
    parent = next(path for path in (folder.path, *folder.path.absolute().parents) if path.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise InvalidValueError(f"{folder.path}: {parent} is not a writable folder")
    has_run_file = folder.run_file.exists()
    if has_run_file and not _is_saved_run_file(folder.run_file):
        raise InvalidValueError(
            f"{folder.run_file} was not written by a run, and this run would replace it; --output names another "
            "folder"
        )
    if resume and folder.parameters.exists() and not list_checkpoints(folder.checkpoints):
        raise InvalidValueError(
            f"{folder.path} holds a run that has ended, and no checkpoint to resume it from; --overwrite starts "
            "anew, --output names another folder"
        )
    if resume or overwrite:
        return
    if folder.has_results:
        hint = "--resume continues it, --overwrite removes it, --output names another folder"
        raise InvalidValueError(f"{folder.path} holds a run: {hint}")
    if not has_run_file and (existing := folder.existing_files()):
        hint = "--overwrite removes all such files, --output names another folder"
        raise InvalidValueError(f"{existing[0]} exists, and this run would replace it: {hint}")


def _is_saved_run_file(path: Path) -> bool:
    try:
        return HOME in read_toml(path)
    except RunFileError:
        return False


def _with_saved_seed(folder: RunFolder, run_file: RunFile) -> RunFile:
    """Return the file, with the seed that the run in the folder has drawn if the file has none."""
    if "seed" in run_file.section("trainer") or not folder.run_file.exists():
        return run_file
    seed = read_run_file(folder.run_file).section("trainer").get("seed")
    return run_file.with_value("trainer", "seed", seed)


def _read_fit(run_file: RunFile, folder: RunFolder, errors: ErrorCollector) -> dict[str, Any] | None:
    """Return the keywords of ``fit`` with all callbacks, or ``None`` after collecting errors."""
    before = len(errors)
    section = run_file.section("fit")
    stopping = read_early_stopping(section.pop("early_stopping", False), errors)
    options = parse_options("[fit]", section, fit_options(), errors)
    writers = read_output(run_file.section("output"), folder, errors, has_validation=run_file.has_validation)
    user_callbacks: list[AnyCallback] = []
    with errors.catch("[fit]"):
        user_callbacks = check_callbacks(options.get("callbacks", ()))
    if len(errors) == before:
        with errors.catch("[fit]"):
            merge = Merge.of(options.get("merge", "synchronous"))
            if merge.preset is None:  # which chooses when network and data are known
                given = {field.name: options[field.name] for field in fields(FitOptions) if field.name in options}
                FitOptions(**{**given, "merge": merge})
    # The user's callbacks first: the numbers that they add to records can be written and watched.
    options["callbacks"] = [*user_callbacks, *writers, *stopping]
    return options if len(errors) == before else None


def train(run: TrainingRun) -> DistributedTrainer:
    """Train and return the trainer with its history; the run's files are written even if the fit is interrupted.

    Raises ``RunFileError`` for an error that the fit finds before its first round.
    """
    setup = _FolderSetup(run)
    with ExitStack() as stack, run.model.build_trainer() as trainer:
        stack.callback(setup.lock.release)
        callbacks = [setup, *run.fit["callbacks"], setup.start]
        try:
            trainer.fit(**{**run.arguments(), "callbacks": callbacks})
        except (ValueError, TypeError, ModuleNotFoundError, OSError) as error:
            if setup.start.reached:
                raise
            raise RunFileError(f"{run.file.path}: {format_exception(error)}") from error
        finally:
            if setup.start.reached and trainer.history:
                _save_parameters(run.folder, trainer)
    return trainer


def _save_parameters(folder: RunFolder, trainer: DistributedTrainer) -> None:
    with atomic_path(folder.parameters) as path:
        parameters.save(path, trainer.get_parameters())


class _FolderSetup(Callback):
    """Prepares the run's folder when the fit starts, as all arguments have been checked then."""

    keeps_state = True  # called before Checkpoint, whose folder it may have to empty

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self.start = _FitStart(run)
        self.lock = FolderLock(run.folder.path)

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Make and lock the folder; remove the files of an earlier run unless it is resumed."""
        folder = self._run.folder
        folder.path.mkdir(parents=True, exist_ok=True)
        self.lock.acquire()
        if not self._run.resume:
            _clear(folder)
        if not folder.run_file.exists():
            _write_configuration(self._run, trainer)


class _FitStart(Callback):
    """The last callback: records in ``reached`` that no other callback has refused to start."""

    reached = False

    def __init__(self, run: TrainingRun) -> None:
        self._run = run

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Record the start; for a resumed run, write its configuration and remove its outdated parameters."""
        if self._run.resume:
            _write_configuration(self._run, trainer)
            self._run.folder.parameters.unlink(missing_ok=True)
        self.reached = True


def _clear(folder: RunFolder) -> None:
    """Remove the files of an earlier run; raise ``BlockingIOError`` if another program writes its checkpoints."""
    if folder.checkpoints.is_dir():
        lock = FolderLock(folder.checkpoints)
        lock.acquire()
        lock.release()
    folder.clear()


def _write_configuration(run: TrainingRun, trainer: TrainerProtocol) -> None:
    write_atomic(run.folder.run_file, run.file.dumps(trainer.seed))
    write_atomic(run.folder.configuration, json.dumps(trainer.configuration, indent=1))
