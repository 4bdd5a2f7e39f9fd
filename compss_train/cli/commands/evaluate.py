"""``compss-train evaluate``: loss and metrics of what a run has trained."""

from __future__ import annotations

import argparse
import json

from compss_train.cli.commands.base import Command, add_run, add_run_settings, settings_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run(parser)
    parser.add_argument(
        "--data",
        nargs="+",
        metavar="FILE",
        help="files with x and y (.npz, .pt, .h5; patterns in quotes), or two .npy files, x and y "
        "(the run's validation data)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_run_settings(parser)


def run(options: argparse.Namespace) -> int:
    """Print loss and metrics."""
    from compss_train.cli.run_files.inputs import (  # it needs torch, which other commands do without
        absolute,
        read_pair,
    )
    from compss_train.cli.run_files.loading import open_run
    from compss_train.cli.run_files.messages import measured
    from compss_train.cli.run_files.problems import of_samples

    files = absolute(options.data or ())
    with open_run(options.run, settings_of(options)) as run:
        pair = read_pair(files, run.file) if files else run.held_out()
        with run.trainer(best=options.best) as trainer, of_samples("evaluated"):
            result = trainer.evaluate(*pair[:2])
    print(json.dumps(result) if options.json else measured(result))
    return 0


COMMAND = Command(
    "evaluate",
    "measure what a run has trained, on its validation data or others",
    add_arguments,
    run,
    examples="""\
  compss-train evaluate runs/spirals
  compss-train evaluate runs/spirals --best --data "test/*.npz" --json
  compss-train evaluate runs/spirals --data test-x.npy test-y.npy""",
)
