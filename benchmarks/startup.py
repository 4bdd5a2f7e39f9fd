"""Seconds from ``fit`` to the first batch: local engine, 2 workers, a cold Python process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import _common as common
import _peers as peers
import torch

TARGET = 4.0
"""Seconds that the first batch may take."""
Start = tuple[float, float]
"""Seconds to the first batch of the first worker, and to that of the last."""


def ours(folder: str, samples: int) -> Start:
    """Fit one epoch; runs in a fresh process that has imported torch, as any user's has."""
    from compss_train import DistributedTrainer  # not at the top: the bare peer does without

    images = common.load_images(samples)
    stamp = common.Stamp(folder)
    x, y = images.blocked(2 * common.WORKERS)
    with DistributedTrainer(common.WORKERS, engine="local", seed=0, threads=1) as trainer:
        trainer.build(common.network("MLP", 0), common.SGD, "cross_entropy", transform=stamp)
        began = time.perf_counter()
        common.fit(trainer, x, y, epochs=1)
    return stamp.times()[0] - began, stamp.times()[-1] - began


def bare(folder: str, samples: int) -> Start:
    """Spawn processes that import torch and train one batch."""
    stamp = common.Stamp(folder)
    with common.threads_of_children(1):
        began = time.perf_counter()
        processes = [common.spawned(_one_batch, stamp) for _ in range(common.WORKERS)]
        for process in processes:
            process.join()
    return stamp.times()[0] - began, stamp.times()[-1] - began


def _one_batch(stamp: common.Stamp) -> None:
    net = common.network("MLP", 0)
    x = torch.zeros(common.BATCH, 1, 28, 28)
    y = torch.zeros(common.BATCH, dtype=torch.int64)
    peers.step(net, peers.optimizer_for(net, common.SGD), stamp(x), y)


def fresh(function: Callable[[str, int], Start], samples: int) -> Callable[[int], Start]:
    def run(_: Any) -> Start:
        with tempfile.TemporaryDirectory() as folder:
            return common.in_fresh_process(function, folder, samples)

    return run


def main() -> None:
    options = common.parsed(common.parser(__doc__, repetitions=5, samples=60_000), samples=4_000)
    samples = f"{common.image_source()}; {options.samples} of them"
    print(f"{samples}; the fit's publishing of blocks counts")
    contestants = {"ours": fresh(ours, options.samples), "bare": fresh(bare, options.samples)}
    starts = common.in_turn(contestants, options.repetitions)
    rows = []
    for index, name in enumerate(("first worker's first batch", "last worker's first batch")):
        seconds = [start[index] for start in starts["ours"]]
        bare_seconds = [start[index] for start in starts["bare"]]
        ratio = common.spread(common.ratios(seconds, bare_seconds))
        values = [common.spread(seconds), common.spread(bare_seconds), ratio]
        rows.append([name, *values, f"< {TARGET:.0f} s"])
    headers = [
        *("seconds to the", "ours, from fit", "2 bare spawned processes"),
        *("ours / bare", "target (ours)"),
    ]
    common.print_table("Start of the local engine", headers, rows)


if __name__ == "__main__":
    main()
