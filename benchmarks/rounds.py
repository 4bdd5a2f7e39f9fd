"""What does a round cost besides training? Its seconds; the coordinator's time and memory.

The part ``engines`` measures rounds of almost no training, empty tasks, and files of parameters. In
``coordinator`` there are thousands of workers, whose tasks run once and return the same in later
rounds; their time does not count.
"""

from __future__ import annotations

import argparse
import inspect
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import _applications as applications
import _common as common
import numpy as np
import torch
from _common import spread
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer, PartialShuffle, SerialEngine
from compss_train.callbacks import Callback
from compss_train.engines import Ref, Resources, engine_class
from compss_train.engines.base import Traits
from compss_train.engines.codec import SerializedValue
from compss_train.engines.mapping import map_chunk

# -- engines

SAMPLES = 2
"""Samples per worker and round."""
WIDTH = 250
"""Columns of a table of parameters."""
UNITS = 2
"""Tasks that run at a time."""
SMALL = 0.1
"""Megabytes of a small table."""
TASKS = 40
"""Number of empty tasks."""
MANY_TASKS = 1000
"""Number of empty tasks that is enough for Java to have compiled what it runs."""

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
        logits: torch.Tensor = self.output(self.table(x))
        return logits


def run_engine(engine: str, cases: list[Case], rounds: int, _: int) -> dict[str, list[float]]:
    """Return medians of what an engine takes, in an application of its own.

    Workers were started before. ``rounds`` has the seconds of a round but the first for each case;
    ``tasks`` those of an empty task: fetched one at a time, in a chain of dependent tasks, and
    among many independent tasks, and its processor time in the coordinator's process, with
    PyCOMPSs's or Ray's. ``written`` and ``read`` are those of files of the parameters.
    """
    seconds_of_rounds(engine, (SMALL, 4), 2)
    of_rounds = [median(seconds_of_rounds(engine, case, rounds + 1)[1:]) for case in cases]
    with engine_class(engine).start(UNITS, 1) as started:
        submit = partial(started.submit, nothing)
        fetch = started.fetch
        fetch([submit() for _ in range(4)])

        def chain() -> None:
            last = submit()
            for _ in range(TASKS - 1):
                last = submit(last)
            fetch([last])

        def one_at_a_time() -> None:
            for _ in range(TASKS):
                fetch([submit()])

        def at_once(number: int) -> None:
            fetch([submit() for _ in range(number)])

        many = partial(at_once, MANY_TASKS)
        of_tasks = [
            common.seconds_of(one_at_a_time) / TASKS,
            common.seconds_of(chain) / TASKS,
            common.seconds_of(partial(at_once, TASKS)) / TASKS,
            min(common.seconds_of(many, time.process_time) for _ in range(2)) / MANY_TASKS,
        ]
    of_files = [seconds_of_files(megabytes) for megabytes, _ in cases]
    return {
        "rounds": of_rounds,
        "tasks": of_tasks,
        "written": [written for written, _ in of_files],
        "read": [read for _, read in of_files],
    }


def seconds_of_rounds(engine: str, case: Case, number: int) -> list[float]:
    megabytes, workers = case
    x = BlockedTensor.from_array(np.zeros(SAMPLES * workers, np.int64), (workers, 1))
    y = BlockedTensor.from_array(np.zeros(SAMPLES * workers, np.int64), (workers, 1))
    with DistributedTrainer(workers, engine=engine, seed=0, threads=1) as trainer:
        trainer.build(Lookup(megabytes), {"optimizer": "sgd", "lr": 0.01}, "cross_entropy")
        trainer.fit(x, y, num_epochs=number, num_batches_per_worker=1, progress=False)
        return [float(record["seconds"]) for record in trainer.history]


def nothing(*_: object) -> None:
    pass


def seconds_of_files(megabytes: float) -> tuple[float, float]:
    """Return the seconds to write serialized parameters to a file, and to read them."""
    parameters = {name: value.numpy() for name, value in Lookup(megabytes).state_dict().items()}
    with TemporaryDirectory() as folder:  # in /tmp by default, as the files of workers are
        path = Path(folder, "parameters")

        def write() -> None:
            with path.open("wb") as file:
                pickle.dump(SerializedValue.of(parameters), file, protocol=5)

        def read() -> None:
            with path.open("rb") as file:
                pickle.load(file).load()

        return common.seconds_of(write), common.seconds_of(read)


def report_engines(options: argparse.Namespace) -> None:
    if "compss" in options.engines and not applications.has_compss():
        options.engines.remove("compss")
    cases = [(size, 2) for size in options.sizes]
    cases += [(SMALL, workers) for workers in options.workers]
    runtimes = {"compss": applications.Runtime(UNITS)}
    contestants: dict[str, Callable[[int], dict[str, list[float]]]] = {
        engine: partial(
            applications.call,
            run_engine,
            engine,
            cases,
            options.epochs,
            runtime=runtimes.get(engine),
        )
        for engine in options.engines
    }
    results = common.in_turn(contestants, options.repetitions)

    def print_parts(title: str, part: str, names: Sequence[str], unit: str, scale: float) -> None:
        rows = [[name] for name in names]
        for engine, runs in results.items():
            for number, row in enumerate(rows):
                values = [scale * run[part][number] for run in runs]
                row.append(spread(values, ".4g"))
                if engine != "local" and "local" in results:
                    base = [scale * run[part][number] for run in results["local"]]
                    row.append(spread(common.ratios(values, base), ".1f"))
        headers = [title]
        for engine in results:
            headers.append(f"{engine} {unit}")
            if engine != "local" and "local" in results:
                headers.append("to local")
        common.print_table(title, headers, rows)

    print(
        f"{UNITS} tasks at a time, {SAMPLES} samples a worker, {options.epochs} rounds after "
        "the first"
    )
    names = [f"{megabytes:g} MB, {workers} workers" for megabytes, workers in cases]
    print_parts("Seconds a round", "rounds", names, "s", 1)
    kinds = [
        *("fetched one at a time", "each takes the one before"),
        *(f"independent, {UNITS} at a time", "processor time of the coordinator"),
    ]
    print_parts("An empty task", "tasks", kinds, "ms", 1000)
    largest = max(range(len(cases)), key=lambda number: cases[number][0])
    megabytes, _ = cases[largest]
    all_runs = [run for runs in results.values() for run in runs]
    for part in ("written", "read"):
        rates = [megabytes / 1000 / run[part][largest] for run in all_runs]
        print(f"files of {megabytes:g} MB of parameters are {part} at {spread(rates)} GB/s")


# -- the coordinator

SAMPLES_A_BLOCK = 8
GOAL = 20
"""Microseconds of a worker and round."""
SHUFFLES: dict[str, Any] = {"none": None, "partial": PartialShuffle()}
SETTLED = 0.4
"""The share of the rounds after which the growth of memory is measured."""


class Replaying(SerialEngine):
    """Runs a task of workers once, and returns the same from then on.

    It notes the processor time of tasks.
    """

    # So that workers share a task a slot.
    traits: ClassVar[Traits] = Traits(shared_memory=True, task_seconds=1.0)

    def __init__(self, slots: int) -> None:
        super().__init__()
        self._slots = slots
        self._known: dict[Any, list[Any]] = {}
        self.tasks = 0
        self.seconds = 0.0

    def _submit(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        returns: int,
        resources: Resources,
        priority: bool,
        place: int | None = None,
    ) -> Sequence[Ref]:
        began = time.process_time()
        self.tasks += 1
        key = None
        if function is map_chunk:
            works = inspect.signature(map_chunk).bind(*args).arguments["items"]
            key = (returns, works[0].worker, len(works))
        if key in self._known:
            refs: Sequence[Ref] = [self.publish(value) for value in self._known[key]]
        else:
            refs = super()._submit(function, args, returns, resources, priority, place)
            if key is not None:
                self._known[key] = self.fetch(refs)
        self.seconds += time.process_time() - began
        return refs

    def slots(self, resources: Resources) -> int:
        """Return the given number."""
        return self._slots


@dataclass
class Watch(Callback):
    """Notes after each round the processor time besides tasks, and the memory of the process."""

    engine: Replaying
    seconds: list[float] = field(default_factory=list)
    kilobytes: list[int] = field(default_factory=list)

    def on_round_end(self, trainer: Any, record: dict[str, Any]) -> None:
        """Note them."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.kilobytes.append(pages * os.sysconf("SC_PAGE_SIZE") // 1024)
        self.seconds.append(time.process_time() - self.engine.seconds)

    def growth(self) -> float:
        """Return kilobytes a round, once the first rounds have passed."""
        settled = self.kilobytes[int(SETTLED * len(self.kilobytes)) :]
        return (settled[-1] - settled[0]) / max(1, len(settled) - 1)


def coordinate(
    workers: int, rounds: int, shuffle: Any, slots: int, _: int
) -> tuple[float, float, float]:
    """Return microseconds and tasks a worker and round, and kilobytes a round."""
    x = BlockedTensor.from_array(np.zeros((workers * SAMPLES_A_BLOCK, 4), np.float32), (workers, 1))
    y = BlockedTensor.from_array(np.zeros(workers * SAMPLES_A_BLOCK, np.int64), (workers, 1))
    engine = Replaying(slots or workers)
    watch = Watch(engine)
    with DistributedTrainer(workers, engine=engine, seed=0, threads=1) as trainer:
        trainer.build(nn.Linear(4, 2), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy")
        options = {
            "num_batches_per_worker": 1,
            "shuffle": shuffle,
            "callbacks": [watch],
            "progress": False,
        }
        trainer.fit(x, y, num_epochs=rounds, **options)
    seconds = (watch.seconds[-1] - watch.seconds[0]) / (workers * (rounds - 1))
    return 1e6 * seconds, engine.tasks / (workers * rounds), watch.growth()


def report_coordinator(options: argparse.Namespace) -> None:
    many = options.many
    rounds = max(3, 2 * options.epochs)
    contestants: dict[str, Callable[[int], tuple[float, float, float]]] = {}
    for name, slots in product(options.shuffles, options.slots):
        shuffle = SHUFFLES.get(name, name)
        label = f"shuffle {name}, {f'{slots} slots' if slots else 'a slot each'}"
        contestants[label] = partial(
            common.in_fresh_process, coordinate, many, rounds, shuffle, slots
        )
    results = common.in_turn(contestants, options.repetitions)
    rows = []
    for name, runs in results.items():
        times, tasks, growth = zip(*runs, strict=True)
        rows.append([name, spread(times, ".1f"), spread(tasks, ".3f"), spread(growth, ".1f")])
    headers = ["a worker and round", f"us (goal {GOAL})", "tasks", "growth, kB a round"]
    title = f"The coordinator of {many} workers, {rounds} rounds, Linear(4, 2)"
    common.print_table(title, headers, rows)


PARTS = {"engines": report_engines, "coordinator": report_coordinator}


def main() -> None:
    options_parser = common.parser(__doc__, repetitions=3, epochs=10, parts=PARTS)
    engines = options_parser.add_argument_group("the part engines").add_argument
    coordinator = options_parser.add_argument_group("the part coordinator").add_argument
    engines("--engines", nargs="+", default=["local", "ray", "compss"])
    engines(
        "--sizes",
        type=float,
        nargs="+",
        default=[1.0, 10.0, 100.0],
        help="MB of parameters of two workers",
    )
    engines(
        "--workers", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64], help=f"with {SMALL} MB"
    )
    coordinator("--many", type=int, default=10_000, help="workers, and blocks")
    coordinator(
        "--slots",
        type=int,
        nargs="+",
        default=[0, 64],
        help="slots to run; 0 for one for each worker",
    )
    coordinator("--shuffles", nargs="+", default=["none", "blocks", "total", "partial"])
    options = common.parsed(options_parser, epochs=3, sizes=[1.0, 10.0], workers=[2, 8], many=100)
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()
