"""Measurements of ``engine_rounds``; each function runs in a separate application."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer
from compss_train.engines import Engine, engine_class

SAMPLES = 2
"""Samples per worker and round."""
WIDTH = 250
UNITS = 2
"""Tasks that run at a time."""
WARM_UP = (0.1, 4)
TASKS = 40
MANY_TASKS = 1000
"""Enough for Java to have compiled what it runs."""

Case = tuple[float, int]
"""Megabytes of parameters, and number of workers."""


class Lookup(nn.Module):
    """A table of any size; with sparse gradients a batch reads and changes one row per sample."""

    def __init__(self, megabytes: float) -> None:
        super().__init__()
        self.table = nn.Embedding(round(1e6 * megabytes / (4 * WIDTH)), WIDTH, sparse=True)
        self.output = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits for a batch of row numbers."""
        return self.output(self.table(x))


def rounds(engine: str, cases: list[Case], number: int) -> list[list[float]]:
    """Return the seconds of every round but the first, for each case, with workers that were started before."""
    _rounds(engine, WARM_UP, 2)
    return [_rounds(engine, case, number + 1)[1:] for case in cases]


def _rounds(engine: str, case: Case, number: int) -> list[float]:
    megabytes, workers = case
    x, y = (
        BlockedTensor.from_array(np.zeros(SAMPLES * workers, np.int64), (workers, 1)),
        BlockedTensor.from_array(np.zeros(SAMPLES * workers, np.int64), (workers, 1)),
    )
    with DistributedTrainer(workers, engine=engine, seed=0, threads=1) as trainer:
        trainer.build(Lookup(megabytes), {"optimizer": "sgd", "lr": 0.01}, "cross_entropy")
        trainer.fit(x, y, num_epochs=number, num_batches_per_worker=1, progress=False)
        return [record["seconds"] for record in trainer.history]


def rounds_and_parts(engine: str, cases: list[Case], number: int) -> dict[str, object]:
    """Return the times of rounds on an engine, and of their parts in the same application.

    The parts are the seconds of an empty task: fetched one at a time, in a chain of dependent tasks, and among many
    independent tasks; the processor time of one in the coordinator's process, with PyCOMPSs's or Ray's; and
    the seconds to write and to read a file of each case's parameters.
    """
    measured = rounds(engine, cases, number)
    with engine_class(engine).start(UNITS, 1) as started:
        started.fetch([started.submit(_nothing) for _ in range(4)])
        tasks = {"alone": _alone(started), "row": _row(started), "many": _many(started)}
        tasks["coordinator"] = _processor_time(started)
    files = [_files(megabytes) for megabytes, _ in cases]
    return {"rounds": measured, "tasks": tasks, "files": files}


def _nothing(*_: object) -> None:
    pass


def _alone(engine: Engine) -> float:
    began = time.perf_counter()
    for _ in range(TASKS):
        engine.fetch([engine.submit(_nothing)])
    return (time.perf_counter() - began) / TASKS


def _row(engine: Engine) -> float:
    began = time.perf_counter()
    last = engine.submit(_nothing)
    for _ in range(TASKS - 1):
        last = engine.submit(_nothing, last)
    engine.fetch([last])
    return (time.perf_counter() - began) / TASKS


def _many(engine: Engine) -> float:
    began = time.perf_counter()
    engine.fetch([engine.submit(_nothing) for _ in range(TASKS)])
    return (time.perf_counter() - began) / TASKS


def _processor_time(engine: Engine) -> float:
    engine.fetch([engine.submit(_nothing) for _ in range(MANY_TASKS)])
    began = time.process_time()
    engine.fetch([engine.submit(_nothing) for _ in range(MANY_TASKS)])
    return (time.process_time() - began) / MANY_TASKS


def _files(megabytes: float) -> tuple[float, float]:
    """Return the seconds to write serialized parameters to a file, and to read them."""
    from compss_train.engines.codec import SerializedValue

    parameters = {name: value.numpy() for name, value in Lookup(megabytes).state_dict().items()}
    with TemporaryDirectory() as folder:  # in /tmp by default, as the files of workers are
        path = Path(folder, "parameters")
        began = time.perf_counter()
        with path.open("wb") as file:
            pickle.dump(SerializedValue.of(parameters), file, protocol=5)
        written = time.perf_counter()
        with path.open("rb") as file:
            pickle.load(file).load()
        return written - began, time.perf_counter() - written
