"""``compss-train report`` and ``plot``: an HTML page and a plot of a run's history."""

import argparse
from pathlib import Path

from compss_train.cli.commands.base import Command, add_history_argument, check_parent_folder

AXES = ("round", "epoch", "samples", "seconds")


def _add_report_arguments(parser: argparse.ArgumentParser) -> None:
    add_history_argument(parser)
    output = "an .html file (default: report.html next to the history)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=output)


def _run_report(options: argparse.Namespace) -> int:
    """Write the page and print its path."""
    from compss_train.cli.run_files.run_folder import read_configuration, read_history
    from compss_train.reports.html import check_name, write

    path, history = read_history(options.run)
    output = options.output or path.with_name("report.html")
    check_parent_folder(output)
    check_name(output)
    write(output, history, read_configuration(path.parent))
    print(f"{len(history)} rounds reported in {output}")
    return 0


def _add_plot_arguments(parser: argparse.ArgumentParser) -> None:
    add_history_argument(parser)
    output = "a .png, .svg or .pdf file (default: plot.png next to the history)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=output)
    axis = "the horizontal axis (default: round)"
    parser.add_argument("--against", choices=AXES, default=AXES[0], help=axis)


def _run_plot(options: argparse.Namespace) -> int:
    """Draw the plot and print its path."""
    from compss_train._utils.files import atomic_path
    from compss_train.cli.run_files.run_folder import read_history
    from compss_train.reports.history import check_name

    path, history = read_history(options.run)
    output = options.output or path.with_name("plot.png")
    check_parent_folder(output)
    figure = history.plot(against=options.against)
    check_name(figure, output)  # before matplotlib would complain about the temporary file
    with atomic_path(output) as temporary:
        figure.savefig(temporary)
    print(f"{len(history)} rounds drawn in {output}")
    return 0


REPORT = Command(
    name="report",
    help="write an HTML page about a run: curves, timeline of the workers, configuration",
    add_arguments=_add_report_arguments,
    run=_run_report,
    examples="""\
  compss-train report runs/spirals
  compss-train report history.jsonl -o report.html""",
)
PLOT = Command(
    name="plot",
    help="plot losses, metrics, samples/s and how the workers spent their time",
    add_arguments=_add_plot_arguments,
    run=_run_plot,
    examples="""\
  compss-train plot runs/spirals
  compss-train plot history.jsonl -o curves.svg --against epoch""",
)
