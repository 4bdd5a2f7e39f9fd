"""Wait for ever soon after the first checkpoint of a fit: python -m tests.helpers.stuck_fit_program FOLDER."""

import sys
import time
from pathlib import Path

from compss_train import LocalEngine
from compss_train.callbacks import Checkpoint
from tests.helpers.small_fits import fit, trainer_of


class StuckOnce:
    """A transform that takes for ever when a file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, x):
        if self.file.exists():
            time.sleep(600)
        return x


def main(folder: Path) -> None:
    with LocalEngine(1) as engine:
        trainer = trainer_of(engine, transform=StuckOnce(folder / "round-000000"))
        fit(trainer, Checkpoint(folder, keep=9), num_epochs=20)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
