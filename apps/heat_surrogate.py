"""Learn a surrogate of the heat equation from simulations, on files or while they run.

A network predicts the temperatures inside a square at any time from those of its four walls and the
initial one. It is trained by several methods for the same number of batches: ``offline`` runs
simulations, as many as online training has seen, stores their samples in files and reads these in
every epoch; the others receive samples through a buffer from simulations that run concurrently.
Other simulations validate each method, after the same number of batches and after the same time.
All of this is repeated with several seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import buffer_plots
import common
import heat_plots
import heat_report
import heat_runs
from common import add_option
from heat_experiment import Experiment, Run, start_engine

from compss_train import Engine
from compss_train._utils.validation import check_count, check_seed

COUNTS = (
    *("batches", "batch_size", "workers", "merge_every", "grid", "steps", "substeps", "simulators"),
    *("validation_simulations", "buffer_size"),
)
"""Options that are integers of at least 1."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(
        description="Learn the heat equation from simulations, offline and online, and compare.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=heat_runs.METHODS,
        default=heat_runs.METHODS,
        help="methods to compare (default: all)",
    )
    _add_training(parser)
    _add_simulations(parser)
    _add_buffers(parser)
    seeds = (
        "each fixes initial weights and simulations, and repeats the comparison (default: 0 1 2)"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=(0, 1, 2), metavar="SEED", help=seeds
    )
    engine = "engine that runs the tasks: local, compss, serial or auto"
    add_option(parser, "--engine", str, "auto", engine)
    interval = "seconds between measurements of online training"
    add_option(parser, "--record-every", float, 1.0, interval)
    output = "output folder; existing results are replaced"
    add_option(parser, "--output", Path, Path("runs/heat_surrogate"), output)
    return parser


def _add_training(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--batches", int, 1500, "batches per worker, for each method")
    add_option(parser, "--batch-size", int, 10, "samples in a batch")
    add_option(parser, "--lr", float, 0.001, "learning rate of Adam")
    add_option(parser, "--workers", int, 1, "model replicas that are trained and merged")
    merge_every = "batches between merges; offline rounded to whole epochs"
    add_option(parser, "--merge-every", int, 50, merge_every)


def _add_simulations(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--grid", int, 64, "points along a side")
    add_option(parser, "--steps", int, 100, "samples per simulation, one per time step")
    add_option(parser, "--substeps", int, 1000, "solver steps per sample; more are slower")
    add_option(parser, "--simulators", int, 1, "simulations that run concurrently")
    seen = f"as many as the last online method saw, {heat_runs.SIMULATIONS} without one"
    parser.add_argument(
        "--offline-simulations", type=int, help=f"simulations stored in files (default: {seen})"
    )
    add_option(parser, "--validation-simulations", int, 10, "simulations for validation")


def _add_buffers(parser: argparse.ArgumentParser) -> None:
    size = "maximum samples in a worker's buffer, or in a pool of files"
    add_option(parser, "--buffer-size", int, 2000, size)
    threshold = "FIRO and Reservoir give samples while they hold at least this number"
    add_option(parser, "--threshold", int, 500, threshold)


def main() -> int:
    """Run the app and return its exit code.

    0 after a complete run, 1 if files, training or simulations fail, 2 for invalid options, 130
    after Ctrl-C.
    """
    parser = make_parser()
    options = parser.parse_args()

    def run() -> None:
        buffer_plots.check_matplotlib()
        check(options)
        common.make_folder(options.output)
        with start_engine(options, heat_runs.concurrent_tasks(options)) as engine:
            compare(options, engine)

    return common.exit_code(parser, run)


def check(options: argparse.Namespace) -> None:
    """Raise ``ValueError`` for an option out of range."""
    for seed in options.seeds:
        check_seed(seed)
    counts = [*COUNTS]
    if options.offline_simulations is not None:
        counts.append("offline_simulations")
    for name in counts:
        check_count("--" + name.replace("_", "-"), getattr(options, name))
    for name in ("lr", "record_every"):
        value = getattr(options, name)
        if not 0 < value < math.inf:
            raise ValueError(f"--{name.replace('_', '-')}={value}: give a number above 0")
    for method in heat_runs.ONLINE:
        heat_runs.buffer(method, options)


def compare(options: argparse.Namespace, engine: Engine) -> None:
    """Train by every method with every seed; print, draw and write the results."""
    experiments = [Experiment.make(options, engine, seed) for seed in dict.fromkeys(options.seeds)]
    runs = [_printed(run) for experiment in experiments for run in heat_runs.run_all(experiment)]
    report = heat_report.make(runs)
    print(heat_report.table(report))
    conclusion = heat_report.conclusion(report)
    if conclusion is not None:
        print(conclusion)
    write(experiments[0], runs, report)


def _printed(run: Run) -> Run:
    batches, losses = heat_report.curve(run, heat_report.BATCHES)
    cost = f"{batches[-1]:,} batches in {run.records[-1][heat_report.ELAPSED]:.1f} s"
    print(f"{run.method}, seed {run.seed}: {cost}, validation loss {losses[-1]:.2e}", flush=True)
    return run


def write(first: Experiment, runs: list[Run], report: dict[str, Any]) -> None:
    """Write the report and the plots; repetitions and fields are those of the first seed."""
    options = first.options
    of_first = [run for run in runs if run.seed == first.seed]
    values = {
        name: value if isinstance(value, int | float) else str(value)
        for name, value in vars(options).items()
    }
    content = json.dumps({**report, "options": values}, indent=1)
    (options.output / "report.json").write_text(f"{content}\n")
    heat_plots.save_losses(runs, options.output / "loss.png")
    heat_plots.save_repetitions(of_first, options.output / "repetitions.png")
    truth = first.validation[1][: options.steps]
    predictions = {run.method: run.fields for run in of_first}
    heat_plots.save_fields(truth, predictions, options.output / "fields.png")
    print(f"report, histories and plots in {options.output}")


if __name__ == "__main__":
    sys.exit(main())
