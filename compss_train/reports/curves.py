"""The curves of a history, which plots and reports draw."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, get_args

from compss_train._utils.validation import check_choice
from compss_train.reports.records import Record, flatten, measured_numbers

Axis = Literal["round", "epoch", "samples", "seconds"]

LEARNING_RATE = "lr"
_OTHER_PANELS = {
    "learning rate": (LEARNING_RATE,),
    "samples/s": ("samples_per_second",),
    "worker agreement": ("worker_agreement",),
    "noise scale (samples)": ("noise_scale",),
    "batches/s": ("batches_per_second",),
    "samples in buffers": ("buffer",),
    "share not trained on yet": ("unseen",),
    "mean repetitions": ("repetitions_mean",),
    "simulations": ("simulations.running", "simulations.done", "simulations.failed"),
}
"""Titles and fields of panels beside losses and metrics, most of them of online fits."""


@dataclass(frozen=True)
class Curve:
    """A line through points, interrupted by NaN."""

    name: str
    xs: list[float]
    ys: list[float]


@dataclass(frozen=True)
class Panel:
    """The curves of one chart."""

    title: str
    curves: list[Curve]
    from_zero: bool = False
    """Whether the y axis starts at 0. Otherwise it is logarithmic if ``spans_decades``."""

    @property
    def spans_decades(self) -> bool:
        """Whether all values are positive and the largest is at least 100 times the smallest."""
        values = [y for curve in self.curves for y in curve.ys if math.isfinite(y)]
        return not self.from_zero and bool(values) and min(values) > 0 and max(values) >= 100 * min(values)


def positions(history: Sequence[Record], against: Axis = "round") -> list[float]:
    """Return the position of each record on the axis.

    Records are numbered from 0 if rounds or epochs decrease, as in the joined histories of several trainers.
    """
    check_choice("against", against, get_args(Axis))
    if against in ("samples", "seconds"):
        return list(accumulate(float(record[against]) for record in history))
    values = [float(record[against]) for record in history]
    ascending = all(one <= other for one, other in pairwise(values))
    return values if ascending else [float(index) for index in range(len(history))]


def panels(history: Sequence[Record], against: Axis = "round") -> list[Panel]:
    """Return the panels of a history: loss, each metric, speed, numbers of online fits, and loss by worker."""
    xs = positions(history, against)
    measured = [measured_numbers(record) for record in history]
    titles = dict.fromkeys(title_of(name) for each in measured for name in each if name != LEARNING_RATE)
    rows = [flatten(record) for record in history]
    others = [(title, names) for title, names in _OTHER_PANELS.items() if any(names[0] in cells for cells in rows)]
    by_worker = worker_panel(history, against=against)
    return [
        *(_measured_panel(title, xs, measured) for title in titles),
        *(Panel(title, [_curve(name, xs, rows) for name in names], from_zero=True) for title, names in others),
        *([by_worker] if len(by_worker.curves) > 1 else []),
    ]


def title_of(name: str) -> str:
    """Return the name of the metric of a field: ``recall`` for ``val_recall[2]`` and ``val_averaged_recall[2]``."""
    return name.removeprefix("val_").removeprefix("averaged_").partition("[")[0].partition(".")[0]


def worker_panel(history: Sequence[Record], name: str = "loss", against: Axis = "round") -> Panel:
    """Return a panel with a curve for each worker, through the rounds in which it trained."""
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
