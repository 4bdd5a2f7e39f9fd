"""An application without a guard, which PyCOMPSs imports before it runs it: unguarded.py FILE."""

import sys
from pathlib import Path

from torch import nn

from compss_train import DistributedTrainer
from compss_train.callbacks import Callback
from tests.helpers.models import SGD, classification


class EventLog(Callback):
    """Writes the events of a fit to the file."""

    def on_fit_start(self, trainer, total_samples):
        note("fit")

    def on_exception(self, trainer, error):
        note(f"exception {error!r}")

    def on_fit_end(self, trainer):
        note("end")


def note(what):
    with Path(sys.argv[1]).open("a") as file:
        file.write(f"{what}\n")


note("script")
trainer = DistributedTrainer(2, seed=0)
trainer.build(nn.Linear(6, 3), SGD, "cross_entropy")
trainer.fit(*classification(), num_epochs=2, batch_size=10, progress=False, callbacks=[EventLog()])
