"""The tables and key figures of a report, as strings that the template shows."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from compss_train.reports.curves import LEARNING_RATE, training_seconds, training_speeds
from compss_train.reports.formatting import duration, number, percent, speed, timestamp, uniform_format
from compss_train.reports.records import Record, Row, best_value, measured_numbers
from compss_train.reports.timeline import KINDS, Interval, round_rows, startup_seconds, worker_rows

MAX_ROWS = 400
"""Rows of the table of rounds."""
MAX_MEASURED = 6
"""Losses and metrics among the key figures."""
_TIMESTAMPS = ("ended", "fit_started", "started")
_LAST = (*KINDS, *_TIMESTAMPS, "merge")
"""Columns to the right of all others."""


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
    seconds = {kind: sum(interval.seconds for interval in intervals if interval.kind == kind) for kind in KINDS}
    whole = sum(seconds.values()) or 1.0
    return {kind: each / whole for kind, each in seconds.items()}
