"""The fits of ``learning``, and their results in a file."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import _common as common
import numpy as np
import torch
from _common import SGD, Images

NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
"""The outer optimizer of DiLoCo (Douillard et al. 2023)."""
OPTIMIZERS: dict[str, dict[str, Any]] = {"sgd": SGD, "adam": {"optimizer": "adam", "lr": 0.001}}
_EVERY_75 = {"batch_size": 100, "every": 75, "unit": "batches"}
SETTINGS: dict[str, dict[str, Any]] = {
    "mean": {"batch_size": 100},
    "auto": {"merge": "auto"},
    "commutative": {"merge": "auto", "quorum": 0.75},
    "each alone": {
        "batch_size": 25,
        "merge": "commutative",
        "every": 9,
        "unit": "batches",
        "quorum": 0,
    },
    "plain merges": _EVERY_75,
    "every batch at first": {"merge": "post_local", "optimizer_state": "average"},
    "outer steps": {**_EVERY_75, "outer_optimizer": NESTEROV},
    "auto, bf16": {"merge": "auto", "dtype": "bf16"},
    "auto, int8": {"merge": "auto", "dtype": "int8"},
}
"""Options of ``fit`` and its ``Merge`` by name.

``mean``, once an epoch, is the baseline with one worker.
"""
OURS = "ours"
"""The contestant that is not a peer."""
MERGES = "ours, merges"
"""Ours with a wide network and hardly any samples: only merging takes time."""
MARKS = 4
"""Accuracies an epoch where times to an accuracy are compared."""
CHANCE = 15.0
"""A network below this percentage of ten classes has diverged, whether or not to NaN."""

State = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fit; equal cases are measured once, also if several groups have them."""

    network: str
    workers: int
    setting: str
    options: dict[str, Any]
    """Those of ``fit`` and ``Merge``; peers follow the batch size, period and outer optimizer."""
    optimizer: dict[str, Any] = field(default_factory=SGD.copy)
    seed: int = 0
    epochs: int = 8
    samples: int = 60_000
    schedule: str = "constant"
    engine: str = "serial"
    contestant: str = OURS
    marks: int = 1
    """Accuracies an epoch."""

    @property
    def key(self) -> str:
        """The case as JSON, by which its result is found."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def label(self) -> str:
        """A short name for people."""
        rate = f"{self.optimizer['optimizer']} {self.optimizer['lr']:g}"
        return (
            f"{self.contestant}, {self.network}, {rate}, {self.workers} workers, {self.setting}, "
            f"seed {self.seed}"
        )

    def images(self) -> Images:
        """Return the images."""
        return _images(self.samples)

    def rate_of(self) -> Callable[[int], float] | None:
        """Return the factor of the learning rate by epoch: a cosine falls from 1 to nearly 0."""
        return partial(cosine, epochs=self.epochs) if self.schedule == "cosine" else None


_images = lru_cache(maxsize=2)(common.load_images)


def cosine(epoch: int, *, epochs: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * epoch / epochs))


@dataclass(kw_only=True)
class Result:
    """The accuracies in percent at the marks of a fit, and what they cost."""

    accuracies: list[float] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    """Epochs that had been trained at each mark."""
    seconds: list[float] = field(default_factory=list)
    """Seconds since the fit began at each mark; evaluation does not count."""
    merges: int = 0
    diverged: bool = False
    speed: float | None = None
    """Samples a second after the first mark."""
    merge_seconds: list[float] = field(default_factory=list)
    """Seconds of each merge, where nothing else is measured."""
    loss: float | None = None
    """The loss on the samples for testing, where a regression has no accuracy."""
    used: dict[str, Any] = field(default_factory=dict)
    """The options of the fit as ``trainer.configuration`` describes them."""

    @property
    def accuracy(self) -> float:
        """In percent at the end; 0 for a fit that diverged."""
        return 0.0 if self.diverged or not self.accuracies else self.accuracies[-1]

    def seconds_to(self, target: float) -> float:
        """Return the seconds until the first mark with the accuracy, infinity if there is none."""
        marks = zip(self.seconds, self.accuracies, strict=True)
        return next((seconds for seconds, accuracy in marks if accuracy >= target), math.inf)


class Marks:
    """States of the network during a fit, which are evaluated after it."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._began = time.perf_counter()
        self._kept: list[tuple[float, float, State]] = []

    def pass_by(self, epochs: float, state: Callable[[], State]) -> None:
        """Keep the state if a mark has been passed since the last one that was kept."""
        marks = self._case.marks
        done = self._kept[-1][0] if self._kept else 0.0
        if int(epochs * marks + 1e-6) > int(done * marks + 1e-6):
            self._kept.append((epochs, time.perf_counter() - self._began, state()))

    def result(self, **fields: Any) -> Result:
        """Evaluate the states; the result has these fields, too."""
        images = self._case.images()
        result = Result(**fields)
        net = common.network(self._case.network, self._case.seed)
        for epochs, seconds, state in self._kept:
            tensors = {name: torch.from_numpy(np.array(array)) for name, array in state.items()}
            net.load_state_dict(tensors)
            result.accuracies.append(common.accuracy_of(net, images))
            result.epochs.append(epochs)
            result.seconds.append(seconds)
        result.diverged |= not result.accuracies or not result.accuracies[-1] > CHANCE
        if len(self._kept) > 1:
            first, began, _ = self._kept[0]
            last, ended, _ = self._kept[-1]
            result.speed = (last - first) * len(images.x) / (ended - began)
        return result


def load(path: Path) -> dict[str, Result]:
    """Return the results in a file of JSON lines by the keys of their cases.

    Of repeated cases the last one counts.
    """
    results = {}
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        try:
            entry = json.loads(line)
            results[Case(**entry["case"]).key] = Result(**entry["result"])
        except (ValueError, TypeError, KeyError):
            message = f"{path}: line {number} is no result, as of a killed process; skipped"
            print(message, file=sys.stderr)
    return results


def append(path: Path, case: Case, result: Result) -> None:
    """Write a line, after a line break in case a killed process has left half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_cut = path.exists() and not path.read_bytes().endswith(b"\n")
    line = json.dumps({"case": asdict(case), "result": asdict(result)})
    with path.open("a") as file:
        file.write(f"\n{line}\n" if is_cut else f"{line}\n")


def base_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the baseline, one worker with batches of 100, seed by seed for each network."""
    for seed, network in product(range(options.repetitions), options.networks):
        yield Case(
            network=network,
            workers=1,
            setting="mean",
            options=SETTINGS["mean"],
            seed=seed,
            epochs=options.epochs,
            samples=options.samples,
            engine=options.engine,
            schedule=options.schedule,
        )


def with_setting(case: Case, name: str, workers: int, **fields: Any) -> Case:
    """Return the case with other options of ``fit``, by the name of a setting, and other fields."""
    return replace(case, setting=name, options=SETTINGS[name], workers=workers, **fields)
