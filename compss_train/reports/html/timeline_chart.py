"""The timeline of the workers: one lane per worker, colored by its activity over time.

Intervals are drawn one by one if they are few. Otherwise each lane is cut into time bins of equal length; in each
bin the share of training is drawn from the bottom, the share of merging above it, and waiting is the rest. If there
are more workers than lanes on a screen, several workers share a lane.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from compss_train.reports.formatting import tick, timestamp
from compss_train.reports.html.charts import SvgPath, Tick
from compss_train.reports.html.scales import AXIS_UNITS, TimeAxis, exact_scale
from compss_train.reports.records import Record
from compss_train.reports.timeline import KINDS, Interval

MAX_INTERVALS = 16_000
"""Intervals that are drawn one by one."""
TOTAL_BINS = 10_000
"""About how many time bins all lanes have together."""
MAX_LANES = 64
_LANE_PITCHES = ((8, 24), (16, 16), (32, 12), (MAX_LANES, 9))
"""Pairs of a number of lanes and the pixels from a lane to the next up to that number."""
_GAP = 2
"""Pixels between two lanes."""
_LABEL_PIXELS = 14
"""Height of the name of a lane."""

Stroke: TypeAlias = tuple[str, float, float]
"""The kind of an interval, and its start and stop in units of the axis."""


@dataclass(frozen=True)
class Lane:
    """The intervals of one or more workers."""

    name: str
    num_workers: int
    strokes: list[Stroke]


@dataclass(frozen=True)
class LaneDrawing:
    """The paths of a lane: strokes of a width in pixels, or areas if the width is ``None``."""

    name: str
    paths: list[SvgPath]
    stroke_width: int | None


@dataclass(frozen=True, kw_only=True)
class TimelineChart:
    """A timeline as the template draws it."""

    width: int = AXIS_UNITS
    height: int
    """In pixels."""
    seconds: float
    """Length of the axis."""
    lanes: list[LaneDrawing]
    breaks: list[tuple[str, str]]
    """Pairs of the position at which another fit begins and its start time."""
    labels: list[Tick]
    ticks: list[Tick]
    """Pairs of a position in percent and a label; the script replaces them when it zooms."""


def timeline_chart(history: Sequence[Record], intervals: Sequence[Interval]) -> TimelineChart | None:
    """Return the timeline of all workers, ``None`` if the history has no times."""
    if not intervals:
        return None
    axis = TimeAxis(history, intervals)
    lanes = _lanes(axis, intervals)
    pitch = next(pixels for most, pixels in _LANE_PITCHES if len(lanes) <= most)
    scale = exact_scale(0.0, axis.seconds, 0.0, 100.0)
    return TimelineChart(
        height=pitch * len(lanes),
        seconds=axis.seconds,
        lanes=list(_drawings(lanes, pitch, binned=is_binned(intervals))),
        breaks=[(f"{position:.0f}", timestamp(start)) for position, start in axis.breaks()],
        labels=list(_labels(lanes, pitch)),
        ticks=[(f"{scale(value):.2f}", f"{tick(value)} s") for value in scale.ticks(8)],
    )


def is_binned(intervals: Sequence[Interval]) -> bool:
    """Return whether there are too many intervals to be drawn one by one."""
    return len(intervals) > MAX_INTERVALS or len({interval.worker for interval in intervals}) > MAX_LANES


def _lanes(axis: TimeAxis, intervals: Sequence[Interval]) -> list[Lane]:
    workers = sorted({interval.worker for interval in intervals})
    per_lane = -(-len(workers) // MAX_LANES)
    strokes: dict[int, list[Stroke]] = {worker: [] for worker in workers}
    for interval in intervals:
        strokes[interval.worker].append((interval.kind, *axis.span(interval)))
    groups = (workers[first : first + per_lane] for first in range(0, len(workers), per_lane))
    return [
        Lane(
            f"worker {group[0]}" if len(group) == 1 else f"workers {group[0]}-{group[-1]}",
            len(group),
            [stroke for worker in group for stroke in strokes[worker]],
        )
        for group in groups
    ]


def _drawings(lanes: list[Lane], pitch: int, *, binned: bool) -> Iterator[LaneDrawing]:
    num_bins = max(50, TOTAL_BINS // len(lanes))
    thickness = pitch - _GAP
    for index, lane in enumerate(lanes):
        top = index * pitch
        paths = _areas(lane, top, thickness, num_bins) if binned else _strokes(lane, top, thickness)
        yield LaneDrawing(lane.name, list(paths), None if binned else thickness)


def _strokes(lane: Lane, top: int, thickness: int) -> Iterator[SvgPath]:
    """Iterate over the paths of all kinds, with one stroke for each interval."""
    for kind in KINDS:
        path, position = [f"M0 {top + thickness / 2:g}"], 0
        for start, stop in ((round(a), round(b)) for other, a, b in lane.strokes if other == kind):
            path.append(f"m{start - position} 0h{stop - start}")
            position = stop
        yield SvgPath(kind, "".join(path))


def _areas(lane: Lane, top: int, thickness: int, num_bins: int) -> Iterator[SvgPath]:
    """Iterate over stacked areas, each in front of the one before: all three kinds, two of them, training alone."""
    shares = {kind: _bin_shares(lane, kind, num_bins) for kind in KINDS}
    for kinds in (KINDS, KINDS[:2], KINDS[:1]):
        heights = [thickness * min(1.0, sum(each)) for each in zip(*(shares[kind] for kind in kinds), strict=True)]
        yield SvgPath(f"{kinds[-1]} area", _bars(heights, top + thickness))


def _bin_shares(lane: Lane, kind: str, num_bins: int) -> list[float]:
    """Return the share of each time bin that the workers of a lane spent on ``kind``, on average."""
    length = AXIS_UNITS / num_bins
    shares = [0.0] * num_bins
    for _, start, stop in (stroke for stroke in lane.strokes if stroke[0] == kind):
        for index in range(int(start / length), min(num_bins, int(stop / length) + 1)):
            overlap = min(stop, (index + 1) * length) - max(start, index * length)
            shares[index] += max(0.0, overlap) / length / lane.num_workers
    return shares


def _bars(heights: Iterable[float], base: int) -> str:
    """Return the outline of adjacent bars of equal width along the whole axis."""
    heights = [round(height, 1) for height in heights]
    length, path, index = AXIS_UNITS / len(heights), f"M0 {base}", 0
    for height, run in groupby(heights):
        index += len(list(run))
        path += f"V{base - height:g}H{index * length:.0f}"
    return f"{path}V{base}z"


def _labels(lanes: list[Lane], pitch: int) -> Iterator[Tick]:
    """Iterate over the positions and names of lanes, omitting those that have no room."""
    step = -(-_LABEL_PIXELS // pitch)
    for index, lane in enumerate(lanes):
        if index % step == 0:
            yield f"{index * pitch + (pitch - _GAP) / 2:g}", lane.name
