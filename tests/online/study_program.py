"""A study that counts its samples: study_program.py FOLDER KIND; FOLDER gets its saves, and then
``ended.json``.

With ``lockstep`` as its kind, a study that chooses inputs and has its bits in that file.
"""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from compss_train import BufferSpec, DistributedTrainer, Merge, Simulations, SpacedInputs
from compss_train.callbacks import Checkpoint
from tests.helpers.waiting import pause
from tests.online.simulations import (
    COUNTING_SGD,
    CountingNet,
    increment,
    one_hot,
    sample_counts,
    sum_loss,
)

WORKERS = 2
SIMULATIONS = 20
STEPS = 20
SAMPLES = SIMULATIONS * STEPS


@dataclass(frozen=True)
class Simulate:
    folder: Path

    def __call__(self, number):
        increment(self.folder / f"begun-{number}")
        for step in range(STEPS):
            pause(0.02)
            yield one_hot(number * STEPS + step, SAMPLES), np.float32(0)


def main(folder: Path, kind: str) -> None:
    trainer = DistributedTrainer(WORKERS, engine="local", seed=0, threads=1)
    trainer.build(CountingNet(SAMPLES), COUNTING_SGD, sum_loss)
    parameters = trainer.fit_online(
        Simulations(Simulate(folder), range(SIMULATIONS), count=2),
        buffer=BufferSpec(kind, 40),
        batch_size=5,
        merge=Merge(every=3),
        checkpoint_every=0.2,
        callbacks=[Checkpoint(folder / "saves")],
        progress=False,
        resume=True,
    )
    counts = sample_counts(parameters, WORKERS)
    (folder / "ended.json").write_text(
        json.dumps({"counts": counts, "record": trainer.history[-1]})
    )
    trainer.close()


def wave(point):
    for step in range(STEPS):
        pause(0.005)
        yield (
            three_times(point)[0] + np.float32([0, 0, step / STEPS]),
            np.sin(np.float32(3 * point[:1] * step / STEPS + point[1])),
        )


def three_times(point):
    return np.array([[*point, time] for time in (0, 0.4, 0.8)], np.float32)


def lockstep(folder: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))
    trainer = DistributedTrainer(1, engine="local", seed=0, threads=1)
    trainer.build(net, {"optimizer": "adam", "lr": 0.01}, "mse")
    parameters = trainer.fit_online(
        Simulations(
            wave, SpacedInputs([(0, 2), (0, 1)], SIMULATIONS, three_times, seed=4), lockstep=True
        ),
        buffer=BufferSpec("FIFO", 40),
        batch_size=7,
        merge=Merge(every=3),
        checkpoint_every=0.1,
        callbacks=[Checkpoint(folder / "saves")],
        progress=False,
        resume=True,
    )
    bits = hashlib.sha256(
        b"".join(parameters[name].tobytes() for name in sorted(parameters))
    ).hexdigest()
    inputs = [drawn for record in trainer.history for drawn in record.get("inputs", ())]
    (folder / "ended.json").write_text(json.dumps({"bits": bits, "inputs": inputs}))
    trainer.close()


if __name__ == "__main__":
    lockstep(Path(sys.argv[1])) if sys.argv[2] == "lockstep" else main(
        Path(sys.argv[1]), sys.argv[2]
    )
