"""Train the Fashion-MNIST MLP with a checkpoint every other round: how much longer a round with one takes.

Neighbouring rounds of one fit are compared, because whole fits differ by more than the effect to measure.
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
    """Return the seconds of each round; checkpoints are written during those of even numbers, except the first."""
    images = load_images(samples)
    x, y = BlockedTensor.from_array(images.x, BLOCKS), BlockedTensor.from_array(images.y, BLOCKS)
    with DistributedTrainer(WORKERS, engine="local", seed=0, threads=1) as trainer:
        trainer.build(network("MLP", 0), OPTIMIZERS[optimizer], "cross_entropy")
        callbacks = [Checkpoint(folder, every=2)]
        trainer.fit(x, y, num_epochs=rounds, batch_size=BATCH, callbacks=callbacks, progress=False)
        return [record["seconds"] for record in trainer.history]


def round_ratios(seconds: list[float]) -> Iterator[float]:
    """Yield the ratio of each round with a checkpoint to the mean of the rounds before and after it."""
    for number in range(2, len(seconds) - 1, 2):
        yield seconds[number] / mean([seconds[number - 1], seconds[number + 1]])


def measure(options: argparse.Namespace, optimizer: str) -> list[str]:
    """Return a row of the table."""
    seconds, ratios = [], []
    for _ in range(options.repetitions):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            round_seconds = seconds_of_rounds(options.samples, options.epochs, optimizer, folder)
            size = sum(path.stat().st_size for path in next(Path(folder).glob("round-*")).iterdir())
        seconds += round_seconds
        ratios += round_ratios(round_seconds)
    low, median, high = quantiles(ratios, n=4)
    with_checkpoint = f"{median:.3f} ({low:.3f} to {high:.3f})"
    return [
        optimizer,
        f"{size / 1e6:.1f}",
        spread(seconds),
        str(len(ratios)),
        with_checkpoint,
        f"{mean(ratios):.3f}",
    ]


def main() -> None:
    """Measure, and print a table."""
    options = parser(__doc__, repetitions=2, epochs=32)
    options.add_argument("--samples", type=int, default=60_000, help="training images")
    options.add_argument("--folder", type=Path, help="folder of the checkpoints (default: the temporary folder)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.samples, arguments.epochs = 2_000, 8
    print(image_source())
    columns = [
        "optimizer",
        "MB",
        "seconds a round",
        "pairs",
        "with / without: median (quartiles)",
        "mean (<= 1.02)",
    ]
    title = f"MLP, {WORKERS} workers, rounds of {arguments.samples:,} images"
    print_table(title, columns, [measure(arguments, optimizer) for optimizer in OPTIMIZERS])


if __name__ == "__main__":
    main()
