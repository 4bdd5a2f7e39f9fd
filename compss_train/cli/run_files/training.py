"""``TrainingRun``: what a run file describes, checked and ready to start, and its training."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from compss_train import callbacks
from compss_train._utils import files, validation
from compss_train.cli import run_files
from compss_train.cli.run_files import (
    Errors,
    RunFile,
    RunFileError,
    RunFolder,
    TomlTable,
    data,
    objects,
)
from compss_train.model import parameters
from compss_train.trainer import DistributedTrainer
from compss_train.training import checkpoints
from compss_train.training.callback_list import check_callbacks
from compss_train.training.fit import FitOptions
from compss_train.training.merge import Merge
from compss_train.training.stopping import status_of


def _key(name: str, default: Any, annotation: Any = bool | dict) -> Parameter:
    """Return a key that is not a parameter of a function; by default it adds a callback."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class _Writer(NamedTuple):
    """A callback of ``[output]``."""

    callback: type[callbacks.Callback]
    path: str
    """The attribute of ``RunFolder`` that it writes to."""
    enabled: bool
    """Whether it is on by default."""


WRITERS = {
    "checkpoint": _Writer(callbacks.Checkpoint, "checkpoints", True),
    "csv": _Writer(callbacks.Csv, "csv", False),
    "profile": _Writer(callbacks.Profile, "profile", False),
    "report": _Writer(callbacks.Report, "report", True),
    "tensorboard": _Writer(callbacks.TensorBoard, "tensorboard", False),
}
TRAINER = objects.parameters_of(DistributedTrainer)
"""The keys of ``[trainer]``."""
BUILD = objects.parameters_of(DistributedTrainer.build, "net")
"""The keys of ``[build]``."""
FIT = {
    **objects.parameters_of(
        DistributedTrainer.fit, "x", "y", "validation_data", "sample_weight", "resume"
    ),
    "early_stopping": _key("early_stopping", False),
}
"""The keys of ``[fit]``: what neither other sections nor the command line set, and a callback."""
OUTPUT = {
    "folder": _key("folder", "runs/NAME", str),
    **{name: _key(name, writer.enabled) for name, writer in WRITERS.items()},
}
"""The keys of ``[output]``."""


def callback_options(kind: type[callbacks.Callback]) -> dict[str, Parameter]:
    """Return the keys of the table that may replace ``true`` for a key that adds a callback."""
    return objects.parameters_of(kind, "folder", "path")


def _made(kind: type[callbacks.Callback], value: Any, *paths: Path) -> list[callbacks.Callback]:
    """Return the callback for ``true`` or a table of options, and none for ``false``."""
    if value is False:
        return []
    if value is not True and not isinstance(value, dict):
        raise ValueError(
            f"{value!r}: give true, false, or a table of the options of {kind.__name__}"
        )
    options = {} if value is True else value
    return [kind(*paths, **objects.keywords_of(options, callback_options(kind)))]


def read_trainer(run_file: RunFile, errors: Errors) -> DistributedTrainer:
    """Return the trainer that ``[trainer]``, ``[network]`` and ``[build]`` describe, built.

    Their errors are collected. torch's seed is set to the trainer's before the network is made: it
    fixes the initial weights.
    """
    # If [trainer] is invalid, other sections are still checked.
    trainer = DistributedTrainer(1, engine="serial")
    with errors.collect("[trainer]"):
        trainer = DistributedTrainer(**objects.keywords_of(run_file.section("trainer"), TRAINER))
    build = None
    with errors.collect("[build]"):
        section = run_file.section("build")
        name = section.get("optimizer")
        if isinstance(name, str) and ":" not in name:
            table = f'{{ optimizer = "{name}", lr = 0.001 }}'
            raise ValueError(f'optimizer = "{name}" is a string; give a table, for example {table}')
        build = objects.keywords_of(section, BUILD)
    with errors.collect("[network]"):
        torch.manual_seed(trainer.seed)
        network = run_file.section("network")
        if objects.CALL not in network:
            hint = 'import = "module:name", a class or function that makes the network'
            raise ValueError(f"import is missing; give {hint}, and its arguments as other keys")
        net = objects.call_object(network)
        if build is not None:
            with errors.collect("[build]"):
                trainer.build(net, **build)
    return trainer


def read_fit(section: TomlTable) -> dict[str, Any]:
    """Return the keywords of ``fit``, checked as far as possible without the data."""
    keywords = objects.keywords_of(section, FIT)
    options = {name: value for name, value in keywords.items() if name != "early_stopping"}
    options["merge"] = Merge.of(options.get("merge", "synchronous"))
    FitOptions(**options).check_batches()
    return {**keywords, "callbacks": check_callbacks(keywords.get("callbacks", ()))}


def read_output(
    section: TomlTable, folder: RunFolder, errors: Errors, *, has_validation: bool
) -> list[callbacks.Callback]:
    """Return the callbacks that write the run's files; collects errors.

    Checkpoints and the report are written by default. With validation data, the checkpoint with the
    lowest ``val_loss`` is also kept, unless the table of checkpoints sets ``best``.
    """
    with errors.collect("[output]"):
        section = objects.keywords_of(section, OUTPUT)
        if not isinstance(section.get("folder", ""), str):
            raise ValueError(f"folder = {section['folder']!r}: give a string")
    if "report" not in section and find_spec("matplotlib") is None:
        validation.warn_user(
            "no report is written, since it needs matplotlib: pip install 'compss_train[report]'"
        )
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
    """A run that is ready to start."""

    file: RunFile
    trainer: DistributedTrainer
    arguments: dict[str, Any]
    """Those of ``DistributedTrainer.fit`` and ``check_fit``."""
    folder: RunFolder
    resume: bool


def prepare_run(run_file: RunFile, *, resume: bool = False, overwrite: bool = False) -> TrainingRun:
    """Return the run that a file describes, without starting it.

    Raises ``RunFileError`` with all errors. It is an error if the folder already holds a run, or
    other files with the names of a run's files, unless the run is resumed or overwritten.
    """
    errors = Errors()
    run_file.check_sections(errors)
    folder = RunFolder(run_file.output)
    with errors.collect("[output] folder"):
        _check_folder(folder, resume=resume, overwrite=overwrite)
    if resume and "seed" not in run_file.section("trainer") and folder.run_file.exists():
        # Its home may be gone; this run has one of its own.
        saved = RunFile(folder.run_file, run_file.home, run_files.read_toml(folder.run_file))
        seed = saved.section("trainer").get("seed")
        run_file = run_file.with_value("trainer", "seed", seed)
    trainer = read_trainer(run_file, errors)
    training, validation = data.read_data(
        run_file, errors, num_workers=trainer.num_workers, seed=trainer.seed
    )
    fit: dict[str, Any] = {}
    with errors.collect("[fit]"):
        fit = read_fit(run_file.section("fit"))
    with errors.collect("[fit] early_stopping"):
        stopping = _made(callbacks.EarlyStopping, fit.pop("early_stopping", False))
    has_validation = bool(run_file.section("validation"))
    writers = read_output(run_file.section("output"), folder, errors, has_validation=has_validation)
    errors.check(run_file.path)
    if "files" in run_file.section("data") and training.x.classes:
        # Files to evaluate or to predict may lack some classes.
        run_file = run_file.with_value("data", "classes", training.x.classes)
    arguments = {
        **fit,
        "x": training.x,
        "y": training.y,
        "sample_weight": training.weight,
        "validation_data": None if validation is None else validation[:2],
        # The user's callbacks come first: others can write and monitor what they add to records.
        "callbacks": [*fit["callbacks"], *writers, *stopping],
        "resume": resume,
    }
    return TrainingRun(
        file=run_file, trainer=trainer, arguments=arguments, folder=folder, resume=resume
    )


def _check_folder(folder: RunFolder, *, resume: bool, overwrite: bool) -> None:
    """Raise ``ValueError`` if the run cannot write to the folder, or may not replace its files."""
    parent = next(path for path in (folder.path, *folder.path.absolute().parents) if path.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise ValueError(f"{folder.path}: {parent} is not a writable folder")
    has_run_file = folder.run_file.exists()
    saved = False
    damage = "it says nothing of a run"
    try:
        saved = run_files.HOME in run_files.read_toml(folder.run_file)
    except RunFileError as error:
        damage = str(error)
    if has_run_file and not saved and folder.state() is not None:
        raise ValueError(
            f"{folder.run_file} is damaged ({damage}): remove it, and --resume writes it anew"
        )
    if has_run_file and not saved:
        raise ValueError(
            f"{folder.run_file} is no run's, and would be replaced; --output names another folder"
        )
    has_ended = folder.parameters.exists()
    if resume and has_ended and not checkpoints.list_checkpoints(folder.checkpoints):
        raise ValueError(
            f"{folder.path} holds a run that has ended, and no checkpoint to resume it from; "
            "--overwrite starts it again, --output names another folder"
        )
    if resume or overwrite:
        return
    if folder.has_results:
        hint = "--resume continues it, --overwrite removes it, --output names another folder"
        raise ValueError(f"{folder.path} holds a run: {hint}")
    files_of_others = [] if has_run_file else folder.existing_files()
    if files_of_others:
        hint = "--overwrite removes all such files, --output names another folder"
        raise ValueError(f"{files_of_others[0]} exists, and this run would replace it: {hint}")


def train(run: TrainingRun) -> DistributedTrainer:
    """Train and return the trainer; the run's files are written even if the fit is interrupted.

    Raises ``RunFileError`` for an error that is found before the first round.
    """
    setup = _FolderSetup(run)
    results = _RunFiles(run)
    arguments = {**run.arguments, "callbacks": [setup, *run.arguments["callbacks"], results]}
    with ExitStack() as stack, run.trainer as trainer:
        stack.callback(setup.lock.release)
        try:
            trainer.fit(**arguments)
        except BaseException as error:
            if results.started:
                try:
                    _save_results(run.folder, trainer, results.status)
                except OSError as failure:
                    # Of the same disk, most likely: the fit's own error says more.
                    reason = run_files.exception_message(failure)
                    error.add_note(f"And the results were not saved: {reason}")
            elif isinstance(error, ValueError | TypeError | ModuleNotFoundError | OSError):
                message = f"{run.file.path}: {run_files.format_exception(error)}"
                raise RunFileError(run_files.append_notes(message, error)) from error
            raise
        _save_results(run.folder, trainer, results.status)
    return trainer


def _save_results(folder: RunFolder, trainer: DistributedTrainer, status: str) -> None:
    """Write the parameters, and then the state of the run, which is complete when its files are."""
    sha256 = None
    if trainer.history:
        sha256 = parameters.save(folder.parameters, trainer.get_parameters())
        if trainer.has_average:
            parameters.save(folder.averaged, trainer.get_parameters(averaged=True))
    folder.write_state(status, sha256)


class _FolderSetup(callbacks.Callback):
    """The first callback: prepares the run's folder when the fit starts.

    All arguments have been checked by then.
    """

    keeps_state = True  # so that it is called before Checkpoint, whose folder it may empty

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self.lock = files.FolderLock(run.folder.path)

    def on_fit_start(self, trainer: callbacks.TrainerProtocol, total_samples: int | None) -> None:
        """Create and lock the folder; remove the files of an earlier run unless it is resumed."""
        folder = self._run.folder
        folder.path.mkdir(parents=True, exist_ok=True)
        self.lock.acquire()
        if not self._run.resume:
            if folder.checkpoints.is_dir():
                lock = files.FolderLock(folder.checkpoints)
                lock.acquire()
                lock.release()
            folder.clear()
        # Marks the folder as a run's even if another callback refuses to start.
        if not folder.run_file.exists():
            files.write_atomic(folder.run_file, self._run.file.dumps(trainer.seed))


class _RunFiles(callbacks.JsonLines):
    """The last callback: writes the state of the run, and the history as others have left it."""

    started = False
    """Whether all other callbacks have started."""
    status = run_files.RUNNING
    """How the fit has ended, once it has."""

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run.folder.history)
        self._run = run

    def on_fit_start(self, trainer: callbacks.TrainerProtocol, total_samples: int | None) -> None:
        """Write the run file and the rounds that are complete; remove outdated parameters."""
        folder = self._run.folder
        if self._run.resume:
            # It may be damaged; the checkpoint has all of it.
            folder.history.unlink(missing_ok=True)
        super().on_fit_start(trainer, total_samples)
        files.write_atomic(folder.run_file, self._run.file.dumps(trainer.seed))
        folder.parameters.unlink(missing_ok=True)
        folder.averaged.unlink(missing_ok=True)
        trainer.history.save(folder.history)
        folder.write_state(run_files.RUNNING)
        self.started = True

    def on_fit_end(self, trainer: callbacks.TrainerProtocol) -> None:
        """Record that the run is complete, or why it has stopped."""
        super().on_fit_end(trainer)
        self.status = status_of(trainer.stopped)

    def on_exception(self, trainer: callbacks.TrainerProtocol, error: BaseException) -> None:
        """Record the exception."""
        super().on_exception(trainer, error)
        self.status = status_of(trainer.stopped, error)
