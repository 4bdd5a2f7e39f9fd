"""A run: all that its file says, made and checked, and the fit itself."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compss_train._utils.files import replacing, write_whole
from compss_train._utils.locking import FolderLock
from compss_train.callbacks import Callback
from compss_train.callbacks.checks import check_callbacks, check_watched
from compss_train.cli.run_files import toml
from compss_train.cli.run_files.checking import check_fit, fit
from compss_train.cli.run_files.data import Samples
from compss_train.cli.run_files.file import HOME, RunFile, read_run_file
from compss_train.cli.run_files.folder import RunFolder
from compss_train.cli.run_files.keys import fit_options
from compss_train.cli.run_files.model import Model, read_model
from compss_train.cli.run_files.options import read_options
from compss_train.cli.run_files.output import early_stopping, read_output
from compss_train.cli.run_files.problems import Problems, RunFileError, WrongValueError, describe, made
from compss_train.cli.run_files.samples import read_data
from compss_train.exceptions import BadCheckpointError
from compss_train.model import parameters
from compss_train.trainer import DistributedTrainer
from compss_train.training.checkpoints import checkpoints, newest


@dataclass(frozen=True)
class Training:
    """A run that can begin."""

    file: RunFile
    model: Model
    data: Samples
    held_out: Samples | None
    fit: dict[str, Any]
    """Options of ``fit``, the callbacks among them."""
    folder: RunFolder
    resume: bool
    blocks: int
    """How many arrays are cut into."""


def read_training(run_file: RunFile, *, resume: bool = False, overwrite: bool = False) -> Training:
    """Return the run that a file describes; raise ``RunFileError`` that tells all that is wrong with it.

    A folder that holds a run is refused unless that one is to be resumed or overwritten; so are files with the
    names of a run's that are none. Starts nothing.
    """
    problems = Problems(str(run_file.path))
    run_file.check_sections(problems)
    folder = RunFolder(run_file.output)
    with problems.noting("[output] folder"):
        _check_folder(folder, resume=resume, overwrite=overwrite)
    if resume:
        run_file = _with_seed_of(folder, run_file)
    model = read_model(run_file, problems)
    blocks = 0 if model is None else _blocks(folder, model, resume=resume)
    data = read_data(run_file, model, problems)
    options = _read_fit(run_file, folder, problems)
    if model is not None:
        measures = model.check(problems)
        if measures is not None and options is not None:
            with problems.noting("[fit]"):
                check_watched(options["callbacks"], measures, validated=run_file.is_validated)
    if model is not None and data is not None and options is not None:
        with problems.noting("[fit]"):
            check_fit(blocks, *data, options)
    problems.check()
    train_on, held_out = made(data)
    return Training(run_file, made(model), train_on, held_out, made(options), folder, resume, blocks)


def _check_folder(folder: RunFolder, *, resume: bool, overwrite: bool) -> None:
    """Raise ``WrongValueError`` where the files of a run would take the place of others."""
    first = next(place for place in (folder.path, *folder.path.absolute().parents) if place.exists())
    if not (first.is_dir() and os.access(first, os.W_OK)):
        raise WrongValueError(f"{folder.path}: {first} is no folder that can be written to")
    begun = folder.configuration.exists()
    if begun and not _is_of_run(folder.configuration):
        raise WrongValueError(
            f"{folder.configuration} is no run's, and a run writes a file of this name; --output names another "
            "folder"
        )
    if resume and folder.parameters.exists() and not checkpoints(folder.checkpoints):
        raise WrongValueError(
            f"{folder.path} holds a run that has ended and no checkpoint to go on from; --overwrite begins anew, "
            "--output names another folder"
        )
    free = not (resume or overwrite)
    if free and folder.holds_run:
        hint = "--resume goes on with it, --overwrite removes it, --output names another"
        raise WrongValueError(f"{folder.path} holds a run: {hint}")
    if free and not begun and (there := folder.existing()):
        hint = "--overwrite removes what has such names, --output names another folder"
        raise WrongValueError(f"{there[0]} is in the way of a run's: {hint}")


def _blocks(folder: RunFolder, model: Model, *, resume: bool) -> int:
    """Return how many blocks arrays are cut into: one a worker, or as many as when the run began."""
    with suppress(FileNotFoundError, BadCheckpointError):
        if resume and (progress := newest(folder.checkpoints)[1]["progress"]) is not None:
            return len(progress["sizes"])
    return model.num_workers


def _is_of_run(configuration: Path) -> bool:
    try:
        return HOME in toml.read(configuration)
    except RunFileError:
        return False


def _with_seed_of(folder: RunFolder, run_file: RunFile) -> RunFile:
    """Return the file with the seed that an earlier run has drawn, where it has none itself."""
    if "seed" in run_file.section("trainer") or not folder.configuration.exists():
        return run_file
    seed = read_run_file(folder.configuration).section("trainer").get("seed")
    return run_file.with_value("trainer", "seed", seed)


def _read_fit(run_file: RunFile, folder: RunFolder, problems: Problems) -> dict[str, Any] | None:
    """Return the options of ``fit`` with all callbacks, or ``None`` after noting what is wrong with them."""
    before = len(problems)
    section = run_file.section("fit")
    stopping = early_stopping(section.pop("early_stopping", False), problems)
    options = read_options("[fit]", section, fit_options(), problems)
    written = read_output(run_file.section("output"), folder, problems, validated=run_file.is_validated)
    own: list[Callback] = []
    with problems.noting("[fit]"):
        own = check_callbacks(options.get("callbacks", ()))
    options["callbacks"] = [*own, *written, *stopping]  # what they add to records is written and watched
    return options if len(problems) == before else None


def train(training: Training) -> DistributedTrainer:
    """Train, and return the trainer with its history; the files are in the folder then, whatever ends the fit.

    Raises ``RunFileError`` for what the fit itself finds wrong before it begins.
    """
    begun = _Begun(training)
    with ExitStack() as stack, training.model.built() as trainer:
        stack.callback(begun.lock.release)
        callbacks = [begun, *training.fit["callbacks"], begun.last]
        resume = {"resume": True} if training.resume else {}
        try:
            fit(trainer, training.data, training.held_out, {**training.fit, **resume, "callbacks": callbacks})
        except (ValueError, TypeError, ModuleNotFoundError, OSError) as error:
            if begun.last.told:
                raise
            raise RunFileError(f"{training.file.path}: {describe(error)}") from error
        finally:
            if begun.last.told and trainer.history:
                save(training.folder, trainer)
    return trainer


def save(folder: RunFolder, trainer: DistributedTrainer) -> None:
    """Write the parameters into a run's folder."""
    with replacing(folder.parameters) as path:
        parameters.save(path, trainer.get_parameters())


class _Begun(Callback):
    """Prepares the folder of a run when a fit begins, which is when all has been found to be right."""

    keeps_state = True  # so that it is told before Checkpoint, whose folder it may have to empty

    def __init__(self, training: Training) -> None:
        self._training = training
        self.last = _Last(training)
        self.lock = FolderLock(training.folder.path)

    def on_fit_start(self, trainer: DistributedTrainer, total_samples: int | None) -> None:
        """Make the folder; what is there of another run goes unless that is resumed."""
        folder = self._training.folder
        folder.path.mkdir(parents=True, exist_ok=True)
        self.lock.acquire()
        if not self._training.resume:
            _clear(folder)
        if not folder.configuration.exists():
            _describe(self._training, trainer)


class _Last(Callback):
    """Knows that a fit has begun, as no callback before it has found anything wrong."""

    told = False

    def __init__(self, training: Training) -> None:
        self._training = training

    def on_fit_start(self, trainer: DistributedTrainer, total_samples: int | None) -> None:
        """Take note; describe a run that is resumed, whose parameters are now those of its checkpoints."""
        if self._training.resume:
            _describe(self._training, trainer)
            self._training.folder.parameters.unlink(missing_ok=True)
        self.told = True


def _clear(folder: RunFolder) -> None:
    """Remove what an earlier run has left; raise ``BlockingIOError`` where a script is writing its checkpoints."""
    if folder.checkpoints.is_dir():
        lock = FolderLock(folder.checkpoints)
        lock.acquire()
        lock.release()
    folder.clear()


def _describe(training: Training, trainer: DistributedTrainer) -> None:
    write_whole(training.folder.configuration, toml.dumps(training.file.as_kept(trainer.seed)))
    write_whole(training.folder.described, json.dumps(trainer.configuration, indent=1))
