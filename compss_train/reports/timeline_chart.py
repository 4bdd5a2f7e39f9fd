"""The timeline of the workers: one lane per worker, colored by its activity over time.

A lane is a row of bars from interval to interval, or, if they are many, of equal length: in each the share of
training is drawn from the bottom, the share of merging above it, and waiting is the rest. If there are more workers
than lanes on a screen, several workers share a lane. It is drawn here, as the page's script zooms into it.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from compss_train.reports.formatting import tick, timestamp
from compss_train.reports.records import Record
from compss_train.reports.timeline import KINDS, Interval

WIDTH = 100_000
"""Length of the time axis, on any screen: the resolution of zooming."""
TOTAL_BARS = 16_000
"""Bars of all lanes beyond which they have equal lengths."""
MAX_LANES = 64
_LANE_PITCHES = ((8, 24), (16, 16), (32, 12), (MAX_LANES, 9))
"""Pairs of a number of lanes and the pixels from a lane to the next up to that number."""
_GAP = 2
"""Pixels between two lanes."""
_LABEL_PIXELS = 14
"""Height of the name of a lane."""


def timeline_chart(history: Sequence[Record], intervals: Sequence[Interval]) -> dict[str, Any] | None:
    """Return the timeline of all workers as the template draws it, ``None`` if the history has no times.

    Its axis has the ``seconds`` of all fits, one after another, without the time between them. The paths of a lane
    are pairs of a kind and the outline of its bars, which have equal lengths if ``is_binned``. ``breaks`` are where
    another fit begins, and when it did; ``labels`` pixels from the top, and the names of lanes that have room for
    them; ``ticks`` percent of the axis, and seconds, which the script replaces when it zooms.
    """
    if not intervals:
        return None
    kinds = np.array([KINDS.index(interval.kind) for interval in intervals])
    workers = np.array([interval.worker for interval in intervals])
    times, starts = _joined(history, intervals)
    seconds = float(times.max()) or 1e-3
    times = (times * (WIDTH / seconds)).round()
    numbers = np.unique(workers)
    per_lane = -(-len(numbers) // MAX_LANES)
    groups = [numbers[first : first + per_lane] for first in range(0, len(numbers), per_lane)]
    pitch = next(pixels for most, pixels in _LANE_PITCHES if len(groups) <= most)
    is_binned = len(intervals) > TOTAL_BARS or per_lane > 1
    bars = np.linspace(0, WIDTH, max(50, TOTAL_BARS // 2 // len(groups)) + 1) if is_binned else None
    lanes = []
    for index, group in enumerate(groups):
        own = np.isin(workers, group)
        name = f"worker {group[0]}" if len(group) == 1 else f"workers {group[0]}-{group[-1]}"
        base = index * pitch + pitch - _GAP
        edges = np.unique(times[own]) if bars is None else bars
        paths = _outlines(times[own], kinds[own], edges, len(group), base, pitch - _GAP)
        lanes.append({"name": name, "paths": paths})
    step = -(-_LABEL_PIXELS // pitch)
    marks = MaxNLocator(10, steps=[1, 2, 5, 10]).tick_values(0, seconds)
    return {
        "width": WIDTH,
        "height": pitch * len(lanes),
        "seconds": seconds,
        "lanes": lanes,
        "is_binned": is_binned,
        "breaks": [(f"{at / seconds * WIDTH:.0f}", timestamp(start)) for at, start in starts[1:]],
        "labels": [
            (f"{at * pitch + (pitch - _GAP) / 2:g}", lanes[at]["name"]) for at in range(0, len(lanes), step)
        ],
        "ticks": [(f"{100 * at / seconds:.2f}", f"{tick(at)} s") for at in marks if 0 <= at <= seconds],
    }


def _joined(
    history: Sequence[Record], intervals: Sequence[Interval]
) -> tuple[NDArray[np.float64], list[tuple[float, float]]]:
    """Return the start and stop of each interval on the axis, and where each fit begins on it, with its time."""
    times = np.array([(interval.start, interval.stop) for interval in intervals])
    began = np.array([history[interval.position]["fit_started"] for interval in intervals])
    spans = sorted((times[began == fit, 0].min(), times[began == fit, 1].max(), fit) for fit in np.unique(began))
    starts, now = [], 0.0
    joined = np.empty_like(times)
    for start, stop, fit in spans:
        joined[began == fit] = times[began == fit] - start + now
        starts.append((now, float(start)))
        now += stop - start
    return joined, starts


def _outlines(
    times: NDArray[np.float64],
    kinds: NDArray[np.intp],
    edges: NDArray[np.float64],
    workers: int,
    base: int,
    thickness: int,
) -> list[tuple[str, str]]:
    """Return outlines of bars, each in front of the one before: all three kinds, two of them, training alone."""
    heights = np.zeros(len(edges) - 1)
    outlines: list[tuple[str, str]] = []
    for number, kind in enumerate(KINDS):
        own = times[kinds == number]
        starts, stops = np.sort(own[:, 0]), np.sort(own[:, 1])
        spent = _until(edges, starts) - _until(edges, stops)
        heights = heights + np.diff(spent) / np.diff(edges) / workers
        path, index = f"M{edges[0]:.0f} {base}", 0
        for height, run in groupby(round(float(height), 1) for height in np.minimum(heights, 1) * thickness):
            index += len(list(run))
            path += f"V{base - height:g}H{edges[index]:.0f}"
        outlines.append((kind, f"{path}V{base}z"))
    return outlines[::-1]


def _until(edges: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of the lengths to each edge from all of the sorted times that are before it."""
    number = np.searchsorted(times, edges)
    lengths: NDArray[np.float64] = number * edges - np.concatenate([[0.0], np.cumsum(times)])[number]
    return lengths
