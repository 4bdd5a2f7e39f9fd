"""The cells of ``learning auto``: small fits of many kinds, by a Latin hypercube."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from statistics import fmean, stdev
from typing import Any

import _common as common
import numpy as np
import torch
from _common import print_table
from _learning_cases import NESTEROV, Case, Result
from numpy.typing import NDArray
from torch import nn

SEED = 72
"""The seed of the hypercube."""
CELLS = 100
CELLS_OF = {600: 21, 2_000: 21, 6_400: 22, 20_000: 21, 60_000: 15}
"""The number of cells by samples: fits on all images take longest."""
EPOCHS = {600: 15, 2_000: 8, 6_400: 4, 20_000: 2, 60_000: 1}
"""Epochs by samples, so that the largest fits take seconds."""
WORKERS = (2, 4, 8, 32, 64)
MEASURED_ALONE = 8
"""The number of workers that are also compared with one."""
RATE_FACTORS = (0.3, 1.0, 3.0)
SCHEDULES = ("constant", "cosine")
LETTERS = 8
"""The length of a text."""
TESTED = 2_000
"""Samples that fits are evaluated on."""
ONCE = "once an epoch"
EVERY_BATCH = "every batch"
OLD = "old auto"
NEW = "auto"
ALONE = "1 worker"
MARGIN = 0.5
"""Points of accuracy by which ``"auto"`` may be behind."""
LOSS_MARGIN = 3.0
"""The same of a regression, in percent of the loss."""


@dataclass(frozen=True)
class Data:
    """Samples for training and for testing; ``y`` are labels, or float32 values to predict."""

    x: NDArray[Any]
    y: NDArray[Any]
    test_x: NDArray[Any]
    test_y: NDArray[Any]


def _images(samples: int) -> Data:
    images = common.load_images(max(samples, TESTED))
    return Data(
        images.x[:samples],
        images.y[:samples],
        images.test_x[:TESTED],
        images.test_y[:TESTED],
    )


def _text(samples: int) -> Data:
    """Return short texts, each by one of six Markov chains of 12 letters."""
    random = np.random.default_rng(SEED)
    chains = np.cumsum(random.dirichlet(np.full(12, 0.7), (6, 12)), axis=-1)
    labels = random.integers(0, 6, samples + TESTED)
    letters = [random.integers(0, 12, len(labels))]
    for _ in range(LETTERS - 1):
        draws = random.random((len(labels), 1))
        following = (draws > chains[labels, letters[-1]]).sum(axis=1)
        letters.append(np.minimum(following, 11))
    texts = np.stack(letters, axis=1)
    return Data(texts[:samples], labels[:samples], texts[samples:], labels[samples:])


def _function(samples: int) -> Data:
    """Return values of a random network, with noise."""
    random = np.random.default_rng(SEED)
    x = random.standard_normal((samples + TESTED, 12), np.float32)
    hidden = np.tanh(x @ random.standard_normal((12, 8), np.float32) / 2)
    values = hidden @ random.standard_normal((8, 1), np.float32)
    values /= values.std()
    y = values + 0.2 * random.standard_normal(values.shape, np.float32)
    return Data(x[:samples], y[:samples], x[samples:], y[samples:])


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def _cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(784, 10)),
    )


class _Attention(nn.Module):
    """A layer of attention over letters, a layer for each letter, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(12, 16)
        self.places = nn.Parameter(torch.zeros(LETTERS, 16))
        self.projection = nn.Linear(16, 48)
        self.hidden = nn.Linear(16, 32)
        self.head = nn.Linear(32, 6)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        letters = self.letters(texts) + self.places
        query, key, value = self.projection(letters).chunk(3, dim=-1)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        hidden = torch.relu(self.hidden(letters + attended))
        outputs: torch.Tensor = self.head(hidden.mean(dim=1))
        return outputs


def _regression() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))


@dataclass(frozen=True)
class Kind:
    """A network and its data."""

    net: Callable[[], nn.Module]
    data: Callable[[int], Data]
    rate: float
    """The learning rate of SGD with momentum 0.9."""
    loss: str = "cross_entropy"


KINDS = {
    "small MLP": Kind(_mlp, _images, 0.05),
    "small CNN": Kind(_cnn, _images, 0.03),
    "attention": Kind(_Attention, _text, 0.1),
    "regression": Kind(_regression, _function, 0.03, "mse"),
}


def _optimizers(rate: float) -> dict[str, dict[str, Any]]:
    """Return the optimizers by name; ``rate`` is that of SGD with momentum."""
    return {
        "SGD 0.9": {"optimizer": "sgd", "lr": rate, "momentum": 0.9},
        "SGD": {"optimizer": "sgd", "lr": 5 * rate},
        "Adam": {"optimizer": "adam", "lr": 0.003},
        "AdamW": {"optimizer": "adamw", "lr": 0.003, "weight_decay": 0.01},
    }


def hypercube() -> Iterator[Case]:
    """Yield the cells as fits with ``"auto"``, all levels of the other factors equally often."""
    random = np.random.default_rng(SEED)

    def levels(values: Sequence[Any]) -> list[Any]:
        return [values[position * len(values) // CELLS] for position in random.permutation(CELLS)]

    optimizer_names = list(_optimizers(1.0))
    sizes = [samples for samples, cells in CELLS_OF.items() for _ in range(cells)]
    factors = (sizes, WORKERS, list(KINDS), optimizer_names, RATE_FACTORS, SCHEDULES)
    for cell in zip(*map(levels, factors), strict=True):
        samples, workers, network, optimizer_name, rate_factor, schedule = cell
        optimizer = _optimizers(KINDS[network].rate)[optimizer_name]
        yield Case(
            network=network,
            workers=workers,
            setting=NEW,
            options={"merge": "auto"},
            optimizer={**optimizer, "lr": round(rate_factor * optimizer["lr"], 6)},
            epochs=EPOCHS[samples],
            samples=samples,
            schedule=schedule,
        )


def old_options(cell: Case) -> dict[str, Any]:
    """Return what ``"auto"`` chose before it looked at the length of a round."""
    batch_norm = cell.network == "small CNN"
    scheduled = cell.schedule != "constant"
    joint = 400 if scheduled and batch_norm else 800
    batch = min(100, max(16, joint // cell.workers))
    often = 800 if scheduled else 3_200
    most = often if batch_norm else 15_000
    every = max(1, round(min(most, cell.samples / 4) / (batch * cell.workers)))
    momentum = round(min(0.9, 1 - 0.7 / cell.workers), 3)
    keeps_momentum = "adam" in cell.optimizer["optimizer"] or scheduled or cell.workers < 8
    outer = None if batch_norm and keeps_momentum else {**NESTEROV, "momentum": momentum}
    return {
        "batch_size": batch,
        "every": every,
        "unit": "batches",
        "outer_optimizer": outer,
        "optimizer_state": "reset" if batch_norm and outer is not None else "average",
    }


def auto_cases(options: argparse.Namespace) -> Iterator[Case]:
    """``"auto"``, its old constants, a merge an epoch, one a batch, and one worker, in cells."""
    plain = {"batch_size": common.BATCH}
    every_batch = {**plain, "every": 1, "unit": "batches", "optimizer_state": "average"}
    for seed, cell in product(range(options.repetitions), list(hypercube())[: options.cells]):
        fit = replace(cell, seed=seed)
        yield fit
        yield replace(fit, setting=OLD, options=old_options(cell))
        yield replace(fit, setting=ONCE, options=plain)
        yield replace(fit, setting=EVERY_BATCH, options=every_batch)
        if cell.workers == MEASURED_ALONE:
            yield replace(fit, setting=ALONE, workers=1, options=plain)


_data = lru_cache(maxsize=4)(lambda network, samples: KINDS[network].data(samples))


def run_cell(case: Case, fit: Callable[..., None]) -> Result:
    """Fit and evaluate; a fit that diverged has the accuracy 0, or no loss."""
    from compss_train import DistributedTrainer
    from compss_train.exceptions import DivergedError

    kind = KINDS[case.network]
    data = _data(case.network, case.samples)
    torch.manual_seed(case.seed)
    net = kind.net()
    metric = None if kind.loss == "mse" else "accuracy"
    with DistributedTrainer(case.workers, engine="serial", seed=case.seed, threads=1) as trainer:
        trainer.build(net, case.optimizer, kind.loss, metric, schedule=case.rate_of())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fit(trainer, case, data.x, data.y)
        except DivergedError:
            return Result(diverged=True)
        measured = trainer.evaluate(data.test_x, data.test_y)
        accuracy = 100 * measured["accuracy"] if metric else 0.0
        used = dict(trainer.configuration["fit"] or {})
        merges = len(trainer.history)
        return Result(accuracies=[accuracy], loss=measured["loss"], merges=merges, used=used)


Row = tuple[Case, dict[int, Result]]


def _gains(cell: Case, results: Mapping[int, Result], base: Mapping[int, Result]) -> list[float]:
    """Return by how much fits are better than those of ``base`` with the same seeds.

    In points of accuracy; of a regression, in percent of the loss, at most 100 either way.
    """
    seeds = sorted(results.keys() & base.keys())
    if cell.network != "regression":
        return [results[seed].accuracy - base[seed].accuracy for seed in seeds]
    return [_loss_gain(results[seed], base[seed]) for seed in seeds]


def _loss_gain(result: Result, base: Result) -> float:
    loss = np.inf if result.loss is None or result.diverged else result.loss
    base_loss = np.inf if base.loss is None or base.diverged else base.loss
    if loss == base_loss:
        return 0.0
    return float(np.clip(100 * (1 - loss / base_loss), -100, 100))


def _holds(cell: Case, gains: Sequence[float]) -> bool:
    """Return whether fits are behind by no more than the margin and two standard errors."""
    error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    margin = LOSS_MARGIN if cell.network == "regression" else MARGIN
    return fmean(gains) >= -margin - 2 * error


def _label(cell: Case) -> str:
    optimizer = cell.optimizer
    momentum = f" {optimizer['momentum']}" if "momentum" in optimizer else ""
    return (
        f"{cell.network}, {optimizer['optimizer']}{momentum}, lr {optimizer['lr']:g}, "
        f"{cell.schedule}"
    )


def report_auto(rows: Sequence[Row]) -> None:
    """Print by how much ``"auto"`` and its old constants are better than the better plain merge."""
    cells: list[dict[str, Row]] = []
    for case, results in rows:  # those of a cell follow one another, "auto" first
        if case.setting == NEW:
            cells.append({})
        cells[-1][case.setting] = (case, results)
    table = []
    held = dict.fromkeys((OLD, NEW), 0)
    worst: dict[str, list[float]] = {OLD: [], NEW: []}
    for settings in cells:
        if not {OLD, ONCE, EVERY_BATCH} <= settings.keys():
            continue
        cell, results = settings[NEW]
        plain = (settings[ONCE][1], settings[EVERY_BATCH][1])
        better = max(plain, key=lambda of_plain: fmean(_gains(cell, of_plain, plain[0])))
        line = [
            _label(cell),
            f"{cell.samples:,}",
            f"{cell.workers}",
        ]
        for setting in (OLD, NEW):
            gains = _gains(cell, settings[setting][1], better)
            worst[setting].append(fmean(gains))
            holds = _holds(cell, gains)
            held[setting] += holds
            line.append(f"{fmean(gains):+.1f}{'' if holds else ' !'}")
        alone = settings.get(ALONE)
        line.append("" if alone is None else f"{fmean(_gains(cell, results, alone[1])):+.1f}")
        used = results[min(results)].used
        merge = used.get("merge", {})
        outer = merge.get("outer_optimizer") or {}
        line.append(f"{used.get('batch_size')}, {merge.get('every')}, {outer.get('momentum', '-')}")
        table.append(line)
    headers = ["cell", "samples", "workers", OLD, NEW, "to 1 worker", "batch, every, outer"]
    title = "Gain over the better of two plain merges (!: behind by more than the margin)"
    print_table(title, headers, table)
    for setting in (OLD, NEW):
        gains = sorted(worst[setting])
        print(
            f"{setting}: holds in {held[setting]} of {len(gains)} cells; worst "
            f"{gains[0]:+.1f}, median {gains[len(gains) // 2]:+.1f}, mean {fmean(gains):+.1f}"
        )
