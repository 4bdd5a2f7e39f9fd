"""The sections that are arguments: ``[trainer]``, ``[network]``, ``[build]``, ``[fit]``, ``[output]``."""

import secrets
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from compss_train import callbacks
from compss_train._utils.validation import warn_user
from compss_train.callbacks import Callback
from compss_train.callbacks.checks import check_callbacks
from compss_train.cli.run_files import Errors, RunFile, Table
from compss_train.cli.run_files.objects import CALL, call_object
from compss_train.cli.run_files.options import Key, parse_options, signature_options
from compss_train.cli.run_files.run_folder import RunFolder
from compss_train.trainer import DistributedTrainer
from compss_train.training.fit_options import FitOptions
from compss_train.training.merge import Merge

TRAINER = signature_options(DistributedTrainer)
BUILD = signature_options(DistributedTrainer.build, exclude=("net",))
FIT = {
    **signature_options(DistributedTrainer.fit, exclude=("x", "y", "validation_data", "sample_weight", "resume")),
    "early_stopping": Key(bool | dict, False),
}
"""Keywords of ``fit`` that neither other sections nor the command line give, and one that adds a callback."""


class _Writer(NamedTuple):
    """A callback of ``[output]``, the attribute of ``RunFolder`` that it writes to, and whether it is on."""

    callback: type[Callback]
    path: str
    enabled: bool


WRITERS = {
    "checkpoint": _Writer(callbacks.Checkpoint, "checkpoints", True),
    "csv": _Writer(callbacks.Csv, "csv", False),
    "profile": _Writer(callbacks.Profile, "profile", False),
    "report": _Writer(callbacks.Report, "report", True),
    "tensorboard": _Writer(callbacks.TensorBoard, "tensorboard", False),
}
OUTPUT = {
    "folder": Key(str, "runs/NAME"),
    **{key: Key(bool | dict, writer.enabled) for key, writer in WRITERS.items()},
}


def callback_options(kind: type[Callback]) -> dict[str, Key]:
    """Return the keys of the table that may stand for true where a key adds a callback."""
    return signature_options(kind, exclude=("folder", "path"))


@dataclass(frozen=True)
class ModelSpec:
    """The network, and arguments of ``DistributedTrainer`` (with ``num_workers`` and ``seed``) and ``build``."""

    trainer: dict[str, Any]
    net: nn.Module
    build: dict[str, Any]

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return int(self.trainer["num_workers"])

    @property
    def seed(self) -> int:
        """The seed of the trainer and of the validation split."""
        return int(self.trainer["seed"])

    def build_trainer(self) -> DistributedTrainer:
        """Return a trainer that is built; starts no processes."""
        trainer = DistributedTrainer(**self.trainer)
        trainer.build(self.net, **self.build)
        return trainer


def read_model(run_file: RunFile) -> ModelSpec:
    """Return the contents of ``[trainer]``, ``[network]`` and ``[build]``; raise ``RunFileError`` with all errors.

    torch's seed is set to the trainer's, drawn if the file has none, before the network is made: it fixes the
    initial weights.
    """
    errors = Errors()
    section = {"seed": secrets.randbits(32), **run_file.section("trainer")}
    trainer = errors.attempt("[trainer]", parse_options, "[trainer]", section, TRAINER)
    given, build = run_file.section("build"), None
    if isinstance(name := given.get("optimizer"), str) and ":" not in name:
        table = f'{{ optimizer = "{name}", lr = 0.001 }}'
        errors.add("[build] optimizer", f'"{name}" is a string; give a table, for example {table}')
    else:
        build = errors.attempt("[build]", parse_options, "[build]", given, BUILD)
    net: Any = errors.attempt("[network]", _make_network, run_file.section("network"), section["seed"])
    if trainer is not None and build is not None and not errors.messages:
        workers = errors.attempt("[trainer]", lambda: DistributedTrainer(**trainer).num_workers)
        if workers is not None:
            return ModelSpec({**trainer, "num_workers": workers}, net, build)
    raise errors.found("")


def _make_network(table: Table, seed: Any) -> Any:
    if CALL not in table:
        raise ValueError(
            'import is missing; give import = "module:name", a class or function that makes the network, and '
            "its arguments as other keys"
        )
    if isinstance(seed, int):
        torch.manual_seed(seed)
    return call_object(table)


def read_fit(section: Table) -> dict[str, Any]:
    """Return the keywords of ``fit``, with lists of callbacks for ``callbacks`` and ``early_stopping``."""
    options = parse_options("[fit]", section, FIT)
    merge = Merge.of(options.get("merge", "synchronous"))
    if merge.preset is None:  # which chooses when network and data are known
        given = {field.name: options[field.name] for field in fields(FitOptions) if field.name in options}
        FitOptions(**{**given, "merge": merge})
    where, stopping = "[fit] early_stopping", options.get("early_stopping", False)
    return {
        **options,
        "callbacks": check_callbacks(options.get("callbacks", ())),
        "early_stopping": _make_callbacks(where, callbacks.EarlyStopping, stopping),
    }


def read_output(section: Table, folder: RunFolder, *, has_validation: bool) -> list[Callback]:
    """Return the callbacks that write the run's files.

    Checkpoints and the report are written by default. With validation data the best checkpoint by ``val_loss`` is
    kept, unless the table of checkpoints sets ``best``.
    """
    errors = Errors()
    given = parse_options("[output]", section, OUTPUT)
    if "report" not in given and find_spec("matplotlib") is None:
        warn_user("no report is written, as it needs matplotlib: pip install 'compss_train[report]'")
        given["report"] = False
    writers: list[Callback] = []
    for key, writer in WRITERS.items():
        value, where = given.get(key, writer.enabled), f"[output] {key}"
        if key == "checkpoint" and has_validation and value is not False:
            value = {"best": "val_loss", **({} if value is True else value)}
        made = errors.attempt(where, _make_callbacks, where, writer.callback, value, getattr(folder, writer.path))
        writers += made or []
    errors.check()
    return writers


def _make_callbacks(where: str, kind: type[Callback], value: Any, *paths: Path) -> list[Callback]:
    """Return a callback with its defaults for true, with a table's options, or none for false."""
    if value is False:
        return []
    return [kind(*paths, **parse_options(where, {} if value is True else value, callback_options(kind)))]
