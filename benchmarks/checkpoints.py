"""How much longer does a round with a checkpoint take? The MLP, with one every other round.

Neighbouring rounds of one fit are compared, because whole fits differ by more than the effect to
measure.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

import _common as common

from compss_train.callbacks import Checkpoint

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD, momentum 0.9": common.SGD,
    "Adam": {"optimizer": "adam", "lr": 0.001},
}


def measure(options: argparse.Namespace, optimizer: str) -> list[str]:
    """Return a row; checkpoints are written during rounds of even numbers, except the first."""
    seconds: list[float] = []
    ratios: list[float] = []
    x, y = common.load_images(options.samples).blocked(8)
    for _ in range(options.repetitions):
        with (
            tempfile.TemporaryDirectory(dir=options.folder) as folder,
            common.warm_trainer(common.network("MLP", 0), OPTIMIZERS[optimizer]) as trainer,
        ):
            fitted = common.fit(
                trainer, x, y, epochs=options.epochs, callbacks=[Checkpoint(folder, every=2)]
            )
            checkpoint = next(Path(folder).glob("round-*"))
            size = sum(path.stat().st_size for path in checkpoint.iterdir())
        of_rounds = [record["seconds"] for record in fitted.history]
        seconds += of_rounds
        for number in range(2, len(of_rounds) - 1, 2):
            without = mean([of_rounds[number - 1], of_rounds[number + 1]])
            ratios.append(of_rounds[number] / without)
    low, median, high = quantiles(ratios, n=4)
    quartiles = f"{median:.3f} ({low:.3f} to {high:.3f})"
    return [
        *(optimizer, f"{size / 1e6:.1f}", common.spread(seconds)),
        *(str(len(ratios)), quartiles, f"{mean(ratios):.3f}"),
    ]


def main() -> None:
    options_parser = common.parser(__doc__, repetitions=2, epochs=32, samples=60_000)
    options_parser.add_argument(
        "--folder", type=Path, help="of the checkpoints (default: the temporary one)"
    )
    options = common.parsed(options_parser, samples=2_000, epochs=8)
    print(common.image_source())
    columns = [
        *("optimizer", "MB", "seconds a round", "pairs"),
        *("with / without: median (quartiles)", "mean (<= 1.02)"),
    ]
    title = f"MLP, {common.WORKERS} workers, rounds of {options.samples:,} images"
    common.print_table(title, columns, [measure(options, optimizer) for optimizer in OPTIMIZERS])


if __name__ == "__main__":
    main()
