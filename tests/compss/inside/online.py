"""An application that trains while simulations run, and writes how often each sample was trained
on.

``online.py MODE FOLDER OUTPUT.json``: with ``die`` a simulation and, after a checkpoint, the worker
die, once each; ``two`` has two workers; ``wait`` simulates without end. ``solver`` runs the program
SOLVER of the environment, of tests/online/solvers/faulty.c, on two ranks of MPI; one of them is
killed once. ``first`` begins a study, and ``resume`` goes on; so do ``begin`` and ``lose``, with
two workers, of which one is lost with its node.
"""

import json
import os
import signal
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn

from compss_train import BufferSpec, DistributedTrainer, Merge, Simulations, Solver
from compss_train.callbacks import Callback, Checkpoint
from tests.helpers.waiting import hang, pause
from tests.online.simulations import increment, wait_for_file

SIMULATIONS = 12
STEPS = 10
SAMPLES = SIMULATIONS * STEPS
STUDIES = "first", "resume", "begin", "lose"


def simulate(folder, mode, number):
    increment(folder / f"begun-{number}")
    if mode == "lose" and number == SIMULATIONS - 1:
        wait_for_file(folder / "lost")
    for step in range(STEPS):
        if mode == "die" and (number, step) == (3, 5):
            die_once(folder / "simulation")
        x = np.zeros(SAMPLES, np.float32)
        x[number * STEPS + step] = 1
        yield x, np.zeros(1, np.float32)
        if mode in STUDIES:
            pause(0.05)
    if mode == "wait":
        (folder / "flag").touch()
        hang()


def die_once(flag):
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class CountingNet(nn.Linear):
    """Each sample that it is trained on lowers its weight by one; dies at one of the samples the
    first time.
    """

    def __init__(self, flag, fatal):
        super().__init__(SAMPLES, 1, bias=False)
        nn.init.zeros_(self.weight)
        self.flag = flag
        self.fatal = fatal

    def forward(self, x):
        if self.training:
            self.flag.with_name(f"worker-{os.getpid()}").touch()
            if self.fatal in x.argmax(1):
                die_once(self.flag)
        return super().forward(x)


class StopAfter(Callback):
    """Stops a study when so many samples have arrived."""

    def __init__(self, received):
        self.received = received

    def on_round_end(self, trainer, record):
        if record["received"] >= self.received:
            trainer.stop("enough")


class LoseNode(Callback):
    """Kills the node of a worker that has trained, once: its Java program with all that this has
    started.
    """

    def __init__(self, folder):
        self.folder = folder

    def on_round_end(self, trainer, record):
        pids = [int(path.name.partition("-")[2]) for path in self.folder.glob("worker-*")]
        running = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        if running and not (self.folder / "lost").exists():
            node = next(each for each in running[0].parents() if each.name() == "java")
            for each in [node, *node.children(recursive=True)]:
                each.kill()
            (self.folder / "lost").touch()


def sum_loss(output, target):
    return output.sum()


def sample(number, step, fields):
    x = np.zeros(SAMPLES, np.float32)
    x[number * STEPS + step] = 1
    return x, np.float32([fields["u"].sum() - (8 * step + 40)])


def main():
    mode = sys.argv[1]
    folder = Path(sys.argv[2])
    output = Path(sys.argv[3])
    workers = 2 if mode in ("two", "begin", "lose") else 1
    study = {"callbacks": [Checkpoint(folder / "saves")], "resume": True} if mode in STUDIES else {}
    if mode in ("first", "begin"):
        study["callbacks"].append(StopAfter(40))
    elif mode == "lose":
        study["callbacks"].append(LoseNode(folder))
    trainer = DistributedTrainer(workers, seed=0, threads=1)
    dies = mode == "die"
    trainer.build(
        CountingNet(folder / "worker", 84 if dies else -1),
        {"optimizer": "sgd", "lr": 1.0},
        sum_loss,
    )
    simulate_mode: Any = partial(simulate, folder, mode)
    if mode == "solver":
        command = [
            "mpirun",
            "--oversubscribe",
            "-n",
            "2",
            os.environ["SOLVER"],
            "killed",
            str(folder / "killed"),
            "{}",
        ]
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        # Workers do not have this program's.
        simulate_mode = Solver(command, sample, cpus=2, environment=as_root)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parameters = trainer.fit_online(
            Simulations(simulate_mode, range(SIMULATIONS)),
            buffer=BufferSpec("FIFO", 20),
            batch_size=5,
            merge=Merge(every=2),
            checkpoint_every=1e-6 if dies else 0.3,  # after each batch, or now and then
            record_every=0.2,
            **study,
            validation_data=(np.eye(SAMPLES, dtype=np.float32), np.zeros((SAMPLES, 1), np.float32)),
        )
    counts = (-workers * torch.from_numpy(parameters["weight"][0])).round().int().tolist()
    result = {
        "engine": trainer.configuration["trainer"]["engine"],
        "counts": counts,
        "warnings": [str(w.message) for w in caught],
    }
    output.write_text(json.dumps({**result, "history": trainer.history}))
    print("trained to the end", flush=True)


if __name__ == "__main__":
    main()
