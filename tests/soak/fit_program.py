"""A fit that goes on from its checkpoints, slowly, on the engine that is there: fit_program.py
FOLDER EPOCHS.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from compss_train import DistributedTrainer
from compss_train.callbacks import Checkpoint
from tests.helpers.models import ADAM, blocked, classification
from tests.helpers.waiting import pause
from tests.soak.disturbed import note_process

INPUTS = 64
WORKERS = 10
PAUSE = 0.5
"""Seconds that a batch takes longer, so that faults come while workers train, and few rounds are to
be compared.

A task takes one: one that is killed four times would end the fit.
"""


def network() -> nn.Module:
    """Return a network of 0.3 MB, so that one that is kept in each round is seen."""
    torch.manual_seed(13)
    hidden = nn.Linear(INPUTS, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.3)
    return nn.Sequential(*hidden, nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))


@dataclass
class Noted:
    """A transform that changes nothing and takes a while; notes the processes in which it runs."""

    folder: Path = field(repr=False)
    seconds: float = field(repr=False)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        note_process(self.folder, "workers")
        pause(self.seconds)
        return x


def fit(folder: Path, engine: str, epochs: int, seconds: float) -> None:
    """Train, with all that a checkpoint has to hold: states of workers, random numbers, a best
    round.
    """
    x, y = classification(samples=2000, inputs=INPUTS)
    trainer = DistributedTrainer(WORKERS, engine=engine, seed=0, threads=1, worker_timeout=10.0)
    trainer.build(network(), ADAM, "cross_entropy", "accuracy", transform=Noted(folder, seconds))
    trainer.fit(
        *blocked(x, y, WORKERS),
        num_epochs=epochs,
        batch_size=100,
        shuffle="total",
        validation_data=(x[:50], y[:50]),
        callbacks=[Checkpoint(folder / "checkpoints", best="val_loss")],
        resume=True,
        progress=False,
    )
    trainer.close()


if __name__ == "__main__":
    note_process(Path(sys.argv[1]), "coordinator")
    fit(Path(sys.argv[1]), "auto", int(sys.argv[2]), PAUSE)
