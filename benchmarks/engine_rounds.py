"""Seconds a round of almost no training on each engine: tasks, values and merging."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

import _round_parts as parts
from _common import parser, print_table, ratios, spread
from _compss import Runtime, call

from compss_train.data.partitioning import ranges_for_costs

SMALL = 0.1  # megabytes
SIZES, WORKERS = (1.0, 10.0, 100.0), (2, 4, 8, 16, 32, 64)

Results = dict[str, list[dict[str, Any]]]
"""What the repetitions have measured on each engine."""


@dataclass(frozen=True)
class Way:
    """The longest way through a round: tasks one after another, and the models that they read and write."""

    tasks: int
    reads: int
    writes: int


def way(case: parts.Case) -> Way:
    """Return the way of a round where ``parts.UNITS`` tasks run at a time, after the first rounds.

    Workers take less time than a task costs, so that there is a training task a unit, which reads the global
    parameters (the recipe has no weights); the sums are merged by one task, which reads the parameters, too. Sums
    are in double precision.
    """
    groups = len(ranges_for_costs(case[1], parts.UNITS, 0.0, 1.0))
    if case[1] == groups:  # single versions, in the precision of the parameters
        return Way(2, 1 + 1 + groups, 2)
    return Way(2, 1 + 1 + 2 * groups, 2 + 1)


def measure(engine: str, cases: list[parts.Case], epochs: int) -> dict[str, Any]:
    """Return what each case and an empty task take on an engine, in an application of its own."""
    runtime = Runtime(parts.UNITS) if engine == "compss" else None
    measured: dict[str, Any] = call(parts.rounds_and_parts, engine, cases, epochs, runtime=runtime)
    return measured


def rounds_table(results: Results, cases: list[parts.Case]) -> None:
    """Print the seconds of a round on each engine, and the ratios to the local engine's."""
    seconds = {
        engine: [[median(run["rounds"][number]) for run in runs] for number in range(len(cases))]
        for engine, runs in results.items()
    }
    rows = []
    for number, (megabytes, workers) in enumerate(cases):
        row = [f"{megabytes:g} MB, {workers} workers"]
        for engine, each in seconds.items():
            row.append(spread(each[number], ".4f"))
            if engine != "local" and "local" in seconds:
                row.append(spread(ratios(each[number], seconds["local"][number]), ".1f"))
        rows.append(row)
    headers = ["parameters"]
    for engine in results:
        headers += [f"{engine} s", *([f"{engine} / local"] if engine != "local" and "local" in results else [])]
    print_table("Seconds a round", headers, rows)


def tasks_table(results: Results) -> None:
    """Print what an empty task takes on each engine."""
    names = {
        "alone": "waited for one at a time",
        "row": "each takes the one before",
        "many": f"independent, {parts.UNITS} at a time",
        "coordinator": f"processor time of the coordinator ({parts.MANY_TASKS} tasks)",
    }
    rows = [
        [label, *(spread([1000 * run["tasks"][name] for run in runs], ".2f") for runs in results.values())]
        for name, label in names.items()
    ]
    headers = [f"{parts.TASKS} tasks", *(f"{engine} ms a task" for engine in results)]
    print_table("An empty task", headers, rows)


def explained_table(runs: list[dict[str, Any]], cases: list[parts.Case]) -> None:
    """Print how much of COMPSs's rounds its tasks and files explain, each at its median cost."""
    task, rows = median(run["tasks"]["row"] for run in runs), []
    for number, (megabytes, workers) in enumerate(cases):
        path = way((megabytes, workers))
        write, read = (median(run["files"][number][which] for run in runs) for which in (0, 1))
        tasks, files = path.tasks * task, path.reads * read + path.writes * write
        moved = (path.reads + path.writes) * megabytes
        taken = median(median(run["rounds"][number]) for run in runs)
        rows.append(
            [
                f"{megabytes:g} MB, {workers} workers",
                f"{path.tasks} x {1000 * task:.0f} ms = {tasks:.2f} s",
                f"{moved:.0f} MB at {moved / files:.0f} MB/s = {files:.2f} s",
                f"{100 * (tasks + files) / taken:.0f}",
            ]
        )
    print_table("A round of COMPSs", ["parameters", "of it tasks", "of it files", "% explained"], rows)


def main() -> None:
    options_parser = parser(__doc__, repetitions=3, epochs=10)
    options_parser.add_argument("--engines", nargs="+", default=["local", "ray", "compss"])
    options_parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, help="MB of parameters")
    options_parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="logical workers")
    options = options_parser.parse_args()
    if shutil.which("runcompss") is None and "compss" in options.engines:
        print("without COMPSs: there is no runcompss on the PATH; compss-train doctor says what it needs")
        options.engines.remove("compss")
    if options.quick:
        options.repetitions, options.epochs, options.sizes, options.workers = 1, 3, (1.0, 10.0), (2, 8)
    cases = [*((size, 2) for size in options.sizes), *((SMALL, workers) for workers in options.workers)]
    print(
        f"{parts.UNITS} tasks at a time, {parts.SAMPLES} samples a worker, {options.epochs} rounds after the first"
    )
    results: Results = {engine: [] for engine in options.engines}
    for repetition, engine in product(range(options.repetitions), options.engines):
        results[engine].append(measure(engine, cases, options.epochs))
        print(f"repetition {repetition + 1} of {engine} done", file=sys.stderr)
    rounds_table(results, cases)
    tasks_table(results)
    if "compss" in results:
        explained_table(results["compss"], cases)


if __name__ == "__main__":
    main()
