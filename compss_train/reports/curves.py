"""The curves of a history, which plots and reports draw."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from statistics import median
from typing import Any, Self, get_args

import numpy as np

from compss_train._utils.validation import check_choice
from compss_train.reports.records import RATES, Axis, Record, flatten, measured_numbers, per_second
from compss_train.reports.timeline import (
    KINDS,
    Interval,
    round_totals,
    startup_seconds,
    worker_intervals,
)

LEARNING_RATE = "lr"
SPEED = "samples_per_second"
LARGEST = 1e150
"""Values of at least this magnitude are not drawn, as the arithmetic of axes overflows beyond
it.
"""
MAX_POINTS = 500
"""Points of a downsampled curve, about as many as the pixels across a chart."""
MAX_CURVES = 8
"""Curves of one kind in a panel; a larger number is summarized by the median, the lowest and the
highest values.
"""
MAX_INPUT_PANELS = 7
MAX_SHARES = 300
"""Points of the shares of the workers' time."""
_OTHER_PANELS = {
    "learning rate": (LEARNING_RATE,),
    "samples/s": (SPEED,),
    "batches/s": ("batches_per_second",),
    "samples in buffers": ("buffer",),
    "share not trained on yet": ("unseen",),
    "mean repetitions": ("repetitions_mean",),
    "simulations": ("simulations.running", "simulations.done", "simulations.failed"),
}
"""Titles and fields of the panels other than losses and metrics; most are for online fits."""


@dataclass(frozen=True)
class Curve:
    """A line through points, interrupted by NaN."""

    name: str
    xs: list[float]
    ys: list[float]
    band: Sequence[list[float]] = ()
    """The lowest and the highest values of the curves that this one summarizes, if it does."""
    color: int | None = None
    """The number of its color, by default its place in the panel."""

    def drawable(self) -> Self:
        """Return the curve with NaN, also in its band, at points with a value that is not below
        ``LARGEST``.
        """
        lines = np.array([self.ys, *self.band])
        ys, *band = np.where((abs(lines) < LARGEST).all(axis=0), lines, np.nan).tolist()
        return replace(self, ys=ys, band=band)

    def downsampled(self) -> Self:
        """Return the curve with at most ``MAX_POINTS`` points, among them the extremes of each
        segment.
        """
        if len(self.xs) <= MAX_POINTS:
            return self
        ys = self.ys
        kept = []
        size = -(-2 * len(ys) // MAX_POINTS)
        for start in range(0, len(ys), size):
            segment = range(start, min(start + size, len(ys)))
            numbers = [index for index in segment if not math.isnan(ys[index])] or [start]
            kept += sorted({min(numbers, key=ys.__getitem__), max(numbers, key=ys.__getitem__)})
        xs, ys, *band = ([values[index] for index in kept] for values in (self.xs, ys, *self.band))
        return replace(self, xs=xs, ys=ys, band=band)


def summary(name: str, xs: list[float], values: Sequence[Sequence[float]]) -> Curve:
    """Return the median of the finite values at each x, in a band from the lowest to the
    highest.
    """
    known = [[value for value in each if math.isfinite(value)] or [math.nan] for each in values]
    return Curve(
        name, xs, [median(each) for each in known], ([*map(min, known)], [*map(max, known)])
    )


@dataclass(frozen=True)
class Panel:
    """The curves of one chart."""

    title: str
    curves: list[Curve]
    from_zero: bool = False
    """Whether the y axis starts at 0."""
    stacked: bool = False
    """Whether the curves are shares in percent, drawn on top of each other."""
    breaks: tuple[float, ...] = ()
    """The x values at which another fit begins, such as a resumed one."""
    points: bool = False
    """Whether the curves are points of a plane, without lines between them."""

    @property
    def span(self) -> tuple[float, float]:
        """The x values of the first and the last point; a single point is in the middle of a unit
        interval.
        """
        xs = [x for curve in self.curves for x in curve.xs]
        low = min(xs)
        high = max(xs)
        return (low, high) if high > low else (low - 0.5, low + 0.5)

    @property
    def logarithmic(self) -> bool:
        """Whether the y axis is logarithmic: all values are positive, and the largest is 100 times
        the smallest.

        Axes of shares and those that start at 0 are linear, and so are rising values of at most
        100: scores, such as accuracies.
        """
        lines = [
            [y for y in ys if not math.isnan(y)]
            for curve in self.curves
            for ys in (curve.ys, *curve.band)
        ]
        values = [*chain.from_iterable(lines)]
        if self.from_zero or self.stacked or self.points or not values or min(values) <= 0:
            return False
        are_scores = max(values) <= 100 and all(line[0] <= line[-1] for line in lines if line)
        return not are_scores and max(values) >= 100 * min(values)


def positions(history: Sequence[Record], against: Axis = "round") -> list[float]:
    """Return the position of each record on the axis.

    Records are numbered from 0 if rounds or epochs decrease, as in the joined histories of several
    trainers.
    """
    check_choice("against", against, get_args(Axis))
    if against == "samples":
        return list(accumulate(float(record["samples"]) for record in history))
    if against == "seconds":
        return list(accumulate(training_seconds(history)))
    values = list[float]()
    last = 0.0
    for record in history:  # one of an online fit has no epoch, and belongs to the one before
        last = float(record.get(against, last))
        values.append(last)
    ascending = all(one <= other for one, other in pairwise(values))
    return values if ascending else [float(index) for index in range(len(history))]


def training_seconds(history: Sequence[Record]) -> list[float]:
    """Return the seconds of each round without the start-up of a fit."""
    return [
        record["seconds"] - startup
        for record, startup in zip(history, startup_seconds(history), strict=True)
    ]


def training_speeds(history: Sequence[Record]) -> list[float]:
    """Return the samples per second of each round, without the start-up of a fit."""
    seconds = zip(history, training_seconds(history), strict=True)
    return [
        float(record[SPEED]) if each == record["seconds"] else per_second(record["samples"], each)
        for record, each in seconds
    ]


def panels(
    history: Sequence[Record], against: Axis = "round", intervals: list[Interval] | None = None
) -> list[Panel]:
    """Return the panels of a history: loss, each metric, speed, numbers of online fits, loss and
    time by worker.

    Curves and panels without a finite value are left out, many curves of one kind are summarized,
    and the speed is without the start-up of a fit. ``intervals`` are those of the history, if
    already computed.
    """
    xs = positions(history, against)
    measured = [measured_numbers(record) for record in history]
    by_title: dict[str, list[str]] = {}
    for name in dict.fromkeys(chain.from_iterable(measured)):
        by_title.setdefault(title_of(name), []).append(name)
    speeds = training_speeds(history)
    rows = [
        {**flatten(record), SPEED: speed} for record, speed in zip(history, speeds, strict=True)
    ]
    groups = dict.fromkeys(name for cells in rows for name in cells if name.startswith(RATES))
    fields = {**_OTHER_PANELS, "learning rate": (LEARNING_RATE, *groups)}
    others = [
        (title, names)
        for title, names in fields.items()
        if any(names[0] in cells for cells in rows)
    ]
    by_worker = _worker_panel(history, xs)
    seconds = round_totals(worker_intervals(history) if intervals is None else intervals)
    found = drawable(
        [
            *(
                Panel(title, [_curve(name, xs, measured) for name in own])
                for title, own in by_title.items()
            ),
            *(
                Panel(title, [_curve(name, xs, rows) for name in names], from_zero=True)
                for title, names in others
            ),
            *([by_worker] if len(by_worker.curves) > 1 else []),
            *(
                [_shares_panel(xs, [seconds.get(index, {}) for index in range(len(xs))])]
                if seconds
                else []
            ),
        ]
    )
    fits = [record.get("fit_started") for record in history]
    breaks = (
        tuple(x for x, (one, other) in zip(xs[1:], pairwise(fits), strict=True) if one != other)
        if xs
        else ()
    )
    return [
        replace(panel, curves=_limited(panel.curves), breaks=breaks) for panel in found
    ] + input_panels(history)


def input_panels(history: Sequence[Record]) -> list[Panel]:
    """Return where a sampler has drawn inputs, two parameters a panel, and the percentage of each
    way to draw them.

    Only inputs that are numbers are drawn: one, or a list or dict with as many each time.
    """
    draws = [each for record in history for each in record.get("inputs", ())]
    origins = list(dict.fromkeys(each["origin"] for each in draws))
    points = [
        {"simulation": float(each["simulation"]), **_coordinates(each["input"])} for each in draws
    ]
    names = list(points[0]) if points else []
    if len(names) > 2:
        names = names[1:] if len(names) % 2 else [*names[1:], names[-2]]
    panels = []
    for one, other in zip(names[::2], names[1::2], strict=len(names) != 1):
        curves = [Curve(origin, [], []) for origin in origins]
        for point, each in zip(points, draws, strict=True):
            if {one, other} <= point.keys():
                curve = curves[origins.index(each["origin"])]
                curve.xs.append(point[one])
                curve.ys.append(point[other])
        panels.append(Panel(f"inputs: {other} over {one}", curves, points=True))
    return [*_share_of_inputs(history, origins), *panels[:MAX_INPUT_PANELS]]


def _share_of_inputs(history: Sequence[Record], origins: Sequence[str]) -> list[Panel]:
    counts = [Counter(each["origin"] for each in record.get("inputs", ())) for record in history]
    drawn = [(float(at), each) for at, each in enumerate(counts) if each]
    xs = [at for at, _ in drawn]
    curves = [
        Curve(each, xs, [100 * own[each] / own.total() for _, own in drawn]) for each in origins
    ]
    return (
        [Panel("inputs by how they were drawn (%)", curves, from_zero=True)]
        if len(origins) > 1
        else []
    )


def _coordinates(value: Any) -> dict[str, float]:
    """Return the numbers of an input by name; empty for other inputs."""
    given = value if isinstance(value, dict | list | tuple) else [value]
    items = given.items() if isinstance(given, dict) else enumerate(given)
    named = {name if isinstance(name, str) else f"parameter {name}": each for name, each in items}
    return named if all(isinstance(each, int | float) for each in named.values()) else {}


def _limited(curves: Sequence[Curve]) -> list[Curve]:
    """Return at most ``MAX_CURVES`` curves of each kind, more of them as one summary.

    A kind is the field that curves are of, such as ``recall`` for ``recall[0]``, or that they are
    workers.
    """
    kinds: dict[str, list[Curve]] = defaultdict(list)
    for curve in curves:
        kinds[curve.name.partition("[")[0].partition(" ")[0]].append(curve)
    limited: list[Curve] = []
    for kind, members in kinds.items():
        if len(members) > MAX_CURVES:
            values: dict[float, list[float]] = defaultdict(list)
            for x, y in (
                point for curve in members for point in zip(curve.xs, curve.ys, strict=True)
            ):
                values[x].append(y)
            xs = sorted(values)
            members = [summary(f"{kind}, median", xs, [values[x] for x in xs])]
        limited += members
    return limited


def _shares_panel(xs: list[float], seconds: Sequence[Mapping[str, float]]) -> Panel:
    """Return a panel with the share of each kind of activity, of several rounds together if there
    are many.
    """
    size = -(-len(xs) // MAX_SHARES)
    sums: list[Counter[str]] = [Counter() for _ in xs[::size]]
    for index, each in enumerate(seconds):
        sums[index // size].update(each)
    shares = {
        kind: [100 * each[kind] / (sum(each.values()) or 1.0) for each in sums] for kind in KINDS
    }
    return Panel(
        "the workers' time (%)",
        [Curve(kind, xs[::size], shares[kind]) for kind in KINDS],
        stacked=True,
    )


def drawable(panels: Iterable[Panel]) -> list[Panel]:
    """Return what can be drawn of the panels, without curves and panels of which nothing can."""
    kept = []
    for panel in panels:
        curves = [curve.drawable() for curve in panel.curves]
        kept.append(
            replace(panel, curves=[curve for curve in curves if not all(map(math.isnan, curve.ys))])
        )
    return [panel for panel in kept if panel.curves]


def title_of(name: str) -> str:
    """Return the name of the metric of a field: ``recall`` for ``val_recall[2]`` and
    ``val_averaged_recall[2]``.
    """
    return name.removeprefix("val_").removeprefix("averaged_").partition("[")[0].partition(".")[0]


def _worker_panel(history: Sequence[Record], xs: Sequence[float]) -> Panel:
    """Return a panel with the loss of each worker, through the rounds in which it trained."""
    curves: dict[int, Curve] = {}
    for x, record in zip(xs, history, strict=True):
        for own in record["workers"]:
            if isinstance(loss := own.get("loss"), int | float):
                curve = curves.setdefault(own["worker"], Curve(f"worker {own['worker']}", [], []))
                curve.xs.append(x)
                curve.ys.append(float(loss))
    return Panel("loss by worker", [curves[worker] for worker in sorted(curves)])


def _curve(name: str, xs: list[float], records: Sequence[Mapping[str, Any]]) -> Curve:
    values = [record.get(name) for record in records]
    return Curve(
        name, xs, [float(value) if isinstance(value, int | float) else math.nan for value in values]
    )
