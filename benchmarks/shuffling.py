"""Seconds to shuffle and schedule 10 million samples of 16 bytes in 1,000 blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import accumulate

import numpy as np
import torch
from _common import parser, print_table, ratios, spread
from numpy.typing import NDArray
from torch import nn

from compss_train import BlockedTensor, shuffle
from compss_train.data.partitioning import RoundPlan, Shuffle, WorkerAssignment
from compss_train.model.training_spec import TrainingSpec
from compss_train.training.data_source import DataSource
from compss_train.training.fit import FitOptions
from compss_train.worker.batches import cut_batches
from compss_train.worker.source import source_of
from compss_train.worker.work import Work

WORKERS = 8
BATCH = 1_000
SEED = 0
TARGET = "seconds"
FLOOR = "numpy: permutation and indexing"


def floor(x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
    """Permute plain arrays."""
    order = np.random.default_rng(SEED).permutation(len(x))
    _, _ = x[order], y[order]


def schedule(x: BlockedTensor, how: Shuffle) -> list[tuple[WorkerAssignment, ...]]:
    """Return the shares of an epoch's rounds."""
    return [round_.assignments for round_ in RoundPlan(x.sizes, WORKERS, 1, SEED, shuffle=how).rounds()]


def gather(x: BlockedTensor, y: BlockedTensor, share: WorkerAssignment) -> None:
    """Go through all batches of one worker's share, as its training task does."""
    total = any(block_pass.sample_numbers is not None for block_pass in share)
    numbers = (
        tuple(range(len(x.sizes))) if total else tuple(dict.fromkeys(block_pass.block for block_pass in share))
    )
    begins = tuple(accumulate(x.sizes[:-1], initial=0))
    starts = tuple(begins[number] for number in numbers)
    options = FitOptions(num_epochs=1, batch_size=BATCH, shuffle_block_data=not total)
    spec = TrainingSpec(net=nn.Linear(1, 1), optimizer=torch.optim.SGD, loss=nn.MSELoss())
    job = options.job(spec, DataSource(columns={"x": x}), SEED, 0, 0.0)
    work = Work(share, blocks=numbers, starts=starts)
    xs, ys = list(x.blocks()), list(y.blocks())
    source = source_of(job, work, [column[number] for column in (xs, ys) for number in numbers])
    for _ in cut_batches(source, "cpu"):
        pass


def timed(function: Callable[..., object], *args: object) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    function(*args)
    return time.perf_counter() - began


def measure(samples: int, blocks: int, repetitions: int) -> dict[str, list[float]]:
    """Return the seconds of each step, every step once a repetition."""
    flat_x = np.random.default_rng(SEED).standard_normal((samples, 4), np.float32)
    flat_y = np.arange(samples)
    x, y = (BlockedTensor.from_array(flat, (blocks, 1)) for flat in (flat_x, flat_y))
    shares = {how: schedule(x, how)[0][0] for how in ("total", "blocks")}
    steps: dict[str, tuple[Callable[..., object], *tuple[object, ...]]] = {
        FLOOR: (floor, flat_x, flat_y),
        "shuffle(x, y)": (shuffle, x, y, SEED),
        "schedule of an epoch, total": (schedule, x, "total"),
        "schedule of an epoch, blocks": (schedule, x, "blocks"),
        f"a worker's share (1/{WORKERS}), total": (gather, x, y, shares["total"]),
        f"a worker's share (1/{WORKERS}), blocks": (gather, x, y, shares["blocks"]),
    }
    seconds: dict[str, list[float]] = {}
    for _ in range(repetitions):
        for name, step in steps.items():
            seconds.setdefault(name, []).append(timed(*step))
    return seconds


def main() -> None:
    options_parser = parser(__doc__, repetitions=3, epochs=1)
    options_parser.add_argument("--samples", type=int, default=10_000_000)
    options_parser.add_argument("--blocks", type=int, default=1_000)
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.samples = 1, 500_000
    print(f"{options.samples:,} samples of 4 float32 and an int64 target in {options.blocks:,} blocks")
    torch.set_num_threads(1)  # as in a worker's task
    seconds = measure(options.samples, options.blocks, options.repetitions)
    rows = [
        [name, spread(times), spread(ratios(times, seconds[FLOOR])), "peer" if name == FLOOR else TARGET]
        for name, times in seconds.items()
    ]
    print_table("Shuffle and schedule", ["step", "seconds", "of numpy's", "target"], rows)
    print("dislib shuffles by tasks that split every block and merge the pieces, over COMPSs: not run here.")


if __name__ == "__main__":
    main()
