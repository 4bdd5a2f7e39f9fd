"""``compss-train report``, ``plot``, ``compare``, ``runs`` and ``advise``: what histories say."""

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compss_train._utils import files, imports, strict_json, validation
from compss_train.cli.run_files import RunFolder, read_toml
from compss_train.exceptions import BadFileError
from compss_train.reports import advice, comparison, formatting, html
from compss_train.reports.history import History, configuration_path, save_figure

WORKERS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of workers for which the seconds of a round are predicted."""
WORTH = 1.1
"""More workers are worth it if fewer take more than this factor of the shortest time."""


def report(options: argparse.Namespace) -> int:
    """Write the page and print its path."""
    path, history = read_history(options.run)
    folder = RunFolder(path.parent)
    default = folder.report if folder.run_file.exists() else path.with_suffix(".html")
    output = options.output or default
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
    """Print the table; write a page or an image, and print its path.

    It is a page if the name of the file ends in .html.
    """
    output = options.output
    compared = []
    for path in options.runs:
        file, history = read_history(path)
        compared.append(_compared(path, history, read_configuration(file)))
    if options.json:
        print_json([asdict(summary) for summary in comparison.summaries(compared)])
    else:
        print(_format_table(comparison.comparison_table(compared), fit=True))
    if output is None:
        return 0
    if html.is_page(output):
        files.write_atomic(output, html.comparison_page(compared, options.against))
    else:
        imports.import_optional("matplotlib", extra="plot", needed_by="plot")
        from compss_train.reports.plots import draw_comparison

        save_figure(draw_comparison(compared, options.against), output)
    if not options.json:
        print(f"{formatting.counted(len(compared), 'run')} compared in {output}")
    return 0


def runs(options: argparse.Namespace) -> int:
    """Print a line for each run in the folder and its subfolders of any depth, by name.

    ``--json`` prints the objects of ``compare``.
    """
    files = sorted(options.folder.rglob("history.jsonl"))
    if not files:
        raise FileNotFoundError(
            f"{options.folder}: this folder has no runs; name the one that holds their folders"
        )
    listed = [_compared(file.parent, History.load(file), {}) for file in files]
    if options.json:
        print_json([asdict(comparison.summaries([run])[0]) for run in listed])
        return 0
    rows = []
    for run in listed:
        (row,) = comparison.comparison_table([run])
        rows.append({name: cell for name, cell in row.items() if not name.startswith("best ")})
    print(_format_table(rows))
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
    """Return rows below the names of their columns, all aligned.

    With ``fit`` rows are columns if only these fit the terminal.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = [names, *([row.get(name, "-") for name in names] for row in rows)]
    cells = [[formatting.printable(cell) for cell in line] for line in table]
    lines = formatting.columns(cells)
    if fit:
        turned = formatting.columns(list(zip(*cells, strict=True)))
        if len(lines[0]) > max(len(turned[0]), shutil.get_terminal_size().columns):
            lines = turned
    return "\n".join(line.rstrip() for line in lines)


def advise(options: argparse.Namespace) -> int:
    """Print the seconds of a round with each number of workers, and which one is worth it.

    Of a run file, print what ``merge="auto"`` would choose with each number, and which one learns.
    """
    if options.run.suffix == ".toml":
        from compss_train.cli.planning import advise_before_run  # torch takes a second

        advise_before_run(options.run, WORKERS, as_json=options.json)
        return 0
    path, history = read_history(options.run)
    try:
        cost = advice.measured_cost(history)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    processes = cost.processes
    if options.processes is not None:
        processes = validation.check_count("--processes", options.processes)
    predictions = advice.predict(cost, sorted({*WORKERS, cost.workers}), processes)
    limit = WORTH * min(prediction.seconds for prediction in predictions)
    best = min(prediction.workers for prediction in predictions if prediction.seconds <= limit)
    if options.json:
        print_json(
            {
                "history": str(path),
                "workers": cost.workers,
                "processes": processes,
                "samples": cost.samples,
                "predictions": [asdict(prediction) for prediction in predictions],
                "fastest": best,
            }
        )
        return 0
    lines = [["workers ", "seconds a round", "samples/s", "not training"]]
    for prediction in predictions:
        lines.append(
            [
                f"{prediction.workers}{'*' if prediction.measured else ' '}",
                formatting.number(prediction.seconds),
                formatting.speed(prediction.samples_per_second),
                f"{prediction.not_training:.0%}",
            ]
        )
    print(
        f"{path}: {cost.workers} workers, {cost.processes} at a time, {cost.samples:,.0f} "
        "samples a round\n"
    )
    print("\n".join(formatting.columns(lines, str.rjust)))
    print("* measured\n")
    print(
        f"Fastest for the same samples, or nearly, where {processes} train at a time: {best} "
        "workers."
    )
    print("Not in these numbers: more workers need more epochs to the same accuracy.")
    return 0


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    print(strict_json.dumps(value, indent=2))


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
        parts = json.loads(path.read_bytes())
        return {part: None if options is None else dict(options) for part, options in parts.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadFileError(str(path), f"is not a configuration: {error}") from error
