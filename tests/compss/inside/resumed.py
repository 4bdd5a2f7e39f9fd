"""A fit that resumes from its checkpoints: resumed.py FOLDER [ROUND SIGNAL]; the signal ends it in that round."""

import os
import sys
from pathlib import Path

from compss_train import DistributedTrainer
from compss_train.callbacks import Callback, Checkpoint
from compss_train.model import parameters
from tests.helpers.models import ADAM, awkward_net, blocked, classification


class SendSignal(Callback):
    """Sends a signal to this process in a round."""

    def __init__(self, number: int, signal: int) -> None:
        self.number = number
        self.signal = signal

    def on_round_end(self, trainer, record):
        if record["round"] == self.number:
            os.kill(os.getpid(), self.signal)


def fit(folder: Path, engine, callbacks):
    x, y = classification(samples=57)
    trainer = DistributedTrainer(3, engine=engine, seed=0, threads=1)
    trainer.build(awkward_net(), ADAM, "cross_entropy", "accuracy")
    callbacks = [Checkpoint(folder), *callbacks]
    options = {"num_epochs": 3, "batch_size": 4, "merge_unit": "blocks", "shuffle": "total"}
    return trainer.fit(*blocked(x, y, 7), **options, callbacks=callbacks, resume=True), trainer


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    callbacks = [SendSignal(*map(int, sys.argv[2:]))] if len(sys.argv) > 2 else []
    trained, trainer = fit(folder / "checkpoints", "auto", callbacks)
    print("resumed from", trainer.resumed_from, "on", trainer.configuration["trainer"]["engine"])
    parameters.save(folder / "trained.npz", trained)
