"""The sections ``[trainer]``, ``[network]`` and ``[build]``: the arguments of a trainer, and its network."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from compss_train.cli.run_files.errors import ErrorCollector, InvalidValueError
from compss_train.cli.run_files.objects import CALL, call_object
from compss_train.cli.run_files.options import Option, parse_options, signature_options
from compss_train.cli.run_files.run_file import RunFile
from compss_train.trainer import DistributedTrainer


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

    def check_build(self, errors: ErrorCollector) -> None:
        """Collect an error of ``build``."""
        with errors.catch("[build]"):
            self.build_trainer()

    def build_trainer(self) -> DistributedTrainer:
        """Return a trainer that is built; starts no processes."""
        trainer = DistributedTrainer(**self.trainer)
        trainer.build(self.net, **self.build)
        return trainer


def trainer_options() -> dict[str, Option]:
    """Return the keys of ``[trainer]``."""
    return signature_options(DistributedTrainer)


def build_options() -> dict[str, Option]:
    """Return the keys of ``[build]``."""
    return signature_options(DistributedTrainer.build, exclude=("net",))


def read_model(run_file: RunFile, errors: ErrorCollector) -> ModelSpec | None:
    """Return the contents of the three sections, or ``None`` after collecting errors.

    torch's seed is set to the trainer's, drawn if the file has none, before the network is made: it fixes the
    initial weights.
    """
    before = len(errors)
    trainer = parse_options("[trainer]", run_file.section("trainer"), trainer_options(), errors)
    trainer.setdefault("seed", secrets.randbits(32))
    section = dict(run_file.section("build"))
    if isinstance(name := section.get("optimizer"), str) and ":" not in name:
        section["optimizer"] = {"optimizer": name}  # so that the error is reported once
        table = f'{{ optimizer = "{name}", lr = 0.001 }}'
        errors.add("[build] optimizer", f'"{name}" is a string; give a table, for example {table}')
    build = parse_options("[build]", section, build_options(), errors)
    net = _make_network(run_file.section("network"), trainer["seed"], errors)
    if len(errors) > before:
        return None
    with errors.catch("[trainer]"):
        trainer["num_workers"] = DistributedTrainer(**trainer).num_workers
        return ModelSpec(trainer, net, build)
    return None


def _make_network(table: Mapping[str, Any], seed: Any, errors: ErrorCollector) -> Any:
    with errors.catch("[network]"):
        if CALL not in table:
            raise InvalidValueError(
                'import is missing; give import = "module:name", a class or function that makes the network, and '
                "its arguments as other keys"
            )
        if isinstance(seed, int):
            torch.manual_seed(seed)
        return call_object(table)
    return None
