"""Training the Fashion-MNIST MLP with a checkpoint every other round: what a round with one takes longer.

Neighbours in one fit are compared, as whole fits differ by more than what is to be found.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, quantiles

from _common import image_source, load_images, network, parser, print_table, spread

from compss_train import BlockedTensor, DistributedTrainer
from compss_train.callbacks import Checkpoint

WORKERS, BATCH, BLOCKS = 2, 100, (8, 1)
OPTIMIZERS = {
    "SGD, momentum 0.9": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9},
    "Adam": {"optimizer": "adam", "lr": 0.001},
}


def seconds_of_rounds(samples: int, rounds: int, optimizer: str, folder: str) -> list[float]:
    """Return how long each round takes; checkpoints are written beside those of even numbers, but for the first."""
    images = load_images(samples)
    x, y = BlockedTensor.from_array(images.x, BLOCKS), BlockedTensor.from_array(images.y, BLOCKS)
    with DistributedTrainer(WORKERS, engine="local", seed=0, threads=1) as trainer:
        trainer.build(network("MLP", 0), OPTIMIZERS[optimizer], "cross_entropy")
        callbacks = [Checkpoint(folder, every=2)]
        trainer.fit(x, y, num_epochs=rounds, batch_size=BATCH, callbacks=callbacks, progress=False)
        return [record["seconds"] for record in trainer.history]


def ratios(seconds: list[float]) -> Iterator[float]:
    """Compare each round that has a checkpoint written beside it with the mean of those before and after."""
    for number in range(2, len(seconds) - 1, 2):
        yield seconds[number] / mean([seconds[number - 1], seconds[number + 1]])


def measure(options: argparse.Namespace, optimizer: str) -> list[str]:
    """Return a row of the table."""
    seconds, found = [], []
    for _ in range(options.repetitions):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            taken = seconds_of_rounds(options.samples, options.epochs, optimizer, folder)
            size = sum(path.stat().st_size for path in next(Path(folder).glob("round-*")).iterdir())
        seconds += taken
        found += ratios(taken)
    low, median, high = quantiles(found, n=4)
    beside = f"{median:.3f} ({low:.3f} to {high:.3f})"
    return [optimizer, f"{size / 1e6:.1f}", spread(seconds), str(len(found)), beside, f"{mean(found):.3f}"]


def main() -> None:
    """Measure, and print a table."""
    options = parser(__doc__, repetitions=2, epochs=32)
    options.add_argument("--samples", type=int, default=60_000, help="training images")
    options.add_argument("--folder", type=Path, help="where they are written (the temporary folder)")
    chosen = options.parse_args()
    if chosen.quick:
        chosen.samples, chosen.epochs = 2_000, 8
    print(image_source())
    columns = [
        "optimizer",
        "MB",
        "seconds a round",
        "pairs",
        "with / without: median (quartiles)",
        "mean (<= 1.02)",
    ]
    title = f"MLP, {WORKERS} workers, rounds of {chosen.samples:,} images"
    print_table(title, columns, [measure(chosen, optimizer) for optimizer in OPTIMIZERS])


if __name__ == "__main__":
    main()
