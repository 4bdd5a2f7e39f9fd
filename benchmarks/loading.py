"""Training the Fashion-MNIST MLP through a FIRO, and a slow reader beside a model: what the pipeline costs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from _common import image_source, load_images, network, parser, print_table, ratios, spread
from torch import nn

from compss_train import BlockedTensor, BufferSpec, DistributedTrainer
from compss_train.buffers import FIRO
from compss_train.buffers.reading_ahead import ReadAhead, batches_through

WORKERS, BATCH, BLOCKS = 2, 100, (8, 1)
OPTIMIZER = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
WARM_UP_SAMPLES = 10_000
NONE, QUEUE, SHUFFLED, RESERVOIR = "no buffer", "FIFO of 4,096", "FIRO of 4,096", "Reservoir of 4,096"
SPECS = {
    NONE: None,
    SHUFFLED: BufferSpec("FIRO", 4096),
    QUEUE: BufferSpec("FIFO", 4096),
    RESERVOIR: BufferSpec("Reservoir", 4096),
}
CHUNK, FILES = 500, 40
"""Samples that the slow reader reads at a time, and how often."""


def trained_per_second(samples: int, epochs: int, seed: int, buffer: BufferSpec | None) -> float:
    """Return samples trained a second in a fit with a warm engine; a reservoir's repetitions count."""
    images = load_images(samples)
    with DistributedTrainer(WORKERS, engine="local", seed=seed, threads=1) as trainer:
        build = partial(trainer.build, network("MLP", seed), OPTIMIZER, "cross_entropy")
        build()
        trainer.fit(
            images.x[:WARM_UP_SAMPLES], images.y[:WARM_UP_SAMPLES], num_epochs=1, batch_size=BATCH, progress=False
        )
        build()
        x, y = BlockedTensor.from_array(images.x, BLOCKS), BlockedTensor.from_array(images.y, BLOCKS)
        began = time.perf_counter()
        trainer.fit(x, y, num_epochs=epochs, batch_size=BATCH, buffer=buffer, progress=False)
        seconds = time.perf_counter() - began
        trained = sum(worker["samples"] for record in trainer.history for worker in record["workers"])
    return trained / seconds


def report_training(options: argparse.Namespace) -> None:
    results: dict[str, list[float]] = {}
    for repetition in range(options.repetitions):
        for label, spec in SPECS.items():
            speed = trained_per_second(options.samples, options.epochs, repetition, spec)
            results.setdefault(label, []).append(speed)
            print(f"{repetition + 1}: {label}: {speed:,.0f}/s", file=sys.stderr)
    rows = [
        [label, spread(speeds, ",.0f"), spread(ratios(speeds, results[NONE]), ".3f")]
        for label, speeds in results.items()
    ]
    print_table(
        f"MLP, {WORKERS} workers, {options.epochs} epochs of {options.samples:,} images in {BLOCKS[0]} blocks",
        ["contestant", "samples trained/s", "of no buffer (FIRO: >= 0.95)"],
        rows,
    )


class Model:
    """Trains on what it is given."""

    def __init__(self) -> None:
        self.net = network("MLP", 0)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)

    def train(self, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Train a step on each batch."""
        for x, y in batches:
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.net(x), y).backward()
            self.optimizer.step()


class SlowStore:
    """Gives chunks of samples from memory, each after as long as a slow store would take."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, seconds: float) -> None:
        self._x, self._y, self._seconds = x, y, seconds

    def read(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the chunk of that number."""
        time.sleep(self._seconds)
        start = number * CHUNK
        return self._x[start : start + CHUNK].clone(), self._y[start : start + CHUNK].clone()


def seconds_of(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def cut(chunks: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for x, y in chunks:
        yield from zip(x.split(BATCH), y.split(BATCH), strict=True)


def report_slow_reader(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    images = load_images(CHUNK * FILES)
    x, y = torch.from_numpy(images.x), torch.from_numpy(images.y)
    Model().train(cut([(x, y)]))  # warms up
    rows = []
    for share, name in ((2.0, "half as fast as the model"), (1.0, "as fast"), (0.5, "twice as fast")):
        alone, reads, both, one_by_one = [], [], [], []
        for _ in range(options.repetitions):
            alone.append(seconds_of(lambda: Model().train(cut([(x, y)]))))
            store = SlowStore(x, y, share * alone[-1] / FILES)
            reads.append(seconds_of(lambda store=store: [store.read(number) for number in range(FILES)]))
            both.append(seconds_of(lambda store=store: Model().train(through_buffer(store))))
            one_by_one.append(seconds_of(lambda store=store: Model().train(cut(map(store.read, range(FILES))))))
        slower = [max(pair) for pair in zip(alone, reads, strict=True)]
        rows.append(
            [
                name,
                *(spread(values) for values in (alone, reads, one_by_one, both)),
                spread(ratios(both, slower)),
            ]
        )
    headers = ["the reader is", "model s", "reader s", "in turn s", "pipeline s", "of the slower (<= 1.1)"]
    print_table(f"{CHUNK * FILES:,} images, {CHUNK} a read, through a FIRO of 1,000", headers, rows)


def through_buffer(store: SlowStore) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    with ReadAhead(range(FILES), store.read, depth=4) as chunks:
        yield from batches_through(FIRO(1000, 500, seed=0), chunks, BATCH)


def main() -> None:
    options_parser = parser(__doc__, repetitions=3, epochs=3)
    options_parser.add_argument("--samples", type=int, default=60_000, help="training images")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs, options.samples = 1, 1, 12_000
    print(f"{image_source()}; torch {torch.__version__}")
    report_training(options)
    report_slow_reader(options)


if __name__ == "__main__":
    main()
