"""``compss-train report``: a page about a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from compss_train.cli.commands.base import Command, add_history, check_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_history(parser)
    where = "an .html file (report.html beside the history)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=where)


def run(options: argparse.Namespace) -> int:
    """Write the page, and print where."""
    from compss_train.cli.run_files.history_file import read_configuration, read_history
    from compss_train.reports.html import check_name, write

    path, history = read_history(options.run)
    output = options.output or path.with_name("report.html")
    check_folder(output)
    check_name(output)
    write(output, history, read_configuration(path.parent))
    print(f"{len(history)} rounds reported in {output}")
    return 0


COMMAND = Command(
    "report",
    "write a page about a run: curves, who trained when, configuration",
    add_arguments,
    run,
    examples="""\
  compss-train report runs/spirals
  compss-train report history.jsonl -o report.html""",
)
