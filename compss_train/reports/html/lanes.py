"""The timeline of the workers as SVG: a lane a worker, coloured by what it did when.

Every interval is a stroke where there are few enough of them. Of more, each lane is cut into stretches of equal
length: the share of training stands at the bottom of a stretch, that of merging on it, and waiting is the rest.
Workers beyond what a screen can show share lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from compss_train.reports.html.formatting import moment, tick
from compss_train.reports.html.markup import Markup, tag
from compss_train.reports.html.scales import UNITS, TimeAxis, exact
from compss_train.reports.timeline import KINDS, Interval, Record

INTERVALS = 16_000
"""The most that are drawn one by one."""
STRETCHES = 10_000
"""About how many are drawn otherwise, over all lanes."""
LANES = 64
_HEIGHTS = ((8, 24), (16, 16), (32, 12), (LANES, 9))
"""Pixels from a lane to the next, by how many lanes there are at most."""
_GAP = 2
"""Pixels between two lanes."""

Stroke: TypeAlias = tuple[str, float, float]
"""A kind of interval, and where it starts and stops along the axis."""


@dataclass(frozen=True)
class Lane:
    """One or more workers."""

    name: str
    workers: int
    strokes: list[Stroke]


def timeline(history: Sequence[Record], found: Sequence[Interval]) -> Markup | None:
    """Return the lanes with their names and axis, ``None`` where no times are known."""
    if not found:
        return None
    axis = TimeAxis(history, found)
    lanes = _lanes(axis, found)
    pixels = next(pixels for most, pixels in _HEIGHTS if len(lanes) <= most)
    height = pixels * len(lanes)
    picture = tag(
        "svg",
        *_drawn(lanes, pixels, one_by_one=not is_summary(found)),
        *(_mark(at, began, height) for at, began in axis.pauses()),
        viewBox=f"0 0 {UNITS} {height}",
        preserveAspectRatio="none",
        style=f"height:{height}px",
        role="img",
        aria_label="what each worker did when",
    )
    zoomable = tag("div", picture, tag("div", *_ticks(axis.seconds), class_="ticks"), class_="zoomable")
    names = tag("div", *_names(lanes, pixels), class_="names", style=f"height:{height}px")
    return tag("div", names, zoomable, class_="timeline", data_seconds=f"{axis.seconds:.6g}")


def is_summary(found: Sequence[Interval]) -> bool:
    """Tell whether intervals are too many to be drawn one by one."""
    return len(found) > INTERVALS or len({interval.worker for interval in found}) > LANES


def _lanes(axis: TimeAxis, found: Sequence[Interval]) -> list[Lane]:
    workers = sorted({interval.worker for interval in found})
    together = -(-len(workers) // LANES)
    strokes: dict[int, list[Stroke]] = {worker: [] for worker in workers}
    for interval in found:
        strokes[interval.worker].append((interval.kind, *axis.place(interval)))
    groups = (workers[first : first + together] for first in range(0, len(workers), together))
    return [
        Lane(
            f"worker {own[0]}" if len(own) == 1 else f"workers {own[0]}-{own[-1]}",
            len(own),
            [stroke for worker in own for stroke in strokes[worker]],
        )
        for own in groups
    ]


def _drawn(lanes: list[Lane], pixels: int, *, one_by_one: bool) -> Iterator[Markup]:
    row_ranges = max(50, STRETCHES // len(lanes))
    for place, lane in enumerate(lanes):
        top, thick = place * pixels, pixels - _GAP
        paths = _strokes(lane, top, thick) if one_by_one else _areas(lane, top, thick, row_ranges)
        yield tag("g", *paths, class_="lane", data_name=lane.name)


def _strokes(lane: Lane, top: int, thick: int) -> Iterator[Markup]:
    """Iterate over a path of each kind, whose strokes are as thick as the lane."""
    for kind in KINDS:
        path, now = [f"M0 {top + thick / 2:g}"], 0
        for start, stop in ((round(a), round(b)) for other, a, b in lane.strokes if other == kind):
            path.append(f"m{start - now} 0h{stop - start}")
            now = stop
        yield tag("path", d="".join(path), class_=kind, stroke_width=thick)


def _areas(lane: Lane, top: int, thick: int, row_ranges: int) -> Iterator[Markup]:
    """Iterate over stacked areas, each in front of the one before: all three kinds, two of them, training alone."""
    shares = {kind: _shares(lane, kind, row_ranges) for kind in KINDS}
    for kinds in (KINDS, KINDS[:2], KINDS[:1]):
        heights = [thick * min(1.0, sum(each)) for each in zip(*(shares[kind] for kind in kinds), strict=True)]
        yield tag("path", d=_steps(heights, top + thick), class_=f"{kinds[-1]} area")


def _shares(lane: Lane, kind: str, row_ranges: int) -> list[float]:
    """Return the share of each stretch of time that the lane's workers spent in this way, on average."""
    length = UNITS / row_ranges
    shares = [0.0] * row_ranges
    for _, start, stop in (stroke for stroke in lane.strokes if stroke[0] == kind):
        for place in range(int(start / length), min(row_ranges, int(stop / length) + 1)):
            within = min(stop, (place + 1) * length) - max(start, place * length)
            shares[place] += max(0.0, within) / length / lane.workers
    return shares


def _steps(heights: Iterable[float], base: int) -> str:
    """Return the outline of bars side by side from one end of the axis to the other."""
    heights = [round(height, 1) for height in heights]
    length, path, place = UNITS / len(heights), f"M0 {base}", 0
    for height, run in groupby(heights):
        place += len(list(run))
        path += f"V{base - height:g}H{place * length:.0f}"
    return f"{path}V{base}z"


def _mark(at: float, began: float, height: int) -> Markup:
    told = tag("title", f"the next fit, from {moment(began)}")
    return tag("path", told, d=f"M{at:.0f} 0V{height}", class_="pause")


def _names(lanes: list[Lane], pixels: int) -> Iterator[Markup]:
    """Iterate over the names of as many lanes as there is room for."""
    every = -(-14 // pixels)
    for place, lane in enumerate(lanes):
        if place % every == 0:
            yield tag("span", lane.name, style=f"top:{place * pixels + (pixels - _GAP) / 2:g}px")


def _ticks(seconds: float) -> Iterator[Markup]:
    """Iterate over the labels of the axis, which the script replaces when it zooms."""
    scale = exact(0.0, seconds, 0.0, 100.0)
    for value in scale.ticks(8):
        yield tag("span", f"{tick(value)} s", style=f"left:{scale(value):.2f}%")
