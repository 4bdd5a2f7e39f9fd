"""``compss-train advise``: seconds a round with other numbers of workers, from the history of a run."""

import argparse
from pathlib import Path

from compss_train.cli.commands.base import Command

WORKERS = (1, 2, 4, 8, 16, 32, 64)
WORTH = 1.1
"""More workers are worth it if fewer take more than this factor of the shortest time."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    run = "folder of a run, or its history in JSON lines, of an epoch or two"
    parser.add_argument("run", type=Path, metavar="RUN", help=run)
    processes = "workers that train at the same time (default: as many as in the run)"
    parser.add_argument("--processes", type=int, metavar="N", help=processes)


def _advise(options: argparse.Namespace) -> int:
    """Print the seconds of a round with each number of workers, and which one is worth it."""
    from compss_train._utils.validation import check_count
    from compss_train.cli.run_files.run_folder import read_history
    from compss_train.reports.advice import measured_cost
    from compss_train.reports.formatting import columns, number, speed
    from compss_train.reports.records import per_second

    path, history = read_history(options.run)
    try:
        cost = measured_cost(history)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    processes = cost.processes if options.processes is None else check_count("--processes", options.processes)
    lines = [["workers ", "seconds a round", "samples/s", "not training"]]
    rounds = {}
    for workers in sorted({*WORKERS, cost.workers}):
        training, others = cost.seconds(workers, processes)
        seconds = rounds[workers] = training + others
        mark = "*" if (workers, processes) == (cost.workers, cost.processes) else " "
        cells = number(seconds), speed(per_second(cost.samples, seconds)), f"{per_second(others, seconds):.0%}"
        lines.append([f"{workers}{mark}", *cells])
    best = next(workers for workers, seconds in rounds.items() if seconds <= WORTH * min(rounds.values()))
    print(f"{path}: {cost.workers} workers, {cost.processes} at a time, {cost.samples:,.0f} samples a round\n")
    print("\n".join(columns(lines, str.rjust)), "* measured", sep="\n", end="\n\n")
    print(f"Fastest for the same samples, or nearly, where {processes} train at a time: {best} workers.")
    print("Not in these numbers: more workers need more epochs to the same accuracy.")
    return 0


ADVISE = Command(
    name="advise",
    help="predict the seconds of a round with 1 to 64 workers from the history of a run",
    add_arguments=_add_arguments,
    run=_advise,
    examples="""\
  compss-train advise runs/8
  compss-train advise runs/8 --processes 32""",
)
