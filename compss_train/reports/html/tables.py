"""The tables of a report: rounds, workers, and what the trainer was given."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from compss_train.reports.columns import Row, numbers, round_rows, worker_rows
from compss_train.reports.curves import RATE
from compss_train.reports.html.formatting import duration, like, moment, number, percent, speed
from compss_train.reports.html.markup import Markup, joined, tag
from compss_train.reports.html.thinning import every_few
from compss_train.reports.timeline import KINDS, Interval, Record

ROWS = 400
"""The most rows of the table of rounds."""
_MOMENTS = ("ended", "fit_started", "started")
_LAST = (*KINDS, *_MOMENTS, "merge")
"""Columns that come after all others."""


def rounds_table(history: Sequence[Record], found: list[Interval]) -> Markup:
    """Return the table of rounds, every n-th of them where there are too many."""
    rows, step = every_few(round_rows(history, found), ROWS)
    note = tag("p", f"Every {step}th of {len(history):,} rounds.", class_="note") if step > 1 else None
    return joined([note, _table(rows)])


def workers_table(history: Sequence[Record], found: list[Interval]) -> Markup:
    """Return what each worker did in all rounds together."""
    sums: dict[int, Counter[str]] = {}
    for cells in worker_rows(history, found):
        own = sums.setdefault(cells["worker"], Counter())
        own.update({name: cells[name] for name in ("samples", "batches", *KINDS) if name in cells})
        own["rounds"] += cells["samples"] > 0
    return _table([_worker_row(worker, own) for worker, own in sorted(sums.items())])


def _worker_row(worker: int, own: Counter[str]) -> Row:
    cells: Row = {name: own[name] for name in ("rounds", "samples", "batches") if name in own}
    if own["training"]:
        cells["samples/s in training"] = own["samples"] / own["training"]
    spent: dict[str, float] = {kind: own[kind] for kind in KINDS if kind in own}
    return {"worker": worker, **cells, **spent, **({"time": _bar(spent)} if any(spent.values()) else {})}


def _bar(spent: Mapping[str, float]) -> Markup:
    whole = sum(spent.values())
    parts = (tag("i", class_=kind, style=f"width:{100 * each / whole:.1f}%") for kind, each in spent.items())
    return tag("div", *parts, class_="bar")


def _table(rows: Sequence[Row]) -> Markup:
    names = list(dict.fromkeys(name for cells in rows for name in cells))
    names.sort(key=lambda name: _LAST.index(name) if name in _LAST else -1)
    told = {name: _teller(name, [cells[name] for cells in rows if name in cells]) for name in names}
    head = tag("tr", *(tag("th", _heading(name), scope="col") for name in names))
    lines = (
        tag("tr", *(tag("td", told[name](cells[name]) if name in cells else "") for name in names))
        for cells in rows
    )
    return tag("div", tag("table", tag("thead", head), tag("tbody", *lines)), class_="scrolled")


def _heading(name: str) -> str:
    return f"{name} (s)" if name in KINDS else name.replace("_per_second", "/s").replace("_", " ")


def _teller(name: str, values: Sequence[object]) -> Callable[[Any], object]:
    """Return what makes texts of a column's values: times, numbers with as many decimals, or anything else."""
    if name in _MOMENTS:
        return moment
    decimals = like([value for value in values if isinstance(value, float)])

    def tell(value: object) -> object:
        if isinstance(value, Markup):
            return value
        if isinstance(value, list | tuple):
            return ", ".join(map(number, value))
        return decimals(value) if isinstance(value, float) else number(value)

    return tell


def configuration_tables(configuration: Mapping[str, Any]) -> Iterator[Markup]:
    """Iterate over a card for each part of the configuration."""
    for part, value in configuration.items():
        if value is not None:
            content = _list(value) if isinstance(value, Mapping) else str(value)
            yield tag("section", tag("h3", part), content, class_="card facts")


def _list(values: Mapping[str, Any]) -> Markup:
    return tag(
        "dl", *(tag("div", tag("dt", name), tag("dd", _value(name, value))) for name, value in values.items())
    )


def _value(name: str, value: object) -> object:
    if isinstance(value, Mapping) and value:
        return _list(value)
    if value is None or value in ([], {}):
        return tag("span", "none", class_="none")
    if name == "started" and isinstance(value, int | float):
        return moment(value)
    if isinstance(value, str) and "\n" in value:
        return tag("details", tag("summary", value.split("\n", 1)[0].rstrip("( ")), tag("pre", value))
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if name == "parameters" and isinstance(value, int) else str(value)


MEASURED = 6
"""The most losses and metrics among them."""


def facts(history: Sequence[Record], found: Sequence[Interval]) -> Iterator[Markup]:
    """Iterate over the facts of a history that is not empty."""
    samples, seconds = (sum(record[name] for record in history) for name in ("samples", "seconds"))
    best = max(record["samples_per_second"] for record in history)
    epochs = history[-1]["epoch"]
    yield _fact("rounds", f"{len(history):,}", f"{epochs:,} epoch{'s' * (epochs > 1)}" if epochs else None)
    yield _fact("time", duration(seconds), f"{samples:,} samples")
    yield _fact("samples/s", speed(samples / seconds) if seconds else "", f"best round {speed(best)}")
    names = dict.fromkeys(name for record in history for name in numbers(record))
    for name in [name for name in names if name != RATE and "[" not in name][:MEASURED]:
        yield _measured(name, history)
    if found:
        yield _spent(found)


def _measured(name: str, history: Sequence[Record]) -> Markup:
    """Return the last value, and the lowest one, or the highest of what has grown."""
    values = [(each[name], record["round"]) for record in history if name in (each := numbers(record))]
    known = [(value, at) for value, at in values if not math.isnan(value)] or values
    grows = known[-1][0] > known[0][0] and not name.endswith("loss")
    best, at = max(known) if grows else min(known)
    detail = f"{'highest' if grows else 'lowest'} {number(best)}, round {at}"
    return _fact(name.replace("_", " "), number(values[-1][0]), detail if len(values) > 1 else None)


def _spent(found: Sequence[Interval]) -> Markup:
    shares = spent_shares(found)
    bar = tag(
        "div", *(tag("i", class_=kind, style=f"width:{100 * shares[kind]:.2f}%") for kind in KINDS), class_="bar"
    )
    text = ", ".join(f"{percent(shares[kind])} {kind}" for kind in KINDS[1:])
    return _fact("time in training", percent(shares["training"]), text, bar)


def spent_shares(found: Sequence[Interval]) -> Mapping[str, float]:
    """Return the share of each kind in all that the workers did."""
    seconds = {kind: sum(interval.seconds for interval in found if interval.kind == kind) for kind in KINDS}
    whole = sum(seconds.values()) or 1.0
    return {kind: each / whole for kind, each in seconds.items()}


def _fact(name: str, value: str, detail: str | None = None, *more: Any) -> Markup:
    small = None if detail is None else tag("small", detail)
    return tag("div", tag("span", name), tag("b", value), *more, small, class_="fact")
