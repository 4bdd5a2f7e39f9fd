"""The section ``[output]`` and the key ``early_stopping``: callbacks of a run that write files or stop it."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compss_train import callbacks
from compss_train._utils.validation import warn_user
from compss_train.callbacks import Callback, JsonLines
from compss_train.callbacks.report import status_of
from compss_train.cli.run_files.errors import ErrorCollector, InvalidValueError, unknown_name
from compss_train.cli.run_files.options import (
    Option,
    describe_annotation,
    matches,
    parse_options,
    signature_options,
)
from compss_train.cli.run_files.run_folder import RUNNING, RunFolder
from compss_train.training.callback import TrainerProtocol

_CALLBACKS = {
    "checkpoint": ("Checkpoint", "checkpoints"),
    "csv": ("Csv", "csv"),
    "profile": ("Profile", "profile"),
    "report": ("Report", "report"),
    "tensorboard": ("TensorBoard", "tensorboard"),
}
"""Keys of ``[output]``, the callbacks they add, and the attributes of ``RunFolder`` that these write to."""

_ENABLED = ("checkpoint", "report")
"""Keys that are true by default."""


class _HistoryFile(JsonLines):
    """Writes the trainer's history to the run's folder as JSON lines, replacing an earlier file."""

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Write the rounds that the trainer has completed before."""
        self.path.write_text("", encoding="utf-8")
        for record in trainer.history:
            self.on_round_end(trainer, record)


class _StateFile(Callback):
    """Writes to the run's folder whether it is running, complete, stopped or failed, and the process."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Write that the run is running."""
        self._folder.write_state(RUNNING)

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Write that it is complete, or why it has stopped."""
        self._folder.write_state(status_of(trainer))

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Write the exception."""
        self._folder.write_state(status_of(trainer, error))


def read_output(
    table: Mapping[str, Any], folder: RunFolder, errors: ErrorCollector, *, has_validation: bool
) -> list[Callback]:
    """Return the callbacks that write the run's files; collects errors of the section.

    Checkpoints and the report are written by default. With validation data the best checkpoint by ``val_loss`` is
    kept, unless the table of checkpoints sets ``best``.
    """
    writers: list[Callback] = [_HistoryFile(folder.history), _StateFile(folder)]
    defaults = {"checkpoint": {"best": "val_loss"}} if has_validation else {}
    keys = output_options()
    for key in table:
        if key not in keys:
            errors.add(f"[output] {key}", unknown_name(key, keys))
    if not isinstance(table.get("folder", ""), str):
        errors.add("[output] folder", f"{table['folder']!r} is not a string")
    for key, (name, path) in _CALLBACKS.items():
        value = table.get(key, key in _ENABLED)
        if key == "report" and key not in table and find_spec("matplotlib") is None:
            warn_user("no report is written, as it needs matplotlib: pip install 'compss_train[report]'")
            value = False
        if key in defaults and (value is True or isinstance(value, dict)):
            value = {**defaults[key], **({} if value is True else value)}
        with errors.catch(f"[output] {key}"):
            writers += _make_callback(f"[output] {key}", name, value, [getattr(folder, path)], errors)
    return writers


def output_options() -> dict[str, Option]:
    """Return the keys of ``[output]``."""
    writers = {key: Option(key, bool | dict, key in _ENABLED) for key in _CALLBACKS}
    return {"folder": Option("folder", str, "runs/NAME"), **writers}


def callback_tables() -> dict[str, dict[str, Option]]:
    """Return the keys of the tables that may stand for true, by the section and key of each callback."""
    names = {f"[output] {key}": name for key, (name, _) in _CALLBACKS.items()}
    names["[fit] early_stopping"] = "EarlyStopping"
    return {where: _callback_options(getattr(callbacks, name)) for where, name in names.items()}


def _callback_options(kind: type[Callback]) -> dict[str, Option]:
    return signature_options(kind, exclude=("folder", "path"))


def stopping_options() -> dict[str, Option]:
    """Return the key of ``[fit]`` that is not an argument of ``fit``."""
    return {"early_stopping": Option("early_stopping", bool | dict, False)}


def read_early_stopping(value: Any, errors: ErrorCollector) -> list[Callback]:
    """Return the callback of the key ``early_stopping``, if any; collects errors of its value."""
    with errors.catch("[fit] early_stopping"):
        return _make_callback("[fit] early_stopping", "EarlyStopping", value, [], errors)
    return []


def _make_callback(where: str, name: str, value: Any, paths: list[Path], errors: ErrorCollector) -> list[Callback]:
    """Return a callback with its defaults for true, with a table's options, or none for false."""
    if not matches(value, bool | dict):
        raise InvalidValueError(f"{value!r} is not accepted; give {describe_annotation(bool | dict)}")
    if value is False:
        return []
    kind = getattr(callbacks, name)
    before = len(errors)
    options = parse_options(where, {} if value is True else value, _callback_options(kind), errors)
    return [kind(*paths, **options)] if len(errors) == before else []
