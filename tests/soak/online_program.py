"""An online fit that counts its samples: online_program.py FOLDER; it ends when FOLDER has a file
``over``.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from compss_train import BufferSpec, DistributedTrainer, Merge, Simulations
from tests.helpers.waiting import pause
from tests.online.simulations import COUNTING_SGD, sample_counts, sum_loss
from tests.soak.disturbed import note_process

WORKERS = 2
SIMULATORS = 2
STEPS = 50
"""Samples of a simulation."""
PAUSE = 0.02
"""Seconds that a sample takes."""
SIMULATIONS = 10_000
"""How many there may be: the network has a weight for each sample."""


def simulate(folder: Path, number: int) -> Iterator[tuple[np.ndarray, np.float32]]:
    """Yield the numbers of samples, slowly."""
    for step in range(STEPS):
        note_process(folder, "simulations")
        pause(PAUSE)
        yield np.array([number * STEPS + step]), np.float32(0)


class CountingTable(nn.Module):
    """Each sample that it is trained on lowers its weight by one."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, SIMULATIONS * STEPS))
        self.folder = folder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        note_process(self.folder, "workers")
        return self.weight[0, x[:, 0]]


def inputs(folder: Path) -> Iterator[int]:
    """Yield the numbers of simulations until there are enough."""
    return itertools.takewhile(lambda _: not (folder / "over").exists(), range(SIMULATIONS))


def main(folder: Path) -> None:
    trainer = DistributedTrainer(WORKERS, engine="local", seed=0, threads=1)
    trainer.build(CountingTable(folder), COUNTING_SGD, sum_loss)
    parameters = trainer.fit_online(
        Simulations(partial(simulate, folder), inputs(folder), SIMULATORS, retries=20),
        buffer=BufferSpec("FIFO", 60),
        batch_size=10,
        merge=Merge(every=5),
        checkpoint_every=2.0,
        record_every=5.0,
    )
    ended = {"counts": sample_counts(parameters, WORKERS), "record": trainer.history[-1]}
    (folder / "ended.json").write_text(json.dumps(ended))
    trainer.close()


if __name__ == "__main__":
    note_process(Path(sys.argv[1]), "coordinator")
    main(Path(sys.argv[1]))
