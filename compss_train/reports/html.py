"""The report of a run: one HTML file with curves, a timeline, the configuration and all rounds.

It needs no network and no other file, and suits light and dark screens and printing. Needs the
extra ``report``.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from compss_train._utils import files, imports
from compss_train.reports import comparison, curves, timeline
from compss_train.reports.formatting import (
    counted,
    duration,
    number,
    percent,
    speed,
    timestamp,
    uniform_format,
)
from compss_train.reports.records import (
    Axis,
    Record,
    Row,
    best_value,
    epochs_of,
    measured_in,
    measured_numbers,
)

REFRESH_SECONDS = 5
"""Seconds after which browsers reload the report of a running fit."""
MAX_ROWS = 400
"""Rows of the table of rounds."""
MAX_MEASURED = 6
"""Losses and metrics among the key figures."""
_TIMESTAMPS = ("ended", "fit_started", "started")
_LAST = (*timeline.KINDS, *_TIMESTAMPS, "merge")
"""Columns to the right of all others."""
_SAID_ONCE = ("fit_started", "merge")
"""Fields that are no column if they are the same in all rounds."""

Bar: TypeAlias = dict[str, str]
"""The percentage of each kind of activity."""
TableCells: TypeAlias = tuple[list[str], list[list[str | Bar]], str | None]
"""Headings, rows of cells, and a note."""
KeyFigure: TypeAlias = tuple[str, str, str | None, Bar | None]
"""A name and a value, a detail and a bar where there are any."""


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

    Raises ``OSError`` if the file cannot be written; its folder must exist. Raises
    ``ModuleNotFoundError`` without the extra ``report``.
    """
    files.write_atomic(Path(path), page(history, configuration or {}, status, refresh=refresh))


def page(
    history: Sequence[Record],
    configuration: Mapping[str, Any],
    status: str | None = None,
    *,
    refresh: bool = False,
) -> str:
    """Return the report as HTML that needs no other file.

    ``status`` is a text such as "running"; with ``refresh`` browsers reload the page every few
    seconds.
    """
    net = str(_part(configuration, "build").get("net", "")).partition("(")[0].strip()
    shown_parts = {
        part: value
        for part, value in configuration.items()
        if value is not None and part != "details"
    }
    text: str = load_template("report.html").render(
        title=f"Training of {net}" if net else "Training",
        status=status,
        subtitle=_subtitle(history, configuration),
        refresh_seconds=REFRESH_SECONDS if refresh else None,
        run=_run(history) if history else None,
        configuration=shown_parts,
    )
    return text


def comparison_page(runs: Sequence[comparison.ComparedRun], against: Axis = "round") -> str:
    """Return a page that compares runs, as HTML that needs no other file."""
    template = load_template("comparison.html")
    from compss_train.reports.plots import chart_of

    rows = comparison.comparison_table(runs)
    panels = comparison.comparison_panels(comparison.grouped(runs), against)
    names = dict.fromkeys(name for row in rows for name in row)
    table = [[name, *(row.get(name, comparison.MISSING) for row in rows)] for name in names]
    if len(rows) >= len(table):  # a column for each run, unless there are many
        table = list(map(list, zip(*table, strict=True)))
    text: str = template.render(
        title=counted(len(runs), "run"),
        status=None,
        subtitle=" · ".join(run.name for run in runs),
        refresh_seconds=None,
        runs=(table[0], table[1:], None),
        charts=[chart_of(panel, against) for panel in panels],
        against=against,
    )
    return text


@cache
def load_template(name: str = "report.html") -> Any:
    """Return a compiled template; raise ``ModuleNotFoundError`` without the extra ``report``."""
    needs = {"extra": "report", "needed_by": "the HTML report"}
    jinja2 = imports.import_optional("jinja2", **needs)
    _ = imports.import_optional("matplotlib", **needs)
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


def _part(configuration: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of a configuration, which may be any dict."""
    part = configuration.get(name)
    return part if isinstance(part, Mapping) else {}


def _subtitle(history: Sequence[Record], configuration: Mapping[str, Any]) -> str:
    trainer = _part(configuration, "trainer")
    machine = _part(configuration, "machine")
    parts = []
    workers = trainer.get("num_workers")
    if workers is not None:
        parts.append(f"{workers} worker{'s' * (workers != 1)}")
    if "engine" in trainer:
        parts.append(f"engine {trainer['engine']}")
    if "host" in machine:
        parts.append(f"on {machine['host']}")
    if history and "fit_started" in history[0]:
        parts.append(f"from {timestamp(history[0]['fit_started'])}")
    return " · ".join(parts)


def _run(history: Sequence[Record]) -> dict[str, Any]:
    """Return what the template shows of a history that is not empty."""
    from compss_train.reports.plots import chart_of, timeline_chart

    intervals = timeline.worker_intervals(history)
    shares = timeline.activity_shares(intervals)
    return {
        "key_figures": list(_key_figures(history, shares if intervals else {})),
        "charts": [chart_of(panel) for panel in curves.panels(history, intervals=intervals)],
        "timeline": timeline_chart(history, intervals),
        "timeline_legend": [(f"{kind} {percent(share)}", kind) for kind, share in shares.items()],
        "workers": _table(_worker_rows(history, intervals)),
        "rounds": _rounds_table(history, intervals),
    }


def _rounds_table(history: Sequence[Record], intervals: list[timeline.Interval]) -> TableCells:
    """Return the table of rounds; of very many, not all are shown."""
    rows = timeline.round_rows(history, intervals)
    for row, seconds, mean_speed in zip(
        rows, curves.training_seconds(history), curves.training_speeds(history), strict=True
    ):
        row["seconds"] = seconds
        row[curves.SPEED] = mean_speed
    notes = []
    for name in _SAID_ONCE:
        if name in rows[0] and len({row.get(name) for row in rows}) == 1:
            value = _column_format(name, ())(rows[0][name])
            notes.append(f"{name.replace('_', ' ')}: {value}")
            for row in rows:
                row.pop(name, None)
    step = -(-len(rows) // MAX_ROWS)
    if step > 1:
        notes.append(f"every {step}th of {len(history):,} rounds")
        rows = [*rows[:-1:step], rows[-1]]
    if any(timeline.startup_seconds(history)):
        notes.append("seconds are without start-up")
    first = ["round", "epoch", *measured_in(history)]
    return _table(rows, " · ".join(notes) or None, first=first)


def _worker_rows(history: Sequence[Record], intervals: list[timeline.Interval]) -> Iterator[Row]:
    """Iterate over rows of workers, with sums over all rounds."""
    summed = ("samples", "batches", *timeline.KINDS)
    sums_of_workers: dict[int, Counter[str]] = {}
    for cells in timeline.worker_rows(history, intervals):
        sums = sums_of_workers.setdefault(cells["worker"], Counter())
        sums.update({name: cells[name] for name in summed if name in cells})
        sums["rounds"] += cells["samples"] > 0
    for worker, sums in sorted(sums_of_workers.items()):
        counts = {name: sums[name] for name in ("rounds", "samples", "batches") if name in sums}
        row: Row = {"worker": worker, **counts}
        if sums["training"]:
            row["samples/s in training"] = sums["samples"] / sums["training"]
        seconds: dict[str, float] = {kind: sums[kind] for kind in timeline.KINDS if kind in sums}
        row |= seconds
        if any(seconds.values()):
            row["time"] = _bar(seconds)
        yield row


def _bar(parts: Mapping[str, float]) -> Bar:
    whole = sum(parts.values()) or 1.0
    return {kind: f"{100 * part / whole:.1f}" for kind, part in parts.items()}


def _table(rows: Iterable[Row], note: str | None = None, first: Sequence[str] = ()) -> TableCells:
    """Return a table of rows, with the columns ``first`` where narrow screens show them."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    names.sort(key=lambda name: _LAST.index(name) if name in _LAST else -1 - (name in first))
    formats = {
        name: _column_format(name, [row[name] for row in rows if name in row]) for name in names
    }
    cells = [[formats[name](row[name]) if name in row else "" for name in names] for row in rows]
    headings = []
    for name in names:
        heading = name.replace("_per_second", "/s").replace("_", " ")
        headings.append(f"{heading} (s)" if name in timeline.KINDS else heading)
    return headings, cells, note


def _column_format(name: str, values: Sequence[object]) -> Callable[[Any], str | Bar]:
    """Return the function that formats the values of a column."""
    if name in _TIMESTAMPS:
        return timestamp
    format_float = uniform_format([value for value in values if isinstance(value, float)])

    def format_value(value: object) -> str | Bar:
        if isinstance(value, dict):  # a bar
            return value
        if isinstance(value, list | tuple):
            return ", ".join(map(number, value))
        return format_float(value) if isinstance(value, float) else number(value)

    return format_value


def _key_figures(history: Sequence[Record], shares: Mapping[str, float]) -> Iterator[KeyFigure]:
    """Iterate over the numbers at the top of the report."""
    samples = sum(record["samples"] for record in history)
    seconds = sum(curves.training_seconds(history))
    best = max(curves.training_speeds(history))
    startup = sum(timeline.startup_seconds(history))
    epochs = epochs_of(history)
    yield "rounds", f"{len(history):,}", counted(epochs, "epoch") if epochs else None, None
    waited = f"after {duration(startup)} of start-up" if startup else None
    yield "time", duration(seconds), waited, None
    mean = speed(samples / seconds) if seconds else ""
    yield "samples/s", mean, f"best round {speed(best)}, {samples:,} samples", None
    names = [name for name in measured_in(history) if "[" not in name]
    for name in names[:MAX_MEASURED]:
        yield _key_figure(name, history)
    if shares:
        not_training = ", ".join(f"{percent(shares[kind])} {kind}" for kind in timeline.KINDS[1:])
        yield "time in training", percent(shares["training"]), not_training, _bar(shares)


def _key_figure(name: str, history: Sequence[Record]) -> KeyFigure:
    """Return the last value of a loss or metric, with its best one."""
    numbers = [measured_numbers(record) for record in history]
    values = [by_name[name] for by_name in numbers if name in by_name]
    first = next((value for value in values if not math.isnan(value)), math.nan)
    best, round_number = best_value(name, history) or (math.nan, 0)
    extreme = "highest" if best > first else "lowest"
    detail = f"{extreme} {number(best)}, round {round_number}" if len(values) > 1 else None
    return name.replace("_", " "), number(values[-1]), detail, None
