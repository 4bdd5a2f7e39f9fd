"""A study whose simulations are jobs of SLURM, and which counts its samples.

``slurm_study.py FOLDER JOBS`` is its program, which goes on where an earlier one was killed;
``FOLDER/ended.json`` then has how often each sample was trained, the last record and the warnings.
``slurm_study.py job FOLDER`` is a job: ``FOLDER/log`` gets a line when one begins, and when it
ends, with its name and id.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

from compss_train import (
    BufferSpec,
    DistributedTrainer,
    Jobs,
    Merge,
    SampleSender,
    Simulations,
)
from compss_train.callbacks import Checkpoint
from tests.helpers.waiting import pause
from tests.online.simulations import COUNTING_SGD, sample_counts, sum_loss

LIMIT = 8
"""How many jobs may be in the queue."""
STEPS = 20
"""Samples of a job."""
PAUSE = 0.05
"""Seconds that a sample takes."""


class CountingTable(nn.Module):
    """Each sample that it is trained on lowers its weight by one."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, samples))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight[0, x[:, 0]]


def run_job(folder: Path) -> None:
    number = json.loads(os.environ["COMPSS_TRAIN_INPUT"])
    note(folder, "begun")
    with SampleSender(timeout=600.0) as sender:  # the program may be away for some time
        for step in range(STEPS):
            sender.send(np.array([number * STEPS + step]), np.float32(0))
            pause(PAUSE)
    note(folder, "ended")


def note(folder: Path, event: str) -> None:
    """Write what this job does to the log."""
    with (folder / "log").open("a") as file:
        file.write(f"{event} {os.environ['COMPSS_TRAIN_NAME']} {os.environ['SLURM_JOB_ID']}\n")


def main(folder: Path, jobs: int) -> None:
    trainer = DistributedTrainer(1, engine="local", seed=0, threads=1)
    trainer.build(CountingTable(jobs * STEPS), COUNTING_SGD, sum_loss)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parameters = trainer.fit_online(
            Simulations(
                jobs=Jobs(
                    submit=["sbatch", "--parsable", "--job-name={}", "job.sh"],
                    alive="squeue --me -h -o %i",
                    cancel="scancel {}",
                    at_most=LIMIT,
                    every=1.0,
                    find="squeue --me -h -o %i --name={}",
                ),
                inputs=range(jobs),
                address="tcp://node1:5555",
                token="ours alone",
            ),
            buffer=BufferSpec("FIFO", 40),
            batch_size=5,
            merge=Merge(every=3),
            checkpoint_every=1.0,
            callbacks=[Checkpoint(folder / "saves")],
            progress=False,
            resume=True,
        )
    ended = {
        "counts": sample_counts(parameters, 1),
        "simulations": trainer.history[-1]["simulations"],
        "warnings": [str(warning.message) for warning in caught],
    }
    trainer.close()
    (folder / "ended.json").write_text(json.dumps(ended))


if __name__ == "__main__":
    if sys.argv[1] == "job":
        run_job(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]))
