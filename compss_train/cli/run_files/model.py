"""The sections ``[trainer]``, ``[network]`` and ``[build]``: a trainer with its network."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from compss_train.cli.run_files import objects
from compss_train.cli.run_files.file import RunFile
from compss_train.cli.run_files.keys import build_options, trainer_options
from compss_train.cli.run_files.options import read_options
from compss_train.cli.run_files.problems import Problems, WrongValueError
from compss_train.trainer import DistributedTrainer


@dataclass(frozen=True)
class Model:
    """What is needed for a trainer that is built."""

    trainer: dict[str, Any]
    """Arguments of ``DistributedTrainer``; ``num_workers`` and ``seed`` are among them."""
    net: nn.Module
    build: dict[str, Any]
    """Arguments of ``build`` besides the network."""

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return int(self.trainer["num_workers"])

    def check(self, problems: Problems) -> tuple[str, ...] | None:
        """Return the names of what records will measure, or ``None`` after noting what the trainer finds wrong."""
        with problems.noting("[build]"):
            return self.built().measures
        return None

    def built(self) -> DistributedTrainer:
        """Return a trainer; starts nothing."""
        trainer = DistributedTrainer(**self.trainer)
        trainer.build(self.net, **self.build)
        return trainer


def read_model(run_file: RunFile, problems: Problems) -> Model | None:
    """Return what three sections say, or ``None`` after noting what is wrong with them.

    The seed, drawn where the file has none, is torch's before the network is made: initial weights follow from it.
    """
    before = len(problems)
    options = read_options("[trainer]", run_file.section("trainer"), trainer_options(), problems)
    options.setdefault("seed", secrets.randbits(32))
    build = read_options("[build]", run_file.section("build"), build_options(), problems)
    with problems.noting("[build] optimizer"):
        _check_optimizer(build.get("optimizer"))
    net = _network(run_file.section("network"), options["seed"], problems)
    if len(problems) > before:
        return None
    with problems.noting("[trainer]"):
        options["num_workers"] = DistributedTrainer(**options).num_workers
        return Model(options, net, build)
    return None


def _check_optimizer(optimizer: Any) -> None:
    """Raise ``WrongValueError`` for a name alone, of which the trainer would speak in Python's terms."""
    if isinstance(optimizer, str):
        raise WrongValueError(
            f'"{optimizer}" is a text; give a table, for example {{ optimizer = "adam", lr = 0.001 }}'
        )


def _network(table: Mapping[str, Any], seed: Any, problems: Problems) -> Any:
    with problems.noting("[network]"):
        if objects.CALLED not in table:
            raise WrongValueError(
                'import is missing; give import = "module:name", a class or function that makes the network, and '
                "its arguments as other keys"
            )
        if isinstance(seed, int):
            torch.manual_seed(seed)
        return objects.make(table)
    return None
