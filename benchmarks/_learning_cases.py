"""The fits that ``learning`` measures: settings, cases, and groups of cases."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
"""The outer optimizer of DiLoCo (Douillard et al. 2023)."""

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9},
    "adam": {"optimizer": "adam", "lr": 0.001},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "mean": {"batch_size": 100},
    "auto": {"merge": "auto"},
    "commutative": {"merge": "auto", "quorum": 0.75},
    "each alone": {"batch_size": 25, "merge": "commutative", "every": 9, "unit": "batches", "quorum": 0},
    "plain merges": {"batch_size": 100, "every": 75, "unit": "batches"},
    "post-local": {
        "batch_size": 100,
        "every": {"epochs": 1, "then": 75},
        "unit": "batches",
    },
    "every batch at first": {"merge": "post_local", "optimizer_state": "average"},
    "outer steps": {
        "batch_size": 100,
        "every": 75,
        "unit": "batches",
        "outer_optimizer": NESTEROV,
    },
    "auto, bf16": {"merge": "auto", "dtype": "bf16"},
    "auto, int8": {"merge": "auto", "dtype": "int8"},
}
"""Options of ``fit`` and its ``Merge`` by name; a dict as ``every`` is a ``PostLocal``.

``mean`` is the plain mean once an epoch, and with one worker the baseline.
"""

OURS, MERGES, DDP, AVERAGER, DILOCO = "ours", "ours, merges", "DDP", "PeriodicModelAverager", "torchft DiLoCo"
"""Who trains. ``MERGES`` is ours with a wide network and hardly any samples, where only merging takes time."""
MARKS = 4
"""Accuracies an epoch where times to an accuracy are compared."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fit; equal cases are measured once, also if several groups have them."""

    network: str
    workers: int
    setting: str
    options: dict[str, Any]
    """Of ``fit`` and its ``Merge``; peers follow ``batch_size``, ``every`` and ``outer_optimizer``."""
    optimizer: dict[str, Any] = field(default_factory=OPTIMIZERS["sgd"].copy)
    seed: int = 0
    epochs: int = 8
    samples: int = 60_000
    choose: bool = False
    """Train without the last twelfth of the training images, and measure the accuracy on it."""
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
            f"{self.contestant}, {self.network}, {rate}, {self.workers} workers, {self.setting}, seed {self.seed}"
        )


def cosine(epoch: int, *, epochs: int) -> float:
    """Return the factor of the learning rate that falls from 1 to nearly 0."""
    return 0.5 * (1 + math.cos(math.pi * epoch / epochs))


def schedule_of(case: Case) -> Callable[[int], float] | None:
    """Return the schedule with this name."""
    return {"constant": None, "cosine": partial(cosine, epochs=case.epochs)}[case.schedule]


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
            choose=options.choose,
            engine=options.engine,
        )


def with_setting(case: Case, name: str, workers: int, **more: Any) -> Case:
    """Return the case with other options of ``fit``, by the name of a setting."""
    return replace(case, setting=name, options=SETTINGS[name], workers=workers, **more)


def workers_cases(options: argparse.Namespace) -> Iterator[Case]:
    """One worker; the plain mean once an epoch and the recommended setting with more of them; SGD."""
    for one in base_cases(options):
        yield one
        for setting, workers in product(("mean", "auto"), options.workers):
            yield with_setting(one, setting, workers)


def auto_cases(options: argparse.Namespace) -> Iterator[Case]:
    """The same with Adam, too."""
    for case, optimizer in product(workers_cases(options), OPTIMIZERS):
        yield replace(case, optimizer=OPTIMIZERS[optimizer])


def commutative_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Commutative merging with a quorum, and of each worker alone, 32 workers."""
    for one in base_cases(options):
        yield one
        for setting in ("commutative", "each alone"):
            yield with_setting(one, setting, 32)


def compressed_cases(options: argparse.Namespace) -> Iterator[Case]:
    """What is sent to a merge in 32, 16 and 8 bits, 8 workers."""
    for one in base_cases(options):
        for setting in ("auto", "auto, bf16", "auto, int8"):
            yield with_setting(one, setting, 8)


def time_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Two workers on two cores and DDP, each with all batch sizes and learning rates of the grid."""
    for one in base_cases(options):
        base = replace(one, engine="local", marks=MARKS, schedule=options.schedule)
        for batch, rate in product(options.batch_sizes, options.learning_rates):
            tried = replace(base, optimizer={**base.optimizer, "lr": rate})
            for setting in ("auto", "every batch at first"):
                ours = with_setting(tried, setting, 2)
                yield replace(ours, options={**ours.options, "batch_size": batch})
            yield replace(tried, contestant=DDP, setting="DDP", workers=2, options={"batch_size": batch})


def peers_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Peers that merge, and ours with the same options; as many processes as workers."""
    for one, workers in product(base_cases(options), (2, 4)):
        for peer, setting in ((AVERAGER, "plain merges"), (AVERAGER, "post-local"), (DILOCO, "outer steps")):
            ours = with_setting(one, setting, workers, engine="local")
            yield ours
            yield replace(ours, contestant=peer)


def cost_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Merges of 10 million parameters with and without an outer step, and samples/s with 32 workers."""
    for one in base_cases(options):
        timed = replace(one, engine="local")
        for setting in ("mean", "auto"):
            yield with_setting(timed, setting, 32, epochs=3)
        if one.network == options.networks[0]:
            plain = replace(timed, contestant=MERGES, network="10M", workers=2, samples=4, choose=False)
            plain = replace(plain, epochs=3 if options.quick else 40, options={"batch_size": 2})
            yield plain
            yield replace(plain, setting="outer", options={**plain.options, "outer_optimizer": NESTEROV})


def curves_cases(options: argparse.Namespace) -> Iterator[Case]:
    """The curves of the plot: one worker, the plain mean at 32, the recommended setting at 8, 32 and 64."""
    for one in base_cases(options):
        timed = replace(one, engine="local")
        yield timed
        yield with_setting(timed, "mean", 32)
        for workers in (8, 32, 64):
            yield with_setting(timed, "auto", workers)


def custom_cases(options: argparse.Namespace) -> Iterator[Case]:
    """One worker, and the options of ``fit`` that the command line gives, for choosing settings."""
    for base, optimizer in product(base_cases(options), options.optimizers):
        one = replace(base, optimizer={**OPTIMIZERS[optimizer], **(json.loads(options.optimizer_options))})
        yield one
        for text, workers in product(options.options, options.workers):
            yield replace(one, workers=workers, setting=text, options=json.loads(text))


GROUPS: dict[str, Callable[[argparse.Namespace], Iterator[Case]]] = {
    "workers": workers_cases,
    "auto": auto_cases,
    "commutative": commutative_cases,
    "time": time_cases,
    "peers": peers_cases,
    "cost": cost_cases,
    "compressed": compressed_cases,
    "curves": curves_cases,
    "custom": custom_cases,
}
