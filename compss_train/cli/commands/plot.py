"""``compss-train plot``: curves of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from compss_train.cli.commands.base import Command, add_history, check_folder

AXES = ("round", "epoch", "samples", "seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_history(parser)
    where = "a .png, .svg or .pdf file (plot.png beside the history)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=where)
    parser.add_argument("--against", choices=AXES, default=AXES[0], help="what the curves are drawn over (round)")


def run(options: argparse.Namespace) -> int:
    """Draw, and print where."""
    from compss_train._utils.files import replacing
    from compss_train.cli.run_files.history_file import read_history
    from compss_train.reports.history import check_name

    path, history = read_history(options.run)
    output = options.output or path.with_name("plot.png")
    check_folder(output)
    figure = history.plot(against=options.against)
    check_name(figure, output)  # not that of the temporary file
    with replacing(output) as temporary:
        figure.savefig(temporary)
    print(f"{len(history)} rounds drawn in {output}")
    return 0


COMMAND = Command(
    "plot",
    "draw losses, metrics, samples/s and what the workers spent their time on",
    add_arguments,
    run,
    examples="""\
  compss-train plot runs/spirals
  compss-train plot history.jsonl -o curves.svg --against epoch""",
)
