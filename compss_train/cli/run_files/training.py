"""``TrainingRun``: what a run file describes, checked and ready to start, and its training."""

import json
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from compss_train import callbacks
from compss_train._utils.files import FolderLock, atomic_path, write_atomic
from compss_train._utils.validation import warn_user
from compss_train.callbacks.checks import check_callbacks
from compss_train.callbacks.loggers import status_of
from compss_train.cli import run_files
from compss_train.cli.run_files import Errors, RunFile, RunFileError, RunFolder, Table
from compss_train.cli.run_files import data as data_sections
from compss_train.cli.run_files.objects import CALL, call_object, keywords_of, parameters_of
from compss_train.model import parameters
from compss_train.model.saved_state import sha256_of
from compss_train.trainer import DistributedTrainer
from compss_train.training.checkpoints import list_checkpoints
from compss_train.training.fit_options import FitOptions
from compss_train.training.merge import Merge
from compss_train.training.trainer_base import TrainerBase


def _key(name: str, default: Any, annotation: Any = bool | dict) -> dict[str, Parameter]:
    """Return a key that is no parameter of a function, by default one for a callback."""
    return {name: Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)}


class _Writer(NamedTuple):
    """A callback of ``[output]``, the attribute of ``RunFolder`` that it writes to, and whether it is on."""

    callback: type[callbacks.Callback]
    path: str
    enabled: bool


WRITERS = {
    "checkpoint": _Writer(callbacks.Checkpoint, "checkpoints", True),
    "csv": _Writer(callbacks.Csv, "csv", False),
    "profile": _Writer(callbacks.Profile, "profile", False),
    "report": _Writer(callbacks.Report, "report", True),
    "tensorboard": _Writer(callbacks.TensorBoard, "tensorboard", False),
}
TRAINER = parameters_of(DistributedTrainer)
BUILD = parameters_of(DistributedTrainer.build, "net")
FIT = parameters_of(DistributedTrainer.fit, "x", "y", "validation_data", "sample_weight", "resume")
FIT |= _key("early_stopping", False)
"""Keywords of ``fit`` that neither other sections nor the command line give, and one that adds a callback."""
OUTPUT = _key("folder", "runs/NAME", str)
OUTPUT |= {key: each for name, writer in WRITERS.items() for key, each in _key(name, writer.enabled).items()}


def callback_options(kind: type[callbacks.Callback]) -> dict[str, Parameter]:
    """Return the keys of the table that may stand for true where a key adds a callback."""
    return parameters_of(kind, "folder", "path")


def _made(kind: type[callbacks.Callback], value: Any, *paths: Path) -> list[callbacks.Callback]:
    """Return a callback with its defaults for true, with a table's options, or none for false."""
    if value is False:
        return []
    if value is not True and not isinstance(value, dict):
        raise ValueError(f"{value!r}: give true, false, or a table of the options of {kind.__name__}")
    return [kind(*paths, **keywords_of({} if value is True else value, callback_options(kind)))]


def read_trainer(run_file: RunFile, errors: Errors) -> DistributedTrainer:
    """Return the trainer that ``[trainer]``, ``[network]`` and ``[build]`` describe, built; collects their errors.

    torch's seed is set to the trainer's before the network is made: it fixes the initial weights.
    """
    trainer = DistributedTrainer(1, engine="serial")  # for the checks of other sections if this one has an error
    with errors.collect("[trainer]"):
        trainer = DistributedTrainer(**keywords_of(run_file.section("trainer"), TRAINER))
    build = None
    with errors.collect("[build]"):
        section = run_file.section("build")
        if isinstance(name := section.get("optimizer"), str) and ":" not in name:
            table = f'{{ optimizer = "{name}", lr = 0.001 }}'
            raise ValueError(f'optimizer = "{name}" is a string; give a table, for example {table}')
        build = keywords_of(section, BUILD)
    with errors.collect("[network]"):
        torch.manual_seed(trainer.seed)
        if CALL not in (network := run_file.section("network")):
            hint = 'import = "module:name", a class or function that makes the network'
            raise ValueError(f"import is missing; give {hint}, and its arguments as other keys")
        net = call_object(network)
        if build is not None:
            with errors.collect("[build]"):
                trainer.build(net, **build)
    return trainer


def read_fit(section: Table) -> dict[str, Any]:
    """Return the keywords of ``fit``, checked as far as that needs no data, with a list of callbacks."""
    options = keywords_of(section, FIT)
    merge = Merge.of(options.get("merge", "synchronous"))
    if merge.preset is None:  # which chooses when network and data are known
        given = {field.name: options[field.name] for field in fields(FitOptions) if field.name in options}
        FitOptions(**{**given, "merge": merge})
    return {**options, "callbacks": check_callbacks(options.get("callbacks", ()))}


def read_output(
    section: Table, folder: RunFolder, errors: Errors, *, has_validation: bool
) -> list[callbacks.Callback]:
    """Return the callbacks that write the run's files; collects errors.

    Checkpoints and the report are written by default. With validation data the best checkpoint by ``val_loss`` is
    kept, unless the table of checkpoints sets ``best``.
    """
    with errors.collect("[output]"):
        section = keywords_of(section, OUTPUT)
        if not isinstance(section.get("folder", ""), str):
            raise ValueError(f"folder = {section['folder']!r}: give a string")
    if "report" not in section and find_spec("matplotlib") is None:
        warn_user("no report is written, as it needs matplotlib: pip install 'compss_train[report]'")
        section = {**section, "report": False}
    writers: list[callbacks.Callback] = []
    for key, writer in WRITERS.items():
        value = section.get(key, writer.enabled)
        if key == "checkpoint" and has_validation and (value is True or isinstance(value, dict)):
            value = {"best": "val_loss", **({} if value is True else value)}
        with errors.collect(f"[output] {key}"):
            writers += _made(writer.callback, value, getattr(folder, writer.path))
    return writers


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A run that is ready to start, with the arguments of ``DistributedTrainer.fit`` and ``check_fit``."""

    file: RunFile
    trainer: DistributedTrainer
    arguments: dict[str, Any]
    folder: RunFolder
    resume: bool


def prepare_run(run_file: RunFile, *, resume: bool = False, overwrite: bool = False) -> TrainingRun:
    """Return the run that a file describes without starting it; raise ``RunFileError`` with all errors.

    A folder that holds a run is an error unless that run is resumed or overwritten, and so are other files with the
    names of a run's files.
    """
    errors = Errors()
    run_file.check_sections(errors)
    folder = RunFolder(run_file.output)
    with errors.collect("[output] folder"):
        _check_folder(folder, resume=resume, overwrite=overwrite)
    if resume and "seed" not in run_file.section("trainer") and folder.run_file.exists():
        seed = run_files.read_run_file(folder.run_file).section("trainer").get("seed")
        run_file = run_file.with_value("trainer", "seed", seed)
    trainer = read_trainer(run_file, errors)
    data, validation = data_sections.read_data(run_file, errors, num_workers=trainer.num_workers, seed=trainer.seed)
    fit: dict[str, Any] = {}
    with errors.collect("[fit]"):
        fit = read_fit(run_file.section("fit"))
    with errors.collect("[fit] early_stopping"):
        stopping = _made(callbacks.EarlyStopping, fit.pop("early_stopping", False))
    has_validation = bool(run_file.section("validation"))
    writers = read_output(run_file.section("output"), folder, errors, has_validation=has_validation)
    errors.check(run_file.path)
    # The user's callbacks first: the numbers that they add to records can be written and watched.
    fit |= {"callbacks": [*fit["callbacks"], *writers, *stopping], "sample_weight": data.weight, "resume": resume}
    if validation is not None:
        fit["validation_data"] = validation[:2]
    return TrainingRun(
        file=run_file,
        trainer=trainer,
        arguments={"x": data.x, "y": data.y, **fit},
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
        saved = run_files.HOME in run_files.read_toml(folder.run_file)
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
    with ExitStack() as stack, run.trainer as trainer:
        stack.callback(setup.lock.release)
        try:
            trainer.fit(**{**run.arguments, "callbacks": [setup, *run.arguments["callbacks"], files]})
        except (ValueError, TypeError, ModuleNotFoundError, OSError) as error:
            if files.reached:
                raise
            raise RunFileError(f"{run.file.path}: {run_files.format_exception(error)}") from error
        finally:
            if files.reached:
                sha256 = None
                if trainer.history:
                    final = trainer.get_parameters()
                    sha256 = sha256_of(final)
                    with atomic_path(run.folder.parameters) as path:
                        parameters.save(path, final)
                run.folder.write_state(files.status, sha256)  # last: a run is complete when its files are
    return trainer


class _FolderSetup(callbacks.Callback):
    """Prepares the run's folder when the fit starts, as all arguments have been checked then."""

    keeps_state = True  # called before Checkpoint, whose folder it may have to empty

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self.lock = FolderLock(run.folder.path)

    def on_fit_start(self, trainer: TrainerBase, total_samples: int | None) -> None:
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


class _RunFiles(callbacks.JsonLines):
    """The last callback: writes the history with all that others add to its records, and the state of the run."""

    reached = False
    """Whether no other callback has refused to start."""
    status = run_files.RUNNING
    """How the fit has ended, once it has."""

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run.folder.history)
        self._run = run

    def on_fit_start(self, trainer: TrainerBase, total_samples: int | None) -> None:
        """Write the run's configuration and the rounds that were completed before; remove outdated parameters."""
        folder = self._run.folder
        write_atomic(folder.run_file, self._run.file.dumps(trainer.seed))
        write_atomic(folder.configuration, json.dumps(trainer.configuration, indent=1))
        folder.parameters.unlink(missing_ok=True)
        trainer.history.save(folder.history)
        folder.write_state(run_files.RUNNING)
        self.reached = True

    def on_fit_end(self, trainer: TrainerBase) -> None:
        """Record that the run is complete, or why it has stopped."""
        self.status = status_of(trainer)

    def on_exception(self, trainer: TrainerBase, error: BaseException) -> None:
        """Record the exception."""
        self.status = status_of(trainer, error)
