"""What all methods share that train a surrogate of the heat equation."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import heat
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from compss_train import DistributedTrainer, Engine
from compss_train.callbacks import Callback
from compss_train.engines import Resources, engine_class

WIDTH = 256
"""Width of the network's hidden layers."""
TRAINING, VALIDATION = range(2)
"""Purposes of simulations; each draws other parameters from the same seed."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """What all methods share with one seed."""

    options: argparse.Namespace
    engine: Engine
    seed: int
    net: nn.Module
    validation: heat.Sample

    @classmethod
    def make(cls, options: argparse.Namespace, engine: Engine, seed: int) -> Experiment:
        """Make the network, and run the simulations for validation."""
        torch.manual_seed(seed)
        net = surrogate(options.grid)
        inputs = itertools.islice(
            heat.random_parameters(seed, VALIDATION), options.validation_simulations
        )
        refs = [engine.submit(all_samples, simulator(options), parameters) for parameters in inputs]
        x, y = map(np.concatenate, zip(*engine.fetch(refs), strict=True))
        return cls(options, engine, seed, net, (x, y))

    def history_file(self, method: str) -> Path:
        """Return the file of a method's records."""
        path: Path = self.options.output / f"history-{method}-{self.seed}.jsonl"
        return path

    @contextmanager
    def trainer(self) -> Iterator[DistributedTrainer]:
        """Yield a trainer of the network."""
        options = self.options
        with DistributedTrainer(
            options.workers, engine=self.engine, seed=self.seed, threads=1
        ) as trainer:
            trainer.build(self.net, {"optimizer": "adam", "lr": options.lr}, "mse")
            yield trainer


def start_engine(options: argparse.Namespace, at_once: int) -> Engine:
    """Start the processes that all methods share; ``at_once`` tasks can run at a time.

    Raises ``ValueError`` if the engine has no room for them.
    """
    engine = engine_class(options.engine).start(options.workers, threads=1)
    if at_once > 1:
        _reserve(engine, at_once)
    return engine


def _reserve(engine: Engine, at_once: int) -> None:
    try:
        engine.reserve([Resources()] * at_once)
    except ValueError as error:
        raise ValueError(
            f"{error}. Options of this app: each of --workers and --simulators needs one, "
            "--methods offline only one at a time"
        ) from None
    with suppress(ValueError):  # otherwise validations run between simulations
        engine.reserve([Resources()] * (at_once + 1))


def all_samples(
    simulate: Callable[[heat.Floats], Iterable[heat.Sample]], parameters: heat.Floats
) -> heat.Sample:
    """Run a simulation to its end."""
    return heat.stack_samples(simulate(parameters))


def surrogate(grid: int) -> nn.Module:
    """Return an MLP from temperatures and time to a field, of the size of Melissa's."""
    return nn.Sequential(
        nn.Linear(heat.TEMPERATURES + 1, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, grid * grid),
        nn.Unflatten(1, (grid, grid)),
    )


def simulator(options: argparse.Namespace) -> Callable[[heat.Floats], Iterator[heat.Sample]]:
    """Return a function that runs a simulation with some parameters."""
    return functools.partial(
        heat.simulate, grid=options.grid, steps=options.steps, substeps=options.substeps
    )


@dataclass
class Run:
    """One method's training with one seed."""

    method: str
    seed: int
    records: list[Record]
    """The trainer's records, with ``elapsed`` seconds and ``total_batches`` since the start."""
    simulations: int
    repetitions: list[int]
    """At index n, how many samples were trained on n times."""
    fields: NDArray[np.float32]
    """Predictions for the first simulation of the validation."""


class Recorder(Callback):
    """Stores a fit's records with the time since the start, and writes them as lines of JSON."""

    def __init__(self, path: Path, batches: Callable[[Record], int]) -> None:
        self.records: list[Record] = []
        self._path = path
        self._batches = batches
        self._start = time.perf_counter()
        path.write_text("", encoding="utf-8")

    def on_round_end(self, trainer: DistributedTrainer, record: Record) -> None:
        """Store and write the record."""
        elapsed = time.perf_counter() - self._start
        before = self.records[-1]["total_batches"] if self.records else 0
        total = before + self._batches(record)
        timed = {**record, "elapsed": elapsed, "total_batches": total}
        self.records.append(timed)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(timed) + "\n")
