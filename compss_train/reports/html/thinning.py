"""Fewer points and rows where nobody could tell the difference, so that reports of long runs stay small."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

from compss_train.reports.curves import Curve, Panel

Item = TypeVar("Item")

POINTS = 500
"""The most points of a curve, about as many as a picture has pixels across."""
CURVES = 8
"""The most curves of one kind in a picture; of more, the lowest, the median and the highest values are drawn."""

EDGES = (", lowest", ", highest")
"""How the names of curves end that lie on both sides of the median's."""


def thinned(curve: Curve) -> Curve:
    """Return a curve of at most ``POINTS`` points that looks the same: the extremes of each stretch are kept."""
    if len(curve.xs) <= POINTS:
        return curve
    size = -(-2 * len(curve.xs) // POINTS)
    kept = [place for start in range(0, len(curve.xs), size) for place in _extremes(curve.ys, start, size)]
    return Curve(curve.name, [curve.xs[place] for place in kept], [curve.ys[place] for place in kept])


def _extremes(ys: Sequence[float], start: int, size: int) -> list[int]:
    """Return the places of the lowest and the highest value of a stretch, or its first where all are NaN."""
    places = range(start, min(start + size, len(ys)))
    numbers = [place for place in places if not math.isnan(ys[place])]
    if not numbers:
        return [start]
    return sorted({min(numbers, key=ys.__getitem__), max(numbers, key=ys.__getitem__)})


def condensed(panel: Panel) -> Panel:
    """Return the panel with at most ``CURVES`` curves of each kind."""
    kinds: dict[str, list[Curve]] = defaultdict(list)
    for curve in panel.curves:
        kinds[curve.name.partition("[")[0].partition(" ")[0]].append(curve)
    curves = [each for kind, own in kinds.items() for each in (own if len(own) <= CURVES else _summary(kind, own))]
    return Panel(panel.title, curves, panel.from_zero)


def _summary(kind: str, curves: list[Curve]) -> list[Curve]:
    values: dict[float, list[float]] = defaultdict(list)
    for curve in curves:
        for x, y in zip(curve.xs, curve.ys, strict=True):
            if not math.isnan(y):
                values[x].append(y)
    xs = sorted(values)
    statistics: dict[str, Callable[[list[float]], float]] = {"median": median, "lowest": min, "highest": max}
    return [Curve(f"{kind}, {name}", xs, [take(values[x]) for x in xs]) for name, take in statistics.items()]


def every_few(items: Sequence[Item], most: int) -> tuple[list[Item], int]:
    """Return every n-th item, the last one among them, and n: as small as leaves at most so many, and one."""
    step = max(1, -(-len(items) // most))
    kept = [item for place, item in enumerate(items) if place % step == 0 or place == len(items) - 1]
    return kept, step
