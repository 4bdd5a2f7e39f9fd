"""The curves that a history holds: what plots and reports draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, get_args

from compss_train._utils.validation import check_choice
from compss_train.reports.columns import numbers, row
from compss_train.reports.timeline import Record

Axis = Literal["round", "epoch", "samples", "seconds"]

RATE = "lr"
_TOLD = {
    "learning rate": (RATE,),
    "samples/s": ("samples_per_second",),
    "batches/s": ("batches_per_second",),
    "samples in buffers": ("buffer",),
    "share not trained on yet": ("unseen",),
    "mean repetitions": ("repetitions_mean",),
    "simulations": ("simulations.running", "simulations.done", "simulations.failed"),
}
"""What else records tell, those of online fits most of all."""


@dataclass(frozen=True)
class Curve:
    """A line through points; NaN leaves a gap."""

    name: str
    xs: list[float]
    ys: list[float]


@dataclass(frozen=True)
class Panel:
    """Curves that belong in one picture."""

    title: str
    curves: list[Curve]
    from_zero: bool = False
    """Whether values are seen best from 0 on; otherwise ``spans_decades`` may ask for a logarithmic scale."""

    @property
    def spans_decades(self) -> bool:
        """Whether a logarithmic scale shows more: all values are above 0, the largest 100 times the least."""
        values = [y for curve in self.curves for y in curve.ys if math.isfinite(y)]
        return not self.from_zero and bool(values) and min(values) > 0 and max(values) >= 100 * min(values)


def positions(history: Sequence[Record], against: Axis = "round") -> list[float]:
    """Return where each record lies on the axis.

    Rounds and epochs that do not increase, as in the joined histories of several trainers, are counted on.
    """
    check_choice("against", against, get_args(Axis))
    if against in ("samples", "seconds"):
        return list(accumulate(float(record[against]) for record in history))
    told = [float(record[against]) for record in history]
    ascends = all(one <= other for one, other in pairwise(told))
    return told if ascends else [float(position) for position in range(len(history))]


def panels(history: Sequence[Record], against: Axis = "round") -> list[Panel]:
    """Return the pictures of a history: loss, each metric, speed, what an online fit tells, and loss by worker."""
    xs = positions(history, against)
    measured = [numbers(record) for record in history]
    titles = dict.fromkeys(title_of(name) for each in measured for name in each if name != RATE)
    rows = [row(record) for record in history]
    others = [(title, names) for title, names in _TOLD.items() if any(names[0] in cells for cells in rows)]
    by_worker = worker_panel(history, against=against)
    return [
        *(_measured_panel(title, xs, measured) for title in titles),
        *(Panel(title, [_curve(name, xs, rows) for name in names], from_zero=True) for title, names in others),
        *([by_worker] if len(by_worker.curves) > 1 else []),
    ]


def title_of(name: str) -> str:
    """Return what a measured name is of: ``recall`` for ``val_recall[2]``."""
    return name.removeprefix("val_").partition("[")[0].partition(".")[0]


def worker_panel(history: Sequence[Record], name: str = "loss", against: Axis = "round") -> Panel:
    """Return a curve for each worker, through the rounds that it trained in."""
    points: dict[int, list[tuple[float, float]]] = {}
    for x, record in zip(positions(history, against), history, strict=True):
        for own in record["workers"]:
            if name in own:
                points.setdefault(own["worker"], []).append((x, float(own[name])))
    curves = [Curve(f"worker {worker}", *map(list, zip(*points[worker], strict=True))) for worker in sorted(points)]
    return Panel(f"{name} by worker", curves)


def _measured_panel(title: str, xs: list[float], measured: list[dict[str, float]]) -> Panel:
    names = dict.fromkeys(name for each in measured for name in each if title_of(name) == title)
    return Panel(title, [_curve(name, xs, measured) for name in names])


def _curve(name: str, xs: list[float], records: Sequence[Mapping[str, Any]]) -> Curve:
    values = [record.get(name) for record in records]
    return Curve(name, xs, [float(value) if isinstance(value, int | float) else math.nan for value in values])
