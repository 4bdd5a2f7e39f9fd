"""A fit that resumes from its checkpoints: resumed.py FOLDER [ROUND SIGNAL].

The signal ends it in that round.

SIGNAL is a number, or ``batch``, by which the first run of a SLURM job sends SIGTERM to its job
script, or ``limit``, by which it waits until SLURM does so because the time is nearly up.
"""

import os
import subprocess
import sys
from pathlib import Path

from compss_train import DistributedTrainer, Merge
from compss_train.callbacks import Callback, Checkpoint
from compss_train.model import parameters
from tests.helpers.models import ADAM, awkward_net, blocked, classification
from tests.helpers.waiting import wait_until


class SendSignal(Callback):
    """Sends a signal to this process, or the job script, in a round."""

    def __init__(self, number: str, signal: str) -> None:
        self.number = int(number)
        self.signal = signal

    def on_round_end(self, trainer, record):
        if record["round"] != self.number:
            return
        if self.signal.isdecimal():
            os.kill(os.getpid(), int(self.signal))
            return
        if self.signal == "batch":
            subprocess.run(
                ["scancel", "--batch", "--signal=TERM", os.environ["SLURM_JOB_ID"]], check=True
            )
        wait_until(lambda: trainer.stopping is not None, 300)  # the script passes it on


def fit(folder: Path, engine, callbacks, **options):
    x, y = classification(samples=57)
    trainer = DistributedTrainer(3, engine=engine, seed=0, threads=1)
    trainer.build(awkward_net(), ADAM, "cross_entropy", "accuracy")
    callbacks = [Checkpoint(folder), *callbacks]
    options |= {"num_epochs": 3, "batch_size": 4, "merge": Merge(unit="blocks"), "shuffle": "total"}
    return trainer.fit(*blocked(x, y, 7), **options, callbacks=callbacks, resume=True), trainer


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    callbacks = [SendSignal(*sys.argv[2:])] if len(sys.argv) > 2 else []
    trained, trainer = fit(folder / "checkpoints", "auto", callbacks)
    print("resumed from", trainer.resumed_from, "on", trainer.configuration["trainer"]["engine"])
    parameters.save(folder / "trained.npz", trained)
