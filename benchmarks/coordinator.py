"""Processor time of the coordinator a worker and round, and its memory, with an engine that runs nothing."""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _common import in_fresh_process, parser, print_table, spread
from numpy.typing import NDArray
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer, Merge, SerialEngine
from compss_train.callbacks import Callback
from compss_train.engines import Ref, Resources
from compss_train.engines.base import Traits, map_refs
from compss_train.engines.codec import dumps
from compss_train.engines.nodes import ONE_CPU
from compss_train.model.metrics import Measured

SAMPLES_A_BLOCK = 8
TARGET = 20
SETTLED = 0.4
"""The share of the rounds after which the growth of memory is measured."""


class NoEngine(SerialEngine):
    """Runs nothing: a task's results are there at once, as far as the coordinator looks at them."""

    def __init__(self, slots: int, *, shared_memory: bool, pickles: bool) -> None:
        super().__init__()
        self._slots = slots
        self.traits = Traits(shared_memory=shared_memory, task_seconds=0.0)  # type: ignore[misc]
        self._pickles = pickles
        self.tasks = self.inputs = self.sent = 0

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        returns: int = 1,
        resources: Resources = ONE_CPU,
        priority: bool = False,
    ) -> Any:
        """Return references to results that look like those of the task."""
        first = self.inputs
        plain = map_refs(args, self._counted)
        self.tasks += 1
        if self._pickles:
            data, buffers = dumps((function, plain))
            self.sent += data.nbytes + sum(buffer.nbytes for buffer in buffers) + 8 * (self.inputs - first)
        made = [self.publish(result) for result in RESULTS.get(function.__name__, _nothing)(returns, *args)]
        return made if returns > 1 else made[0]

    def _counted(self, ref: Ref) -> int:
        self.inputs += 1
        return self.inputs

    def commute(self, target: Ref, function: Callable[..., Any], *args: Any) -> Ref:
        """Return a reference to nothing; the target keeps its value."""
        made: Ref = self.submit(function, target, *args)
        return made

    def slots(self, resources: Resources) -> int:
        """Return the given number."""
        return self._slots


def _nothing(returns: int, *args: Any) -> list[Any]:
    return [None] * returns


def _trained(returns: int, *args: Any) -> list[Any]:
    """Return measurements in place of a sum, which carries them; or as the last result of a worker alone."""
    each = Measured(samples=8, batches=1, loss=16.0, planned_samples=8, started=time.time(), seconds=0.5)
    measured = [copy(each) for _ in args[4]]
    return [measured, None] if returns == 2 else [None, None, measured]


def _added_up(returns: int, items: Sequence[Any]) -> list[Any]:
    return [[*chain.from_iterable(item.value for item in items)]]


def _finished(returns: int, items: Sequence[Any], rule: Any, base: Any, *more: Any) -> list[Any]:
    return [base.value, [Measured(change=0.2), *_added_up(1, items)[0]], *([None] * (returns - 2))]


def _evaluated(returns: int, *args: Any) -> list[Any]:
    return [[Measured(samples=8, batches=1, loss=16.0) for _ in args[4]]]


RESULTS: dict[str, Callable[..., list[Any]]] = {
    "train_group": _trained,
    "train_worker": _trained,
    "partial_sum": _added_up,
    "merge_results": _finished,
    "evaluate": _evaluated,
}


@dataclass
class Watch(Callback):
    """Notes the processor time of the rounds, and the memory of the process after each."""

    seconds: list[float] = field(default_factory=list)
    kilobytes: list[int] = field(default_factory=list)

    def on_fit_start(self, trainer: Any, total_samples: int | None) -> None:
        """Note the time."""
        self.seconds.append(time.process_time())

    def on_round_end(self, trainer: Any, record: dict[str, Any]) -> None:
        """Note the memory."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.kilobytes.append(pages * os.sysconf("SC_PAGE_SIZE") // 1024)

    def on_fit_end(self, trainer: Any) -> None:
        """Note the time."""
        self.seconds.append(time.process_time())

    @property
    def growth(self) -> float:
        """Kilobytes a round, once the first rounds have passed."""
        settled = self.kilobytes[int(SETTLED * len(self.kilobytes)) :]
        return (settled[-1] - settled[0]) / max(1, len(settled) - 1)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A way to train."""

    merge: str = "synchronous"
    shuffle: str | None = "blocks"
    unit: str = "epochs"
    slots: int = 0
    """Slots to run; 0 for one for each worker."""
    nodes: bool = False
    """Whether blocks cannot be mapped, so that a total shuffle cuts them into pieces."""
    validation: bool = False
    pickles: bool = False
    """Whether the arguments of tasks are pickled, as for other processes."""

    @property
    def name(self) -> str:
        """What differs from the default."""
        parts = [self.merge, f"shuffle {self.shuffle}", f"{self.slots} slots" if self.slots else "a slot each"]
        parts += [] if self.unit == "epochs" else [f"rounds of {self.unit}"]
        return ", ".join([*parts, *(name for name in ("nodes", "validation", "pickles") if getattr(self, name))])


def coordinate(case: Case, workers: int, rounds: int) -> dict[str, float]:
    """Return microseconds, tasks, inputs and bytes a worker and round, and kilobytes a round."""
    samples = workers * SAMPLES_A_BLOCK
    x = BlockedTensor.from_array(np.zeros((samples, 4), np.float32), (workers, 1))
    y = BlockedTensor.from_array(np.zeros(samples, np.int64), (workers, 1))
    engine = NoEngine(case.slots or workers, shared_memory=not case.nodes, pickles=case.pickles)
    watch = Watch()
    with DistributedTrainer(workers, engine=engine, seed=0, threads=1) as trainer:
        trainer.build(nn.Linear(4, 2), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy")
        trainer.fit(
            x,
            y,
            num_epochs=rounds,
            num_batches_per_worker=1,
            merge=Merge(case.merge, unit=case.unit),  # type: ignore[arg-type]
            shuffle=case.shuffle,  # type: ignore[arg-type]
            validation_data=(x, y) if case.validation else None,
            callbacks=[watch],
            progress=False,
        )
        all_rounds = workers * len(trainer.history)
    return {
        "microseconds": 1e6 * (watch.seconds[1] - watch.seconds[0]) / all_rounds,
        "tasks": engine.tasks / all_rounds,
        "inputs": engine.inputs / all_rounds,
        "bytes": engine.sent / all_rounds,
        "growth": watch.growth,
    }


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Iterate over the cases that the options name."""
    for merge, shuffle, slots in product(options.merges, options.shuffles, options.slots):
        yield Case(
            merge=merge,
            shuffle=None if shuffle == "none" else shuffle,
            unit=options.unit,
            slots=slots,
            nodes=options.nodes,
            validation=options.validation,
            pickles=options.pickles,
        )


def bare_average(workers: int) -> float:
    """Return microseconds a worker of averaging as many parameter dicts in a plain loop."""
    versions = [_parameters() for _ in range(workers)]
    began = time.process_time()
    total = {name: np.zeros_like(array, np.float64) for name, array in versions[0].items()}
    for version in versions:
        for name, array in version.items():
            total[name] += SAMPLES_A_BLOCK * array
    for name, array in total.items():
        total[name] = (array / (SAMPLES_A_BLOCK * workers)).astype(np.float32)
    return 1e6 * (time.process_time() - began) / workers


def _parameters() -> dict[str, NDArray[np.float32]]:
    return {"weight": np.ones((2, 4), np.float32), "bias": np.ones(2, np.float32)}


def profile(case: Case, options: argparse.Namespace) -> None:
    """Print where the time of a case goes."""
    profiler = cProfile.Profile()
    profiler.runcall(coordinate, case, options.workers, options.epochs)
    print(f"\nProfile of {case.name}:")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def row(case: Case, runs: Sequence[dict[str, float]]) -> list[str]:
    """Return the row of a case."""
    middle = {name: median(run[name] for run in runs) for name in runs[0]}
    return [
        case.name,
        spread([run["microseconds"] for run in runs], ".1f"),
        f"{middle['tasks']:.3f}",
        f"{middle['inputs']:.1f}",
        f"{middle['bytes']:.0f}",
        f"{middle['growth']:.1f}",
    ]


def main() -> None:
    """Measure the cases in turn, each in a process of its own."""
    options_parser = parser(__doc__, repetitions=3, epochs=20)
    add = options_parser.add_argument
    add("--workers", type=int, default=10_000, help="workers, and blocks")
    add("--slots", type=int, nargs="+", default=[0, 64], help="slots to run; 0 for one for each worker")
    add("--merges", nargs="+", default=["synchronous", "commutative", "parameter_server"])
    add("--shuffles", nargs="+", default=["none", "blocks", "total", "partial"])
    add("--unit", default="epochs", help="merge_unit")
    add("--nodes", action="store_true", help="blocks that are not mapped: a total shuffle cuts pieces")
    add("--validation", action="store_true", help="evaluate every round")
    add("--pickles", action="store_true", help="pickle the arguments of tasks, as for other processes")
    add("--profile", action="store_true", help="print profiles instead")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs, options.workers = 1, 2, 100
    chosen = [case for case in cases(options) if case.merge == "synchronous" or not case.slots]
    if options.profile:
        for case in chosen:
            profile(case, options)
        return
    runs: dict[Case, list[dict[str, float]]] = {case: [] for case in chosen}
    for _, case in product(range(options.repetitions), chosen):
        runs[case].append(in_fresh_process(coordinate, case, options.workers, options.epochs))
    print(f"{options.workers} workers and blocks, {options.epochs} epochs, Linear(4, 2); target {TARGET} us")
    print(f"bare averaging in a loop: {bare_average(options.workers):.1f} us a worker")
    headers = ["a worker and round", "us", "tasks", "inputs", "bytes", "growth, kB a round"]
    print_table("The coordinator", headers, [row(case, runs[case]) for case in chosen])


if __name__ == "__main__":
    main()
