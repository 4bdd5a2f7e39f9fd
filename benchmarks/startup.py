"""Seconds from calling ``fit`` to the first training batch: local engine, 2 workers, a cold Python process."""

from __future__ import annotations

import multiprocessing
import tempfile
import time

import torch
from _common import (
    Stamp,
    image_source,
    in_fresh_process,
    load_images,
    network,
    parser,
    print_table,
    ratios,
    spread,
    threads_of_children,
)
from torch import nn

WORKERS = 2
TARGET = 4.0
BATCH = 100

Start = tuple[float, float]
"""Seconds to the first batch of the first worker, and to that of the last."""


def ours(samples: int, folder: str) -> Start:
    """Fit one epoch; runs in a fresh process that has imported torch, as any user's has."""
    from compss_train import BlockedTensor, DistributedTrainer  # not at the top: the bare peer does without

    images, stamp = load_images(samples), Stamp(folder)
    grid = (2 * WORKERS, 1)
    x, y = BlockedTensor.from_array(images.x, grid), BlockedTensor.from_array(images.y, grid)
    optimizer = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
    with DistributedTrainer(WORKERS, engine="local", seed=0, threads=1) as trainer:
        trainer.build(network("MLP", 0), optimizer, "cross_entropy", transform=stamp)
        began = time.perf_counter()
        trainer.fit(x, y, num_epochs=1, batch_size=BATCH, progress=False)
    return _since(began, stamp)


def bare(folder: str) -> Start:
    """Spawn processes that import torch and train one batch."""
    context = multiprocessing.get_context("spawn")
    with threads_of_children(1):
        began = time.perf_counter()
        processes = [context.Process(target=_one_batch, args=(folder,)) for _ in range(WORKERS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return _since(began, Stamp(folder))


def _one_batch(folder: str) -> None:
    net = network("MLP", 0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    x, y = torch.zeros(BATCH, 1, 28, 28), torch.zeros(BATCH, dtype=torch.int64)
    nn.functional.cross_entropy(net(Stamp(folder)(x)), y).backward()
    optimizer.step()


def _since(began: float, stamp: Stamp) -> Start:
    times = stamp.times()
    return times[0] - began, times[-1] - began


def measure(repetitions: int, samples: int) -> tuple[list[Start], list[Start]]:
    """Start both in turn, each time from a fresh process."""
    mine, peers = [], []
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            mine.append(in_fresh_process(ours, samples, folder))
        with tempfile.TemporaryDirectory() as folder:
            peers.append(in_fresh_process(bare, folder))
    return mine, peers


def main() -> None:
    options_parser = parser(__doc__, repetitions=5, epochs=1)
    options_parser.add_argument("--samples", type=int, default=60_000, help="training images")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.samples = 1, 4_000
    print(f"{image_source()}: {options.samples} of them; {WORKERS} workers; the fit's publishing of blocks counts")
    mine, peers = measure(options.repetitions, options.samples)
    rows = []
    for place, name in enumerate(("first worker's first batch", "last worker's first batch")):
        our_times, peer_times = [start[place] for start in mine], [start[place] for start in peers]
        against = spread(ratios(our_times, peer_times))
        rows.append([name, spread(our_times), spread(peer_times), against, f"< {TARGET:.0f} s"])
    headers = ["seconds to the", "ours, from fit", "2 bare spawned processes", "ours / bare", "target (ours)"]
    print_table("Start of the local engine", headers, rows)


if __name__ == "__main__":
    main()
