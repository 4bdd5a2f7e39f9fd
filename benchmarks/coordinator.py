"""Microseconds a worker and round that the coordinator takes: 1,024 workers that train nothing, serial engine."""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Sequence
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
from _common import parser, print_table, ratios, spread
from numpy.typing import NDArray
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer

SAMPLES_A_BLOCK = 8
TARGET = 200
MERGES, SHUFFLES = ("synchronous", "commutative"), ("blocks", "total")

NOTHING = {"started": 0.0, "given": SAMPLES_A_BLOCK, "change": 0.0}

Case = tuple[str, str]


def empty_train(training_spec: Any, parameters: Any, state: Any, *rest: Any) -> tuple[Any, Any, dict[str, float]]:
    """Return what ``compss_train.training.worker.train`` does, having trained nothing."""
    return parameters, state, {"samples": SAMPLES_A_BLOCK, "batches": 1, "loss": 0.0, "seconds": 0.0, **NOTHING}


def coordinate(case: Case, workers: int, rounds: int) -> tuple[list[float], float]:
    """Return microseconds a worker of each round, and those of the whole fit with the publishing of blocks."""
    merge, shuffle = case
    samples = workers * SAMPLES_A_BLOCK
    x = BlockedTensor.from_array(np.zeros((samples, 4), np.float32), (workers, 1))
    y = BlockedTensor.from_array(np.zeros(samples, np.int64), (workers, 1))
    with DistributedTrainer(workers, engine="serial", seed=0, threads=1) as trainer:
        trainer.build(nn.Linear(4, 2), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy")
        began = time.perf_counter()
        with patch("compss_train.training.worker.group.train", empty_train):
            trainer.fit(
                x, y, num_epochs=rounds, num_batches_per_worker=1, merge=merge, shuffle=shuffle, progress=False
            )
        whole = time.perf_counter() - began
        each = [1e6 * record["seconds"] / workers for record in trainer.history]
    return each, 1e6 * whole / (workers * rounds)


def bare_average(workers: int) -> float:
    """Return microseconds a worker of averaging as many parameter dicts in a plain loop: the floor."""
    versions = [_parameters() for _ in range(workers)]
    began = time.perf_counter()
    total = {name: np.zeros_like(array, np.float64) for name, array in versions[0].items()}
    for version in versions:
        for name, array in version.items():
            total[name] += SAMPLES_A_BLOCK * array
    for name, array in total.items():
        total[name] = (array / (SAMPLES_A_BLOCK * workers)).astype(np.float32)
    return 1e6 * (time.perf_counter() - began) / workers


def _parameters() -> dict[str, NDArray[np.float32]]:
    return {"weight": np.ones((2, 4), np.float32), "bias": np.ones(2, np.float32)}


def profile(cases: Sequence[Case], workers: int, rounds: int) -> None:
    """Print where the time of each case goes."""
    for case in cases:
        profiler = cProfile.Profile()
        profiler.runcall(coordinate, case, workers, rounds)
        print(f"\nProfile of {', '.join(case)}:")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(15)


def measure(cases: Sequence[Case], options: argparse.Namespace) -> list[list[str]]:
    """Return the table's rows; each repetition takes every case and the floor in turn."""
    rounds: dict[Case, list[float]] = {case: [] for case in cases}
    fits: dict[Case, list[float]] = {case: [] for case in cases}
    floors = []
    for _ in range(options.repetitions):
        floors.append(bare_average(options.workers))
        for case in cases:
            each, whole = coordinate(case, options.workers, options.epochs)
            rounds[case].append(median(each))
            fits[case].append(whole)
    rows = [
        [
            ", ".join(case),
            spread(rounds[case], ".1f"),
            spread(fits[case], ".1f"),
            spread(ratios(rounds[case], floors), ".1f"),
            f"< {TARGET}",
        ]
        for case in cases
    ]
    return [*rows, ["bare averaging in a loop", spread(floors, ".1f"), "-", "1.0", "peer"]]


def main() -> None:
    options_parser = parser(__doc__, repetitions=5, epochs=5)
    options_parser.add_argument("--workers", type=int, default=1024, help="workers, and blocks")
    options_parser.add_argument("--profile", action="store_true", help="print profiles instead")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs = 1, 2
    cases = [(merge, shuffle) for merge in MERGES for shuffle in SHUFFLES]
    if options.profile:
        profile(cases, options.workers, options.epochs)
        return
    print(f"{options.workers} workers and blocks, {options.epochs} rounds of one epoch, Linear(4, 2)")
    headers = ["merge, shuffle", "us a worker and round", "of the whole fit", "of bare averaging", "target"]
    print_table("The coordinator", headers, measure(cases, options))


if __name__ == "__main__":
    main()
