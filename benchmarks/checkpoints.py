"""Training the Fashion-MNIST MLP with a checkpoint every round, and without: what checkpoints cost."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from _common import image_source, load_images, network, parser, print_table, ratios, spread

from compss_train import BlockedTensor, DistributedTrainer
from compss_train.callbacks import Callback, Checkpoint

WORKERS, BATCH, BLOCKS = 2, 100, (8, 1)
OPTIMIZERS = {
    "SGD, momentum 0.9": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9},
    "Adam": {"optimizer": "adam", "lr": 0.001},
}
WARM_UP_SAMPLES = 10_000
NONE, EVERY = "none", "every round"


def seconds_of(samples: int, epochs: int, seed: int, optimizer: str, callbacks: list[Callback]) -> float:
    """Return how long a fit takes with a warm engine."""
    images = load_images(samples)
    with DistributedTrainer(WORKERS, engine="local", seed=seed, threads=1) as trainer:
        build = partial(trainer.build, network("MLP", seed), OPTIMIZERS[optimizer], "cross_entropy")
        build()
        warm = images.x[:WARM_UP_SAMPLES], images.y[:WARM_UP_SAMPLES]
        trainer.fit(*warm, num_epochs=1, batch_size=BATCH, progress=False)
        build()
        x, y = BlockedTensor.from_array(images.x, BLOCKS), BlockedTensor.from_array(images.y, BLOCKS)
        began = time.perf_counter()
        trainer.fit(x, y, num_epochs=epochs, batch_size=BATCH, callbacks=callbacks, progress=False)
        return time.perf_counter() - began


def measure(options: argparse.Namespace, optimizer: str) -> list[list[str]]:
    """Return the rows of a table: both contestants in turn, the first one another time each repetition."""
    seconds: dict[str, list[float]] = {NONE: [], EVERY: []}
    size = 0
    for repetition in range(options.repetitions):
        for label in sorted(seconds, reverse=bool(repetition % 2)):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                callbacks: list[Callback] = [Checkpoint(folder)] if label == EVERY else []
                taken = seconds_of(options.samples, options.epochs, repetition, optimizer, callbacks)
                size = size or sum(path.stat().st_size for path in Path(folder).glob("*/*")) // 2
            seconds[label].append(taken)
            print(f"{repetition + 1}: {optimizer}, checkpoints {label}: {taken:.2f} s", file=sys.stderr)
    return [
        [
            f"{optimizer}, {label}",
            "-" if label == NONE else f"{size / 1e6:.1f}",
            spread(taken),
            spread(ratios(taken, seconds[NONE]), ".3f"),
        ]
        for label, taken in seconds.items()
    ]


def main() -> None:
    """Measure, and print a table."""
    options = parser(__doc__, repetitions=5, epochs=8)
    options.add_argument("--samples", type=int, default=60_000, help="training images")
    options.add_argument("--folder", type=Path, help="where they are written (the temporary folder)")
    chosen = options.parse_args()
    if chosen.quick:
        chosen.samples, chosen.epochs, chosen.repetitions = 2_000, 2, 1
    print(image_source())
    rows = [row for optimizer in OPTIMIZERS for row in measure(chosen, optimizer)]
    title = f"MLP, {WORKERS} workers, {chosen.epochs} rounds of {chosen.samples:,} images"
    print_table(title, ["optimizer, checkpoints", "MB", "seconds", "of none (<= 1.02)"], rows)


if __name__ == "__main__":
    main()
