"""Seconds a round of almost no training: tasks, files and merging under COMPSs, and on the local engine."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from statistics import median

import _compss_parts as parts
from _common import parser, print_table, ratios, spread
from _compss import Runtime, call, skip_without_compss

from compss_train.model.weighted_mean import ranges_for_costs

UNITS = 2
SMALL = 0.1  # megabytes
SIZES, WORKERS = (1.0, 10.0, 100.0), (2, 4, 8, 16, 32, 64)


@dataclass
class Measured:
    """What the repetitions have measured of a case."""

    compss: list[float] = field(default_factory=list)
    local: list[float] = field(default_factory=list)
    write: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Way:
    """The longest way through a round: tasks one after another, and the models that they read and write."""

    tasks: int
    reads: int
    writes: int


def way(case: parts.Case) -> Way:
    """Return the way of a round where ``UNITS`` tasks run at a time, after the first rounds.

    Workers take less time than a task costs, so that there is a training task a unit, which reads the global
    parameters (the recipe has no weights); the sums are merged by one task, which reads the parameters, too. Sums
    are in double precision.
    """
    groups = len(ranges_for_costs(case[1], UNITS, 0.0, 1.0))
    if case[1] == groups:  # single versions, in the precision of the parameters
        return Way(2, 1 + 1 + groups, 2)
    return Way(2, 1 + 1 + 2 * groups, 2 + 1)


def measure(
    cases: list[parts.Case], options: argparse.Namespace
) -> tuple[dict[parts.Case, Measured], dict[str, list[float]]]:
    """Return what each case takes, and an empty task; both engines in turn."""
    measured = {case: Measured() for case in cases}
    tasks: dict[str, list[float]] = {}
    for repetition in range(options.repetitions):
        under_compss = call(parts.rounds_and_parts, cases, options.epochs, runtime=Runtime(UNITS))
        local = call(parts.rounds, "local", cases, options.epochs)
        columns = (under_compss["rounds"], local, under_compss["files"])
        for case, compss_seconds, local_seconds, (write, read) in zip(measured.values(), *columns, strict=True):
            case.compss.append(median(compss_seconds))
            case.local.append(median(local_seconds))
            case.write.append(write)
            case.read.append(read)
        for name, seconds in under_compss["tasks"].items():
            tasks.setdefault(name, []).append(seconds)
        print(f"repetition {repetition + 1} done", file=sys.stderr)
    return measured, tasks


def row(case: parts.Case, measured: Measured, task: float) -> list[str]:
    """Return a case's row; the parts are those of the way, each at its median cost."""
    megabytes, workers = case
    path = way(case)
    tasks = path.tasks * task
    files = path.reads * median(measured.read) + path.writes * median(measured.write)
    moved = (path.reads + path.writes) * megabytes
    return [
        f"{megabytes:g} MB, {workers} workers",
        spread(measured.compss, ".3f"),
        spread(measured.local, ".4f"),
        spread(ratios(measured.compss, measured.local), ".1f"),
        f"{path.tasks} x {1000 * task:.0f} ms = {tasks:.2f} s",
        f"{moved:.0f} MB at {moved / files:.0f} MB/s = {files:.2f} s",
        f"{100 * (tasks + files) / median(measured.compss):.0f}",
    ]


def report(measured: dict[parts.Case, Measured], tasks: dict[str, list[float]]) -> None:
    """Print both tables."""
    task = median(tasks["row"])
    headers = ["parameters", "compss s", "local s", "compss / local", "of it tasks", "of it files", "% explained"]
    rows = [row(case, results, task) for case, results in measured.items()]
    print_table("Seconds a round", headers, rows)
    names = {
        "alone": "waited for one at a time",
        "row": "each takes the one before (counted above)",
        "many": f"independent, {UNITS} at a time",
        "coordinator": f"processor time of the coordinator ({parts.MANY_TASKS} tasks)",
    }
    rows = [[label, spread([1000 * seconds for seconds in tasks[name]], ".1f")] for name, label in names.items()]
    print_table("An empty task of COMPSs", [f"{parts.TASKS} tasks", "ms a task"], rows)


def main() -> None:
    options_parser = parser(__doc__, repetitions=3, epochs=10)
    options_parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, help="MB of parameters")
    options_parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="logical workers")
    options = options_parser.parse_args()
    skip_without_compss()
    if options.quick:
        options.repetitions, options.epochs, options.sizes, options.workers = 1, 3, (1.0, 10.0), (2, 8)
    cases = [*((size, 2) for size in options.sizes), *((SMALL, workers) for workers in options.workers)]
    print(f"{UNITS} computing units, {parts.SAMPLES} samples a worker, {options.epochs} rounds after the first")
    report(*measure(cases, options))


if __name__ == "__main__":
    main()
