"""A study that counts its samples: study_program.py FOLDER KIND; FOLDER gets its saves, and then ``ended.json``."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compss_train import BufferSpec, DistributedTrainer, Merge, Simulations
from compss_train.callbacks import Checkpoint
from tests.helpers.waiting import pause
from tests.online.simulations import COUNTING_SGD, CountingNet, increment, one_hot, sample_counts, sum_loss

WORKERS, SIMULATIONS, STEPS = 2, 20, 20
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
    (folder / "ended.json").write_text(json.dumps({"counts": counts, "record": trainer.history[-1]}))
    trainer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
