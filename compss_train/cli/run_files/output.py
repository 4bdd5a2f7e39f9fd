"""The section ``[output]``, and ``early_stopping``: the callbacks of a run, and where their files go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compss_train import callbacks
from compss_train.callbacks import Callback, JsonLines
from compss_train.cli.run_files.annotations import described, fits
from compss_train.cli.run_files.folder import RunFolder
from compss_train.cli.run_files.options import Option, options_of, read_options
from compss_train.cli.run_files.problems import Problems, WrongValueError, unknown
from compss_train.training.callback import TrainerProtocol

_FILES = {
    "checkpoint": ("Checkpoint", "checkpoints"),
    "csv": ("Csv", "table"),
    "report": ("Report", "report"),
    "tensorboard": ("TensorBoard", "tensorboard"),
}
"""Keys, the callbacks that they stand for, and where in a run's folder these write."""

_ALWAYS = ("checkpoint", "report")
"""Those that are there unless the file says otherwise."""


class HistoryFile(JsonLines):
    """The history as lines of JSON: the trainer's, whatever has been in the file of a run's folder."""

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Write the rounds that the trainer has had."""
        self.path.write_text("", encoding="utf-8")
        for record in trainer.history:
            self.on_round_end(trainer, record)


def read_output(
    table: Mapping[str, Any], folder: RunFolder, problems: Problems, *, validated: bool
) -> list[Callback]:
    """Return what writes the files that the section asks for, noting what is wrong with it.

    There are checkpoints and a report unless the file says otherwise; the best checkpoint by ``val_loss`` is kept
    where there are ``validated`` data, unless the table of checkpoints names another ``best``.
    """
    made: list[Callback] = [HistoryFile(folder.history)]
    usual = {"checkpoint": {"best": "val_loss"}} if validated else {}
    keys = output_options()
    for key in table:
        if key not in keys:
            problems.add(f"[output] {key}", unknown(key, keys))
    if not isinstance(table.get("folder", ""), str):
        problems.add("[output] folder", f"{table['folder']!r} is no text")
    for key, (name, place) in _FILES.items():
        value = table.get(key, key in _ALWAYS)
        if key in usual and (value is True or isinstance(value, dict)):
            value = {**usual[key], **({} if value is True else value)}
        with problems.noting(f"[output] {key}"):
            made += _callback(f"[output] {key}", name, value, [getattr(folder, place)], problems)
    return made


def output_options() -> dict[str, Option]:
    """Return the keys of ``[output]``."""
    written = {key: Option(key, bool | dict, key in _ALWAYS) for key in _FILES}
    return {"folder": Option("folder", str, "runs/NAME"), **written}


def tables() -> dict[str, dict[str, Option]]:
    """Return the keys of the tables that callbacks may have instead of true, by where those are."""
    places = {f"[output] {key}": name for key, (name, _) in _FILES.items()}
    places["[fit] early_stopping"] = "EarlyStopping"
    return {where: _table_options(getattr(callbacks, name)) for where, name in places.items()}


def _table_options(kind: type[Callback]) -> dict[str, Option]:
    return options_of(kind, leave_out=("folder", "path"))


def stopping_options() -> dict[str, Option]:
    """Return the key of ``[fit]`` that is no argument of ``fit``."""
    return {"early_stopping": Option("early_stopping", bool | dict, False)}


def early_stopping(value: Any, problems: Problems) -> list[Callback]:
    """Return the callback that the key ``early_stopping`` asks for, noting what is wrong with it."""
    with problems.noting("[fit] early_stopping"):
        return _callback("[fit] early_stopping", "EarlyStopping", value, [], problems)
    return []


def _callback(where: str, name: str, value: Any, places: list[Path], problems: Problems) -> list[Callback]:
    """Return the callback of this name, with its defaults for true, or a table's options; none for false."""
    if not fits(value, bool | dict):
        raise WrongValueError(f"{value!r} does not fit; give {described(bool | dict)}")
    if value is False:
        return []
    kind = getattr(callbacks, name)
    before = len(problems)
    options = read_options(where, {} if value is True else value, _table_options(kind), problems)
    return [kind(*places, **options)] if len(problems) == before else []
