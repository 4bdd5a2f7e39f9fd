"""``compss-train report``, ``plot``, ``compare``, ``runs`` and ``advise``: what the histories of
runs say.
"""

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compss_train._utils import files, imports, validation
from compss_train.cli.run_files import RunFolder, read_toml
from compss_train.exceptions import BadFileError
from compss_train.reports import advice, comparison, formatting, html, records
from compss_train.reports.history import History, configuration_path, save_figure

WORKERS = (1, 2, 4, 8, 16, 32, 64)
WORTH = 1.1
"""More workers are worth it if fewer take more than this factor of the shortest time."""


def report(options: argparse.Namespace) -> int:
    """Write the page and print its path."""
    path, history = read_history(options.run)
    folder = RunFolder(path.parent)
    output = options.output or (
        folder.report if folder.run_file.exists() else path.with_suffix(".html")
    )
    html.check_name(output)
    html.write(output, history, read_configuration(path), status=folder.state())
    print(f"{formatting.counted(len(history), 'round')} reported in {output}")
    return 0


def plot(options: argparse.Namespace) -> int:
    """Draw the plot and print its path."""
    path, history = read_history(options.run)
    output = options.output or path.with_name("plot.png")
    save_figure(history.plot(against=options.against), output)
    print(f"{formatting.counted(len(history), 'round')} drawn in {output}")
    return 0


def compare(options: argparse.Namespace) -> int:
    """Print the table; write a page if the named file ends in .html, else an image, and print its
    path.
    """
    found = [(path, *read_history(path)) for path in options.runs]
    output = options.output
    compared = [_compared(path, history, read_configuration(file)) for path, file, history in found]
    print(_format_table(comparison.comparison_table(compared), fit=True))
    if output is None:
        return 0
    if html.is_page(output):
        files.write_atomic(output, html.comparison_page(compared, options.against))
    else:
        imports.import_optional("matplotlib", extra="plot", needed_by="plot")
        from compss_train.reports.plots import draw_comparison

        save_figure(draw_comparison(compared, options.against), output)
    print(f"{formatting.counted(len(compared), 'run')} compared in {output}")
    return 0


def runs(options: argparse.Namespace) -> int:
    """Print a line for each run in the folder and its subfolders of any depth, by name."""
    files = sorted(options.folder.rglob("history.jsonl"))
    if not files:
        raise FileNotFoundError(
            f"{options.folder}: this folder has no runs; name the one that holds their folders"
        )
    rows = [
        comparison.comparison_table([_compared(file.parent, History.load(file), {})])[0]
        for file in files
    ]
    lasts = [
        {name: cell for name, cell in row.items() if not name.startswith("best ")} for row in rows
    ]
    print(_format_table(lasts))
    return 0


def _compared(
    path: Path, history: History, configuration: Mapping[str, Any]
) -> comparison.ComparedRun:
    folder = RunFolder(path)
    file = folder.run_file
    state = folder.state() or ("unknown" if file.exists() else "")
    run_file = read_toml(file, "") if configuration and file.exists() else {}
    return comparison.ComparedRun(
        name=str(path), history=history, configuration=configuration, state=state, run_file=run_file
    )


def _format_table(rows: Sequence[Mapping[str, str]], *, fit: bool = False) -> str:
    """Return rows as aligned columns, each with its name; with ``fit`` as lines if only these fit
    the terminal.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([row.get(name, "-") for name in names] for row in rows)]
    cells = [[formatting.printable(cell) for cell in line] for line in lines]
    texts, turned = (formatting.columns(table) for table in (cells, list(zip(*cells, strict=True))))
    if fit and len(texts[0]) > max(len(turned[0]), shutil.get_terminal_size().columns):
        texts = turned
    return "\n".join(text.rstrip() for text in texts)


def advise(options: argparse.Namespace) -> int:
    """Print the seconds of a round with each number of workers, and which one is worth it."""
    path, history = read_history(options.run)
    try:
        cost = advice.measured_cost(history)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    given = options.processes
    processes = cost.processes if given is None else validation.check_count("--processes", given)
    lines = [["workers ", "seconds a round", "samples/s", "not training"]]
    rounds = {}
    for workers in sorted({*WORKERS, cost.workers}):
        training, others = cost.seconds(workers, processes)
        seconds = rounds[workers] = training + others
        mark = "*" if (workers, processes) == (cost.workers, cost.processes) else " "
        share = f"{records.per_second(others, seconds):.0%}"
        cells = (
            formatting.number(seconds),
            formatting.speed(records.per_second(cost.samples, seconds)),
            share,
        )
        lines.append([f"{workers}{mark}", *cells])
    best = next(
        workers for workers, seconds in rounds.items() if seconds <= WORTH * min(rounds.values())
    )
    print(
        f"{path}: {cost.workers} workers, {cost.processes} at a time, {cost.samples:,.0f} "
        "samples a round\n"
    )
    print("\n".join(formatting.columns(lines, str.rjust)), "* measured", sep="\n", end="\n\n")
    print(
        f"Fastest for the same samples, or nearly, where {processes} train at a time: {best} "
        "workers."
    )
    print("Not in these numbers: more workers need more epochs to the same accuracy.")
    return 0


def read_history(path: Path) -> tuple[Path, History]:
    """Return the history in a file of JSON lines or in a run's folder, after the path of the file.

    Raises ``ValueError`` for an empty history, ``BadFileError`` and ``OSError`` for a file that
    cannot be read.
    """
    file = RunFolder(path).history if path.is_dir() else path
    history = History.load(file)
    if not history:
        raise ValueError(f"{file} has no round yet")
    return file, history


def read_configuration(history: Path) -> dict[str, Any]:
    """Return the trainer's configuration that was written beside a history, empty if it was not.

    Raises ``BadFileError`` for a damaged file.
    """
    path = configuration_path(history)
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
        return {part: None if options is None else dict(options) for part, options in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadFileError(str(path), f"is not a configuration: {error}") from error
