"""Records of the history as rows of a table: one level of names, one value each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compss_train.reports.record_fields import measured_names
from compss_train.reports.timeline import Interval, Record, intervals, round_totals, totals

Row = dict[str, Any]


def row(record: Record) -> Row:
    """Return the record's row, without its workers: ``recall[0]`` of a metric's list, ``name.key`` of a dict."""
    measured = set(measured_names(record))
    cells: Row = {}
    for name, value in record.items():
        if name != "workers":
            cells.update(_cells(name, value, lists=name in measured))
    return cells


def numbers(record: Record) -> dict[str, float]:
    """Return the losses and metrics of a record, or of a worker's entry in one, that are numbers."""
    measured = {name: record[name] for name in measured_names(record)}
    return {name: float(value) for name, value in row(measured).items() if _is_number(value)}


def _cells(name: str, value: Any, *, lists: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _cells(f"{name}.{key}", item, lists=lists)
    elif lists and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _cells(f"{name}[{index}]", item, lists=lists)
    else:
        yield name, value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def round_rows(history: Sequence[Record], found: list[Interval] | None = None) -> list[Row]:
    """Return a row a round, with the seconds that workers spent in training, merging and waiting.

    ``found`` are the intervals of the history, where they are known.
    """
    spent = round_totals(intervals(history) if found is None else found)
    return [{**row(record), **spent.get(position, {})} for position, record in enumerate(history)]


def worker_rows(history: Sequence[Record], found: list[Interval] | None = None) -> list[Row]:
    """Return a row a round and worker that trained in it (of an online fit: every worker)."""
    spent = totals(intervals(history) if found is None else found)
    return [
        {
            "round": record["round"],
            "epoch": record["epoch"],
            "worker": own["worker"],
            **row(own),
            **spent.get((position, own["worker"]), {}),
        }
        for position, record in enumerate(history)
        for own in record["workers"]
    ]
