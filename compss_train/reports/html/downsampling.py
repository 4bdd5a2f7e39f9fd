"""Downsampling of curves and tables, so that reports of long runs stay small and look the same."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from compss_train.reports.curves import Curve, Panel, summary

Item = TypeVar("Item")

MAX_POINTS = 500
"""Points of a curve, about as many as the pixels across a chart."""
MAX_CURVES = 8
"""Curves of one kind in a chart; a larger number is summarized by the median, the lowest and the highest values."""


def downsample(curve: Curve) -> Curve:
    """Return a curve of at most ``MAX_POINTS`` points, which keeps the drawable extremes of each segment."""
    if len(curve.xs) <= MAX_POINTS:
        return curve
    size = -(-2 * len(curve.xs) // MAX_POINTS)
    drawn = curve.drawable().ys
    kept = [index for start in range(0, len(curve.xs), size) for index in _extremes(drawn, start, size)]
    xs, ys, *band = ([values[index] for index in kept] for values in (curve.xs, curve.ys, *(curve.band or ())))
    return Curve(curve.name, xs, ys, (band[0], band[1]) if band else None)


def _extremes(ys: Sequence[float], start: int, size: int) -> list[int]:
    """Return the indices of the lowest and the highest value of a segment, or its start if all are NaN."""
    indices = range(start, min(start + size, len(ys)))
    numbers = [index for index in indices if not math.isnan(ys[index])]
    if not numbers:
        return [start]
    return sorted({min(numbers, key=ys.__getitem__), max(numbers, key=ys.__getitem__)})


def limit_curves(panel: Panel) -> Panel:
    """Return a panel of one run with at most ``MAX_CURVES`` curves of each kind, more of them as one summary.

    A kind is the field that curves are of, such as ``recall`` for ``recall[0]``, or that they are workers.
    """
    kinds: dict[str, list[Curve]] = defaultdict(list)
    for curve in panel.curves:
        kinds[curve.name.partition("[")[0].partition(" ")[0]].append(curve)
    curves: list[Curve] = []
    for kind, members in kinds.items():
        curves += members if len(members) <= MAX_CURVES else [_summarized(kind, members)]
    return replace(panel, curves=curves)


def _summarized(kind: str, curves: list[Curve]) -> Curve:
    values: dict[float, list[float]] = defaultdict(list)
    for curve in curves:
        for x, y in zip(curve.xs, curve.ys, strict=True):
            values[x].append(y)
    xs = sorted(values)
    return summary(f"{kind}, median", xs, [values[x] for x in xs])


def every_nth(items: Sequence[Item], most: int) -> tuple[list[Item], int]:
    """Return every n-th item and the last one, and the smallest n that leaves at most ``most`` + 1 items."""
    step = max(1, -(-len(items) // most))
    kept = [item for index, item in enumerate(items) if index % step == 0 or index == len(items) - 1]
    return kept, step
