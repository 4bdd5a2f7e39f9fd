"""The report of a run: one HTML file with curves, a timeline of the workers, the configuration and all rounds.

It needs no network and no other file, and suits light and dark screens and printing. Needs the extra ``report``.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from compss_train._utils.files import write_atomic
from compss_train._utils.imports import import_optional
from compss_train.reports.comparison import MISSING, ComparedRun, comparison_panels, comparison_table, grouped
from compss_train.reports.curves import LEARNING_RATE, Axis, panels, training_seconds, training_speeds
from compss_train.reports.formatting import duration, number, percent, speed, timestamp, uniform_format
from compss_train.reports.records import Record, Row, best_value, measured_numbers
from compss_train.reports.timeline import (
    KINDS,
    Interval,
    round_rows,
    startup_seconds,
    totals,
    worker_intervals,
    worker_rows,
)

REFRESH_SECONDS = 5
"""Seconds after which browsers reload the report of a running fit."""
MAX_ROWS = 400
"""Rows of the table of rounds."""
MAX_MEASURED = 6
"""Losses and metrics among the key figures."""
_TIMESTAMPS = ("ended", "fit_started", "started")
_LAST = (*KINDS, *_TIMESTAMPS, "merge")
"""Columns to the right of all others."""


def is_page(path: str | Path) -> bool:
    """Return whether ``path`` ends in .html or .htm."""
    return Path(path).suffix.lower() in (".html", ".htm")


def check_name(path: str | Path) -> None:
    """Raise ``ValueError`` unless ``path`` ends in .html or .htm."""
    if not is_page(path):
        raise ValueError(f"{str(path)!r}: a report is an HTML file; give a name that ends in .html")


def write(
    path: str | Path,
    history: Sequence[Record],
    configuration: Mapping[str, Any] | None = None,
    *,
    status: str | None = None,
    refresh: bool = False,
) -> None:
    """Write the report of a history to an HTML file, atomically.

    Parameters
    ----------
    history:
        ``trainer.history``, or a history read by ``History.load``; may be empty.
    configuration:
        ``trainer.configuration``, or any dict that JSON can represent.
    status:
        The state of the run, shown at the top, such as ``"running"``.
    refresh:
        Whether browsers reload the file every few seconds, for a running fit.

    Raises ``OSError`` if the file cannot be written; its folder must exist. Raises ``ModuleNotFoundError`` without
    the extra ``report``.
    """
    trace = _trace_link(Path(path), configuration or {})
    write_atomic(Path(path), page(history, configuration or {}, status, refresh=refresh, trace=trace))


def _trace_link(path: Path, configuration: Mapping[str, Any]) -> str | None:
    """Return the link to the trace that the fit has written, ``None`` if there is none (yet)."""
    profile = (configuration.get("fit") or {}).get("profile")
    if profile is None:
        return None
    moved = path.parent / Path(profile).name  # with the report, from where it was written
    found = next((place for place in (Path(profile), moved) if place.exists()), None)
    return None if found is None else quote(os.path.relpath(found, path.parent))


def page(
    history: Sequence[Record],
    configuration: Mapping[str, Any],
    status: str | None = None,
    *,
    refresh: bool = False,
    trace: str | None = None,
) -> str:
    """Return the report as HTML that needs no other file.

    ``status`` is a text such as "running"; with ``refresh`` browsers reload the page every few seconds. ``trace``
    links to the trace of a worker's round.
    """
    net = str((configuration.get("build") or {}).get("net", "")).partition("(")[0].strip()
    text: str = load_template("report.html").render(
        title=f"Training of {net}" if net else "Training",
        status=status,
        subtitle=_subtitle(history, configuration),
        refresh_seconds=REFRESH_SECONDS if refresh else None,
        run=_run(history) if history else None,
        trace=trace,
        configuration={part: value for part, value in configuration.items() if value is not None},
    )
    return text


def comparison_page(runs: Sequence[ComparedRun], against: Axis = "round") -> str:
    """Return a page that compares runs, as HTML that needs no other file."""
    template = load_template("comparison.html")
    from compss_train.reports.plots import chart_of

    rows = comparison_table(runs)
    headings = list(dict.fromkeys(name for row in rows for name in row))
    text: str = template.render(
        title=f"{len(runs)} runs",
        status=None,
        subtitle=" · ".join(run.name for run in runs),
        refresh_seconds=None,
        runs=CellTable(headings, [[row.get(name, MISSING) for name in headings] for row in rows]),
        charts=[chart_of(panel, against) for panel in comparison_panels(grouped(runs), against)],
        against=against,
    )
    return text


@cache
def load_template(name: str = "report.html") -> Any:
    """Return a compiled template; raise ``ModuleNotFoundError`` without the extra ``report``."""
    jinja2, _ = (
        import_optional(module, extra="report", needed_by="the HTML report") for module in ("jinja2", "matplotlib")
    )
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["timestamp"] = timestamp
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template(name)


def _subtitle(history: Sequence[Record], configuration: Mapping[str, Any]) -> str:
    trainer, machine = (configuration.get(part) or {} for part in ("trainer", "machine"))
    workers = trainer.get("num_workers")
    parts = [
        None if workers is None else f"{workers} worker{'s' * (workers != 1)}",
        f"engine {trainer['engine']}" if "engine" in trainer else None,
        f"on {machine['host']}" if "host" in machine else None,
        f"from {timestamp(history[0]['fit_started'])}" if history and "fit_started" in history[0] else None,
    ]
    return " · ".join(filter(None, parts))


def _run(history: Sequence[Record]) -> dict[str, Any]:
    """Return what the template shows of a history that is not empty."""
    from compss_train.reports.html.timeline_chart import timeline_chart
    from compss_train.reports.plots import chart_of

    intervals = worker_intervals(history)
    shares = activity_shares(intervals)
    return {
        "key_figures": list(key_figures(history, intervals)),
        "charts": [chart_of(panel) for panel in panels(history, intervals=intervals)],
        "timeline": timeline_chart(history, intervals),
        "timeline_legend": [(f"{kind} {percent(shares[kind])}", kind) for kind in KINDS],
        "workers": workers_table(history, intervals),
        "rounds": rounds_table(history, intervals),
    }


@dataclass(frozen=True)
class ShareBar:
    """A bar with a segment for each kind of activity."""

    segments: list[tuple[str, str]]
    """Pairs of a kind and its percentage."""


Cell: TypeAlias = str | ShareBar


@dataclass(frozen=True)
class CellTable:
    """A table with equally many cells in all rows."""

    headings: list[str]
    rows: list[list[Cell]]
    note: str | None = None


@dataclass(frozen=True)
class KeyFigure:
    """A number of the run at the top of the report."""

    name: str
    value: str
    detail: str | None = None
    bar: ShareBar | None = None


def rounds_table(history: Sequence[Record], intervals: list[Interval]) -> CellTable:
    """Return the table of rounds, with every n-th round if there are too many."""
    rows = round_rows(history, intervals)
    step = -(-len(rows) // MAX_ROWS)
    rows = [row for index, row in enumerate(rows) if index % step == 0 or index == len(rows) - 1]
    return _table(rows, note=f"Every {step}th of {len(history):,} rounds." if step > 1 else None)


def workers_table(history: Sequence[Record], intervals: list[Interval]) -> CellTable:
    """Return the table of workers, with sums over all rounds."""
    sums: dict[int, Counter[str]] = {}
    for cells in worker_rows(history, intervals):
        own = sums.setdefault(cells["worker"], Counter())
        own.update({name: cells[name] for name in ("samples", "batches", *KINDS) if name in cells})
        own["rounds"] += cells["samples"] > 0
    return _table([_worker_row(worker, own) for worker, own in sorted(sums.items())])


def _worker_row(worker: int, sums: Counter[str]) -> Row:
    row: Row = {"worker": worker, **{name: sums[name] for name in ("rounds", "samples", "batches") if name in sums}}
    if sums["training"]:
        row["samples/s in training"] = sums["samples"] / sums["training"]
    seconds: dict[str, float] = {kind: sums[kind] for kind in KINDS if kind in sums}
    row |= seconds
    if any(seconds.values()):
        row["time"] = _share_bar(seconds)
    return row


def _share_bar(parts: Mapping[str, float]) -> ShareBar:
    whole = sum(parts.values()) or 1.0
    return ShareBar([(kind, f"{100 * part / whole:.1f}") for kind, part in parts.items()])


def _table(rows: Sequence[Row], note: str | None = None) -> CellTable:
    names = list(dict.fromkeys(name for row in rows for name in row))
    names.sort(key=lambda name: _LAST.index(name) if name in _LAST else -1)
    formats = {name: _column_format(name, [row[name] for row in rows if name in row]) for name in names}
    cells = [[formats[name](row[name]) if name in row else "" for name in names] for row in rows]
    texts = {name: name.replace("_per_second", "/s").replace("_", " ") for name in names}
    return CellTable([f"{text} (s)" if name in KINDS else text for name, text in texts.items()], cells, note)


def _column_format(name: str, values: Sequence[object]) -> Callable[[Any], Cell]:
    """Return the function that formats the values of a column."""
    if name in _TIMESTAMPS:
        return timestamp
    format_float = uniform_format([value for value in values if isinstance(value, float)])

    def format_value(value: object) -> Cell:
        if isinstance(value, ShareBar):
            return value
        if isinstance(value, list | tuple):
            return ", ".join(map(number, value))
        return format_float(value) if isinstance(value, float) else number(value)

    return format_value


def key_figures(history: Sequence[Record], intervals: Sequence[Interval]) -> Iterator[KeyFigure]:
    """Iterate over the key figures of a history that is not empty."""
    samples, seconds = sum(record["samples"] for record in history), sum(training_seconds(history))
    best, startup = max(training_speeds(history)), sum(startup_seconds(history))
    epochs = history[-1]["epoch"]
    yield KeyFigure("rounds", f"{len(history):,}", f"{epochs:,} epoch{'s' * (epochs > 1)}" if epochs else None)
    yield KeyFigure("time", duration(seconds), f"after {duration(startup)} of start-up" if startup else None)
    yield KeyFigure(
        "samples/s", speed(samples / seconds) if seconds else "", f"best round {speed(best)}, {samples:,} samples"
    )
    names = dict.fromkeys(name for record in history for name in measured_numbers(record))
    for name in [name for name in names if name != LEARNING_RATE and "[" not in name][:MAX_MEASURED]:
        yield _measured(name, history)
    if intervals:
        shares = activity_shares(intervals)
        others = ", ".join(f"{percent(shares[kind])} {kind}" for kind in KINDS[1:])
        yield KeyFigure("time in training", percent(shares["training"]), others, _share_bar(shares))


def _measured(name: str, history: Sequence[Record]) -> KeyFigure:
    """Return the last value of a loss or metric, with the lowest value, or the highest if it has increased."""
    values = [each[name] for record in history if name in (each := measured_numbers(record))]
    first = next((value for value in values if not math.isnan(value)), math.nan)
    best, at = best_value(name, history) or (math.nan, 0)
    detail = f"{'highest' if best > first else 'lowest'} {number(best)}, round {at}"
    return KeyFigure(name.replace("_", " "), number(values[-1]), detail if len(values) > 1 else None)


def activity_shares(intervals: Sequence[Interval]) -> Mapping[str, float]:
    """Return the share of each kind of activity in the time of all workers."""
    seconds = totals(intervals, lambda _: "all").get("all", {})
    whole = sum(seconds.values()) or 1.0
    return {kind: seconds.get(kind, 0.0) / whole for kind in KINDS}
