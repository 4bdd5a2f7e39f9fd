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
"""Values of at least this magnitude are not drawn: the arithmetic of axes overflows beyond it."""
MAX_POINTS = 500
"""Points of a downsampled curve, about as many as the pixels across a chart."""
MAX_CURVES = 8
"""Curves of one kind in a panel; more are summarized by their median, lowest and highest values."""
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
        """Return the curve with NaN, also in its band, at points that are not below ``LARGEST``."""
        lines = np.array([self.ys, *self.band])
        ys, *band = np.where((abs(lines) < LARGEST).all(axis=0), lines, np.nan).tolist()
        return replace(self, ys=ys, band=band)

    def downsampled(self) -> Self:
        """Return the curve with at most ``MAX_POINTS`` points, among them segments' extremes."""
        if len(self.xs) <= MAX_POINTS:
            return self
        kept = []
        size = -(-2 * len(self.ys) // MAX_POINTS)
        for start in range(0, len(self.ys), size):
            segment = range(start, min(start + size, len(self.ys)))
            numbers = [index for index in segment if not math.isnan(self.ys[index])] or [start]
            lowest = min(numbers, key=self.ys.__getitem__)
            highest = max(numbers, key=self.ys.__getitem__)
            kept += sorted({lowest, highest})
        lines = [self.xs, self.ys, *self.band]
        xs, ys, *band = ([values[index] for index in kept] for values in lines)
        return replace(self, xs=xs, ys=ys, band=band)


def summary(name: str, xs: list[float], values: Sequence[Sequence[float]]) -> Curve:
    """Return the median of the finite values at each x, in a band from the lowest to the highest.

    The values at each x are in the order of ``xs``.
    """
    finite = [
        [value for value in column if math.isfinite(value)] or [math.nan] for column in values
    ]
    lowest = [min(column) for column in finite]
    highest = [max(column) for column in finite]
    return Curve(name, xs, [median(column) for column in finite], (lowest, highest))


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
        """The x values of the first and the last point.

        A single point is in the middle of a unit interval.
        """
        xs = [x for curve in self.curves for x in curve.xs]
        low = min(xs)
        high = max(xs)
        return (low, high) if high > low else (low - 0.5, low + 0.5)

    @property
    def logarithmic(self) -> bool:
        """Whether the y axis is logarithmic.

        It is if all values are positive, and the largest is 100 times the smallest. Axes of shares
        and those that start at 0 are linear, and so are rising values of at most 100: scores, such
        as accuracies.
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
    ascending = all(before <= after for before, after in pairwise(values))
    return values if ascending else [float(index) for index in range(len(history))]


def training_seconds(history: Sequence[Record]) -> list[float]:
    """Return the seconds of each round without the start-up of a fit."""
    return [
        record["seconds"] - startup
        for record, startup in zip(history, startup_seconds(history), strict=True)
    ]


def training_speeds(history: Sequence[Record]) -> list[float]:
    """Return the samples per second of each round, without the start-up of a fit."""
    return [
        float(record[SPEED])
        if seconds == record["seconds"]
        else per_second(record["samples"], seconds)
        for record, seconds in zip(history, training_seconds(history), strict=True)
    ]


def panels(
    history: Sequence[Record], against: Axis = "round", intervals: list[Interval] | None = None
) -> list[Panel]:
    """Return the panels of a history.

    They are those of the loss, each metric, the speed, numbers of online fits, the loss and time by
    worker, and inputs. Curves and panels without a finite value are left out, many curves of one
    kind are summarized, and the speed is without the start-up of a fit. ``intervals`` are those of
    the history, if already computed.
    """
    xs = positions(history, against)
    panels = [*_measured_panels(history, xs), *_other_panels(history, xs)]
    by_worker = _worker_panel(history, xs)
    if len(by_worker.curves) > 1:
        panels.append(by_worker)
    seconds = round_totals(worker_intervals(history) if intervals is None else intervals)
    if seconds:
        panels.append(_shares_panel(xs, [seconds.get(index, {}) for index in range(len(xs))]))
    breaks = _starts_of_fits(history, xs)
    return [
        replace(panel, curves=_limited(panel.curves), breaks=breaks) for panel in drawable(panels)
    ] + input_panels(history)


def _measured_panels(history: Sequence[Record], xs: list[float]) -> list[Panel]:
    """Return a panel for each loss and metric, on training and on validation data."""
    measured = [measured_numbers(record) for record in history]
    names_by_title: dict[str, list[str]] = {}
    for name in dict.fromkeys(chain.from_iterable(measured)):
        names_by_title.setdefault(title_of(name), []).append(name)
    return [
        Panel(title, [_curve(name, xs, measured) for name in names])
        for title, names in names_by_title.items()
    ]


def _other_panels(history: Sequence[Record], xs: list[float]) -> list[Panel]:
    """Return the panels of ``_OTHER_PANELS`` that any record has a number for."""
    speeds = training_speeds(history)
    rows = [
        {**flatten(record), SPEED: speed} for record, speed in zip(history, speeds, strict=True)
    ]
    rates = dict.fromkeys(name for row in rows for name in row if name.startswith(RATES))
    fields = {**_OTHER_PANELS, "learning rate": (LEARNING_RATE, *rates)}
    return [
        Panel(title, [_curve(name, xs, rows) for name in names], from_zero=True)
        for title, names in fields.items()
        if any(names[0] in row for row in rows)
    ]


def _starts_of_fits(history: Sequence[Record], xs: Sequence[float]) -> tuple[float, ...]:
    """Return the positions at which another fit begins than the one before."""
    fits = [record.get("fit_started") for record in history]
    return tuple(xs[index] for index in range(1, len(xs)) if fits[index] != fits[index - 1])


def input_panels(history: Sequence[Record]) -> list[Panel]:
    """Return where a sampler has drawn inputs, and the percentage of each way to draw them.

    A panel has two parameters. Only inputs that are numbers are drawn: one, or a list or dict with
    as many each time.
    """
    draws = [draw for record in history for draw in record.get("inputs", ())]
    origins = list(dict.fromkeys(draw["origin"] for draw in draws))
    points = [
        {"simulation": float(draw["simulation"]), **_coordinates(draw["input"])} for draw in draws
    ]
    names = list(points[0]) if points else []
    if len(names) > 2:
        names = names[1:] if len(names) % 2 else [*names[1:], names[-2]]
    panels = []
    for horizontal, vertical in zip(names[::2], names[1::2], strict=len(names) != 1):
        curves = {origin: Curve(origin, [], []) for origin in origins}
        for point, draw in zip(points, draws, strict=True):
            if {horizontal, vertical} <= point.keys():
                curve = curves[draw["origin"]]
                curve.xs.append(point[horizontal])
                curve.ys.append(point[vertical])
        title = f"inputs: {vertical} over {horizontal}"
        panels.append(Panel(title, list(curves.values()), points=True))
    return [*_share_of_inputs(history, origins), *panels[:MAX_INPUT_PANELS]]


def _share_of_inputs(history: Sequence[Record], origins: Sequence[str]) -> list[Panel]:
    """Return the panel of the ways in which inputs were drawn, if there are several."""
    if len(origins) < 2:
        return []
    counts = [Counter(draw["origin"] for draw in record.get("inputs", ())) for record in history]
    indexes = [index for index, count in enumerate(counts) if count]
    xs = [float(index) for index in indexes]
    curves = []
    for origin in origins:
        shares = [100 * counts[index][origin] / counts[index].total() for index in indexes]
        curves.append(Curve(origin, xs, shares))
    return [Panel("inputs by how they were drawn (%)", curves, from_zero=True)]


def _coordinates(value: Any) -> dict[str, float]:
    """Return the numbers of an input by name; empty for other inputs."""
    if isinstance(value, dict):
        items: Iterable[tuple[Any, Any]] = value.items()
    else:
        items = enumerate(value if isinstance(value, list | tuple) else [value])
    named = {name if isinstance(name, str) else f"parameter {name}": item for name, item in items}
    return named if all(isinstance(item, int | float) for item in named.values()) else {}


def _limited(curves: Sequence[Curve]) -> list[Curve]:
    """Return at most ``MAX_CURVES`` curves of each kind, more of them as one summary.

    A kind is the field of its curves, such as ``recall`` of ``recall[0]``, or workers.
    """
    kinds: dict[str, list[Curve]] = defaultdict(list)
    for curve in curves:
        kinds[curve.name.partition("[")[0].partition(" ")[0]].append(curve)
    limited: list[Curve] = []
    for kind, members in kinds.items():
        if len(members) > MAX_CURVES:
            values: dict[float, list[float]] = defaultdict(list)
            for curve in members:
                for x, y in zip(curve.xs, curve.ys, strict=True):
                    values[x].append(y)
            xs = sorted(values)
            members = [summary(f"{kind}, median", xs, [values[x] for x in xs])]
        limited += members
    return limited


def _shares_panel(xs: list[float], seconds: Sequence[Mapping[str, float]]) -> Panel:
    """Return a panel with the share of each kind of activity.

    Of many rounds, several are one point. ``seconds`` are those of each kind, by round.
    """
    size = -(-len(xs) // MAX_SHARES)
    sums: list[Counter[str]] = [Counter() for _ in xs[::size]]
    for index, by_kind in enumerate(seconds):
        sums[index // size].update(by_kind)
    curves = []
    for kind in KINDS:
        shares = [100 * by_kind[kind] / (sum(by_kind.values()) or 1.0) for by_kind in sums]
        curves.append(Curve(kind, xs[::size], shares))
    return Panel("the workers' time (%)", curves, stacked=True)


def drawable(panels: Iterable[Panel]) -> list[Panel]:
    """Return what can be drawn of the panels, without curves and panels of which nothing can."""
    kept = []
    for panel in panels:
        curves = [curve.drawable() for curve in panel.curves]
        curves = [curve for curve in curves if not all(map(math.isnan, curve.ys))]
        if curves:
            kept.append(replace(panel, curves=curves))
    return kept


def title_of(name: str) -> str:
    """Return the name of the metric of a field.

    It is ``recall`` for ``val_recall[2]`` and ``val_averaged_recall[2]``.
    """
    return name.removeprefix("val_").removeprefix("averaged_").partition("[")[0].partition(".")[0]


def _worker_panel(history: Sequence[Record], xs: Sequence[float]) -> Panel:
    """Return a panel with the loss of each worker, through the rounds in which it trained."""
    curves: dict[int, Curve] = {}
    for x, record in zip(xs, history, strict=True):
        for entry in record["workers"]:
            worker = entry["worker"]
            loss = entry.get("loss")
            if isinstance(loss, int | float):
                curve = curves.setdefault(worker, Curve(f"worker {worker}", [], []))
                curve.xs.append(x)
                curve.ys.append(float(loss))
    return Panel("loss by worker", [curves[worker] for worker in sorted(curves)])


def _curve(name: str, xs: list[float], records: Sequence[Mapping[str, Any]]) -> Curve:
    values = [record.get(name) for record in records]
    ys = [float(value) if isinstance(value, int | float) else math.nan for value in values]
    return Curve(name, xs, ys)
