"""A study that counts its samples, for random kills: study_program.py FOLDER SEED.

What it is follows from the seed: its buffer, its sources, its number of workers, and whether it is
saved. ``study_program.py FOLDER SEED sender`` is the program that sends the last samples. FOLDER
gets ``said.jsonl``, what the fit has warned of, and at the end ``ended.json``.
"""

import json
import random
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from compss_train import (
    BufferSpec,
    DistributedTrainer,
    Merge,
    SampleSender,
    Simulations,
    Solver,
)
from compss_train.buffers import TimeStep
from compss_train.callbacks import Checkpoint
from tests.helpers.waiting import pause
from tests.online.simulations import COUNTING_SGD, sample_counts, sum_loss
from tests.online.solvers.compiled import AS_ROOT, compiled, mpirun
from tests.soak.disturbed import note_process

SIMULATIONS = 12
STEPS = 20
"""Samples of a simulation, and of the sender."""
PAUSE = 0.02
"""Seconds that a sample takes."""
TOKEN = "ours alone"
BUFFERS = {
    "FIFO": {"capacity": 40},
    "FIRO": {"capacity": 40, "threshold": 10},
    "Reservoir": {"capacity": 60, "threshold": 10},
    "BatchReservoir": {"capacity": 60, "threshold": 10},
    "SimPairedReservoir": {
        "capacity": 120,
        "threshold": 20,
        "sweep_size": SIMULATIONS + 1,
        "nb_time_steps": STEPS,
    },
}
RESERVOIRS = ["Reservoir", "BatchReservoir", "SimPairedReservoir"]


@dataclass(frozen=True)
class Study:
    """What a study consists of."""

    buffer: str
    workers: int
    count: int
    """How many simulations run at a time."""
    is_saved: bool
    runs_solver: bool
    """Whether its simulations are runs of an executable with two ranks."""
    sender: str | None
    """``"named"`` or ``"nameless"``, if a program sends, too."""

    @classmethod
    def of(cls, seed: int) -> "Study":
        """Return the study of a seed; two of three use FIFO or FIRO, whose samples are counted."""
        draw = random.Random(f"study {seed}")
        return cls(
            buffer=draw.choice(["FIFO", "FIRO"] * 3 + RESERVOIRS),
            workers=draw.choice([1, 2]),
            count=draw.choice([1, 2]),
            is_saved=draw.random() < 0.6,
            runs_solver=draw.random() < 0.3,
            sender=draw.choice([None, None, "named", "named", "nameless"]),
        )

    @property
    def streams(self) -> int:
        """How many simulations and senders there are."""
        return SIMULATIONS + (self.sender is not None)

    @property
    def samples(self) -> int:
        """How many samples all sources have."""
        return self.streams * STEPS


def simulate(folder: Path, number: int) -> Iterator[tuple[int, np.ndarray, np.float32]]:
    """Yield the numbers of samples, slowly."""
    for step in range(STEPS):
        note_process(folder, "simulations")
        pause(PAUSE)
        yield step, np.array([number * STEPS + step]), np.float32(0)


def solver_sample(first: int, step: int, fields: Any) -> tuple[np.ndarray, np.float32]:
    number, negative = fields["number"]
    if number != -negative or number != first + step:
        raise ValueError(f"the ranks have sent {number} and {negative} at step {step} of {first}")
    return np.array([int(number)]), np.float32(0)


def pair(earlier: TimeStep, later: TimeStep) -> tuple[torch.Tensor, Any]:
    """Return the numbers of both samples, so that both count."""
    return torch.cat([earlier.data[0], later.data[0]], dim=1), earlier.data[1]


class CountingTable(nn.Module):
    """Each sample that it is trained on lowers its weight by one."""

    def __init__(self, folder: Path, samples: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, samples))
        self.folder = folder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        note_process(self.folder, "workers")
        pause(PAUSE)
        return self.weight[0, x]


def sources(study: Study, folder: Path) -> Simulations:
    """Return what sends samples."""
    inputs: list[int] = list(range(SIMULATIONS))
    simulated: Any = partial(simulate, folder)
    if study.runs_solver:
        command = mpirun(2, compiled("mpicc", "counted.c"))
        command = [*command, "{}", str(STEPS), str(int(PAUSE * 1e6))]
        simulated = Solver(
            command, solver_sample, environment={**AS_ROOT, "OMPI_MCA_mpi_yield_when_idle": "1"}
        )
        inputs = [number * STEPS for number in inputs]
    options: dict[str, Any] = {"count": study.count, "retries": 30}
    if study.sender is not None:
        port = (folder / "port").read_text()
        options |= {"senders": 1, "address": f"tcp://127.0.0.1:{port}", "token": TOKEN}
        options |= {"senders_timeout": 120}
    if study.buffer == "SimPairedReservoir":
        options |= {"pairing": pair}
    return Simulations(simulated, inputs, **options)


def main(folder: Path, seed: int) -> None:
    """Train the study until its end; note what it warns of."""
    study = Study.of(seed)

    def note(message: Warning | str, *_: object, **__: object) -> None:
        with (folder / "said.jsonl").open("a") as file:
            file.write(json.dumps(str(message)) + "\n")

    warnings.simplefilter("always")
    warnings.showwarning = note
    trainer = DistributedTrainer(study.workers, engine="local", seed=seed, threads=1)
    trainer.build(CountingTable(folder, study.samples), COUNTING_SGD, sum_loss)
    saves = {"callbacks": [Checkpoint(folder / "saves")], "resume": True, "checkpoint_every": 0.3}
    parameters = trainer.fit_online(
        sources(study, folder),
        buffer=BufferSpec(study.buffer, **BUFFERS[study.buffer]),
        batch_size=5,
        merge=Merge(every=3),
        progress=False,
        **(saves if study.is_saved else {"checkpoint_every": None}),
    )
    counts = sample_counts(parameters, study.workers)
    ended = {"counts": counts, "record": trainer.history[-1]}
    (folder / "ended.json").write_text(json.dumps(ended))
    trainer.close()


def send(folder: Path, seed: int) -> None:
    """Send the last samples."""
    study = Study.of(seed)
    note_process(folder, "senders")
    port = (folder / "port").read_text()
    name = "the sender" if study.sender == "named" else None
    with SampleSender(f"tcp://127.0.0.1:{port}", TOKEN, name, timeout=120) as sender:
        for step in range(STEPS):
            pause(5 * PAUSE)
            sender.send(np.array([SIMULATIONS * STEPS + step]), np.float32(0), step=step)


if __name__ == "__main__":
    run = send if "sender" in sys.argv else main
    run(Path(sys.argv[1]), int(sys.argv[2]))
