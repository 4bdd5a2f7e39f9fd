"""``compss-train report``, ``plot``, ``compare`` and ``runs``: pages, plots and tables of the histories of runs."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compss_train.cli.commands.base import Command, add_axis_argument, add_history_arguments, check_parent_folder


def _add_report_arguments(parser: argparse.ArgumentParser) -> None:
    where = "report.html in the folder of a run, else an .html file next to the history"
    add_history_arguments(parser, f"an .html file (default: {where}; of several runs, comparison.html here)")


def _run_report(options: argparse.Namespace) -> int:
    """Write the page and print its path."""
    from compss_train.cli.run_files.run_folder import RunFolder, read_configuration, read_history
    from compss_train.reports.html import check_name, write

    if len(options.runs) > 1:
        return _write_comparison(options.runs, options.output or Path("comparison.html"), "round")
    path, history = read_history(options.runs[0])
    folder = RunFolder(path.parent)
    own = folder.configuration.exists()  # else report.html may be one of the callback Report, which knows more
    output = options.output or (folder.report if own else path.with_suffix(".html"))
    check_parent_folder(output)
    check_name(output)
    write(output, history, read_configuration(path.parent), status=folder.state())
    print(f"{len(history)} rounds reported in {output}")
    return 0


def _add_plot_arguments(parser: argparse.ArgumentParser) -> None:
    where = "plot.png next to the history; of several runs, comparison.png"
    add_history_arguments(parser, f"a .png, .svg or .pdf file (default: {where})")
    add_axis_argument(parser)


def _run_plot(options: argparse.Namespace) -> int:
    """Draw the plot and print its path."""
    from compss_train.cli.run_files.run_folder import read_history
    from compss_train.reports.history import save_figure

    if len(options.runs) > 1:
        return _write_comparison(options.runs, options.output or Path("comparison.png"), options.against)
    path, history = read_history(options.runs[0])
    output = options.output or path.with_name("plot.png")
    check_parent_folder(output)
    save_figure(history.plot(against=options.against), output)
    print(f"{len(history)} rounds drawn in {output}")
    return 0


def _write_comparison(runs: Sequence[Path], output: Path, against: Any) -> int:
    """Write a page if the name of the file ends in .html, else an image, and print its path."""
    from compss_train._utils.files import write_atomic
    from compss_train._utils.imports import import_optional
    from compss_train.cli.run_files.run_folder import read_compared
    from compss_train.reports.history import save_figure
    from compss_train.reports.html import comparison_page, is_page

    compared = read_compared(runs)
    check_parent_folder(output)
    if is_page(output):
        write_atomic(output, comparison_page(compared, against))
    else:
        import_optional("matplotlib", extra="plot", needed_by="plot")
        from compss_train.reports.plots import draw_comparison

        save_figure(draw_comparison(compared, against), output)
    print(f"{len(compared)} runs compared in {output}")
    return 0


def _add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    add_history_arguments(parser, "also write an .html page, or a .png, .svg or .pdf image, with all curves")
    add_axis_argument(parser)


def _run_compare(options: argparse.Namespace) -> int:
    """Print the table, and write the file if one is named."""
    from compss_train.cli.run_files.run_folder import read_compared
    from compss_train.reports.comparison import comparison_table

    print(_format_table(comparison_table(read_compared(options.runs))))
    return 0 if options.output is None else _write_comparison(options.runs, options.output, options.against)


def _add_runs_arguments(parser: argparse.ArgumentParser) -> None:
    text = "folder with the folders of runs (default: runs)"
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs"), metavar="FOLDER", help=text)


def _run_runs(options: argparse.Namespace) -> int:
    """Print a line for each run."""
    from compss_train.cli.run_files.run_folder import find_runs, read_summary

    if not (folders := find_runs(options.folder)):
        raise FileNotFoundError(f"{options.folder}: no folder of a run is here; name the folder that holds them")
    print(_format_table([read_summary(folder) for folder in folders]))
    return 0


def _format_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows as aligned columns, each with its name."""
    from compss_train.reports.formatting import columns

    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([row.get(name, "-") for name in names] for row in rows)]
    return "\n".join(text.rstrip() for text in columns(lines))


REPORT = Command(
    name="report",
    help="write an HTML page about a run: curves, timeline of the workers, configuration",
    add_arguments=_add_report_arguments,
    run=_run_report,
    examples="""\
  compss-train report runs/spirals
  compss-train report history.jsonl -o report.html
  compss-train report runs/* -o comparison.html""",
)
PLOT = Command(
    name="plot",
    help="plot losses, metrics, samples/s and how the workers spent their time",
    add_arguments=_add_plot_arguments,
    run=_run_plot,
    examples="""\
  compss-train plot runs/spirals
  compss-train plot history.jsonl -o curves.svg --against epoch
  compss-train plot runs/a runs/b -o both.png""",
)
COMPARE = Command(
    name="compare",
    help="print what differs between runs and what they reached; draw their curves together",
    add_arguments=_add_compare_arguments,
    run=_run_compare,
    examples="""\
  compss-train compare runs/*
  compss-train compare runs/a runs/b -o comparison.html --against seconds

Runs that differ only in their seed are drawn as one: their median, and a band from the lowest to the highest.""",
)
RUNS = Command(
    name="runs",
    help="list runs: their state, rounds, last losses and metrics",
    add_arguments=_add_runs_arguments,
    run=_run_runs,
    examples="""\
  compss-train runs
  compss-train runs /scratch/experiments""",
)
