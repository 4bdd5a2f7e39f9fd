"""An application that trains while simulations run, and writes how often each sample was trained on.

``online.py MODE FOLDER OUTPUT.json``: with ``die`` a simulation and, after a checkpoint, the worker are
killed, once each; ``two`` has two workers; ``wait`` simulates without end.
"""

import json
import os
import signal
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from compss_train import BufferSpec, DistributedTrainer, Merge, Simulations

SIMULATIONS, STEPS = 12, 10
SAMPLES = SIMULATIONS * STEPS


def simulate(folder, mode, number):
    for step in range(STEPS):
        if mode == "die" and (number, step) == (3, 5):
            die_once(folder / "simulation")
        if mode == "die" and number == 8:
            kill_worker_once(folder, step)
        x = np.zeros(SAMPLES, np.float32)
        x[number * STEPS + step] = 1
        yield x, np.zeros(1, np.float32)
    while mode == "wait":
        (folder / "flag").touch()
        time.sleep(60)


def die_once(flag):
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def kill_worker_once(folder, step):
    """Kill the worker during a simulation, some checkpoints after the first samples."""
    if step == 4 and not (folder / "worker").exists():
        time.sleep(1.5)  # more than checkpoint_every
        (folder / "worker").touch()
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


class CountingNet(nn.Linear):
    """Each sample that it is trained on lowers its weight by one; writes its process id."""

    def __init__(self, folder):
        super().__init__(SAMPLES, 1, bias=False)
        nn.init.zeros_(self.weight)
        self.folder = folder

    def forward(self, x):
        if self.training:
            (self.folder / "pid").write_text(str(os.getpid()))
        return super().forward(x)


def sum_loss(output, target):
    return output.sum()


def main():
    mode, folder, output = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    workers = 2 if mode == "two" else 1
    trainer = DistributedTrainer(workers, seed=0, threads=1)
    trainer.build(CountingNet(folder), {"optimizer": "sgd", "lr": 1.0}, sum_loss)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parameters = trainer.fit_online(
            Simulations(partial(simulate, folder, mode), range(SIMULATIONS)),
            buffer=BufferSpec("FIFO", 20),
            batch_size=5,
            merge=Merge(every=2),
            checkpoint_every=0.3,
            record_every=0.5,
            validation_data=(np.eye(SAMPLES, dtype=np.float32), np.zeros((SAMPLES, 1), np.float32)),
        )
    counts = (-workers * torch.from_numpy(parameters["weight"][0])).round().int().tolist()
    result = {
        "engine": trainer._session.engine.name,
        "counts": counts,
        "warnings": [str(w.message) for w in caught],
    }
    output.write_text(json.dumps({**result, "history": trainer.history}))
    print("trained to the end", flush=True)


if __name__ == "__main__":
    main()
