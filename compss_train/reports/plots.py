"""Charts of histories: panels, drawn with matplotlib without a display and pyplot's global state,
and timelines.

In figures panels are side by side; in pages each is an SVG element of its own. The timeline of a
page is drawn here, as the page's script zooms into it: one lane per worker, colored by its activity
over time. A lane is a row of bars of equal length: in each the share of training is drawn from the
bottom, the share of merging above it, and waiting is the rest. If there are more workers than lanes
on a screen, several workers share a lane.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import BytesIO, StringIO
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from numpy.typing import NDArray

from compss_train.reports import comparison, timeline
from compss_train.reports.curves import Panel, panels
from compss_train.reports.formatting import tick, timestamp
from compss_train.reports.records import Axis, Record

COLUMNS = 2
MAX_DOTS = 40
"""Points that are marked by dots, so that single ones are seen, too; lines of more points have
none.
"""
MANY_POINTS = 400
"""More points in a plane are drawn smaller."""
_STEPS = 1, 2, 5, 10
"""Distances of ticks, times powers of 10."""
_PANEL_INCHES = 5.6, 3.0

_CURVES = "#2563a8", "#dc7a12", "#2b8a57", "#8a55b8", "#c23f3c", "#12869a", "#be4f8b", "#867618"
_KINDS = {"training": "#2f74b5", "merging": "#ef9a3c", "waiting": "#dfe3ea"}
_OTHERS = {"muted": "#667085", "grid": "#eceef2"}
COLORS = {f"c{number}": color for number, color in enumerate(_CURVES)} | _KINDS | _OTHERS
"""Colors by the names that they have in a page's style, which has others for dark screens."""

_WIDTH = 480
_HEIGHT = 220
_LEFT = 50
_RIGHT = 10
_TOP = 16
_BOTTOM = 24
_FONT_SIZE = 11.5
_LABEL = {"ha": "center", "va": "bottom", "fontsize": _FONT_SIZE, "color": COLORS["muted"]}
"""The picture of a panel in a page, in points."""

TIMELINE_WIDTH = 100_000
"""Length of the time axis, on any screen: the resolution of zooming."""
TOTAL_BARS = 8_000
"""Bars of all lanes together."""
MAX_LANES = 64
_LANE_PITCH = 9, 24
"""The smallest and the largest distance from a lane to the next, in pixels."""
_TIMELINE_HEIGHT = 256
"""Pixels of all lanes, unless that makes their distances too small or too large."""
_LANE_GAP = 2
"""Pixels between two lanes."""


class Picture(Figure):
    """A figure that notebooks show, also those that have not prepared pyplot."""

    def _repr_png_(self) -> bytes:
        self.savefig(stream := BytesIO(), format="png")
        return stream.getvalue()


def draw(history: Sequence[Record], against: Axis = "round") -> Figure:
    """Return the figure of a history; raise ``ValueError`` for an empty one."""
    if not history:
        raise ValueError("the history is empty, there is nothing to plot; call fit first")
    return figure_of(panels(history, against), against)


def figure_of(charts: Sequence[Panel], against: Axis = "round") -> Figure:
    """Return the figure of some panels, with the names of their curves beside them."""
    figure = _figure(charts, against)
    for ax, panel in zip(figure.axes, charts, strict=True):
        if len(panel.curves) > 1:
            ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def draw_comparison(runs: Sequence[comparison.ComparedRun], against: Axis = "round") -> Figure:
    """Return a figure with the curves of several runs; those of several seeds are a median in a
    band.
    """
    groups = comparison.grouped(runs)
    figure = _figure(comparison.comparison_panels(groups, against), against)
    lines = {line.get_label(): line for ax in figure.axes for line in ax.lines}
    named = [lines[group.name] for group in groups if group.name in lines]
    figure.legend(
        handles=named, loc="outside upper left", ncols=COLUMNS, fontsize="small", frameon=False
    )
    return figure


def _figure(charts: Sequence[Panel], against: Axis) -> Figure:
    rows = -(-len(charts) // COLUMNS)
    figure = Picture(
        figsize=(COLUMNS * _PANEL_INCHES[0], rows * _PANEL_INCHES[1]), layout="constrained"
    )
    for number, panel in enumerate(charts, 1):
        ax = figure.add_subplot(rows, COLUMNS, number)
        _draw_panel(ax, panel, against)
        ax.set_title(panel.title, fontsize="medium")
        ax.set_xlabel("" if panel.points else against)
    return figure


def _draw_panel(ax: Axes, panel: Panel, against: Axis) -> None:
    """Draw the curves of a panel, without its title and the names of its curves."""
    if panel.stacked:
        _stack(ax, panel)
    for number, curve in enumerate(() if panel.stacked else panel.curves):
        color = COLORS[_color_of(panel, number)]
        if panel.points:
            size = 4 if sum(len(each.xs) for each in panel.curves) > MANY_POINTS else 8
            ax.plot(
                curve.xs, curve.ys, ".", label=curve.name, color=color, alpha=0.7, markersize=size
            )
            continue
        marker = "." if sum(map(math.isfinite, curve.ys)) <= MAX_DOTS else None
        ax.plot(
            curve.xs,
            curve.ys,
            label=curve.name,
            linewidth=1.8,
            marker=marker,
            color=color,
            clip_on=False,
        )
        if curve.band:
            low, high = curve.band
            ax.fill_between(curve.xs, low, high, color=color, alpha=0.18, linewidth=0)
    for at in panel.breaks:
        ax.axvline(at, color=COLORS["muted"], linestyle=(0, (3, 3)), linewidth=1)
    if not panel.points:
        ax.set_xlim(panel.span)
    if panel.logarithmic:
        ax.set_yscale("log")
    else:
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
        ax.set_ylim(bottom=0 if panel.from_zero else None)
    whole = against in ("round", "epoch") and not panel.points
    ax.xaxis.set_major_locator(MaxNLocator(7, steps=_STEPS, integer=whole, min_n_ticks=1))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: tick(value))
        axis.set_minor_formatter(NullFormatter())
    ax.tick_params(which="both", length=0, pad=6, colors=COLORS["muted"])
    ax.set_axisbelow(True)
    ax.grid(axis="y", color=COLORS["grid"])
    ax.spines[:].set_visible(False)


def _stack(ax: Axes, panel: Panel) -> None:
    """Draw shares on top of each other; a single one as wide as a round."""
    xs = panel.curves[0].xs
    heights = [curve.ys for curve in panel.curves]
    if len(xs) == 1:
        xs = [xs[0] - 0.5, xs[0] + 0.5]
        heights = [each * 2 for each in heights]
    names = [curve.name for curve in panel.curves]
    ax.stackplot(xs, heights, labels=names, colors=[COLORS[name] for name in names])
    ax.set_ylim(0, 100)


def _color_of(panel: Panel, number: int) -> str:
    """Return the name of the color of a curve of a panel."""
    curve = panel.curves[number]
    if panel.stacked:
        return curve.name
    return f"c{(number if curve.color is None else curve.color) % len(_CURVES)}"


def chart_of(panel: Panel, against: Axis = "round") -> dict[str, Any]:
    """Return a panel as the templates of pages draw it, with the values that the script shows under
    the pointer.

    The values have 6 digits, and are ``None`` where JSON cannot represent them.
    """
    if not panel.points:
        panel = replace(panel, curves=[curve.downsampled() for curve in panel.curves])
    legend = [(curve.name, _color_of(panel, number)) for number, curve in enumerate(panel.curves)]
    curves = [
        {"name": curve.name, "x": _rounded(curve.xs), "y": _rounded(curve.ys)}
        | dict(zip(("low", "high"), map(_rounded, curve.band), strict=False))
        for curve in (() if panel.points else panel.curves)
    ]
    axis = [*_rounded(panel.span), _LEFT / _WIDTH, 1 - _RIGHT / _WIDTH]
    return {
        "title": panel.title,
        "note": "logarithmic" if panel.logarithmic else None,
        "legend": legend if len(legend) > 1 else [],
        "picture": _svg(panel, against),
        "script_data": {"x": axis, "over": against, "curves": curves},
    }


def _svg(panel: Panel, against: Axis) -> str:
    """Return an SVG element without title and legend, whose colors have the names of the page's
    style.
    """
    figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72))
    size = (_WIDTH - _LEFT - _RIGHT) / _WIDTH, (_HEIGHT - _TOP - _BOTTOM) / _HEIGHT
    ax = figure.add_axes((_LEFT / _WIDTH, _BOTTOM / _HEIGHT, *size))
    _draw_panel(ax, panel, against)
    ax.tick_params(labelsize=_FONT_SIZE)
    above = ax.get_xaxis_transform()
    for at in panel.breaks:
        ax.text(at, 1, "continued", _LABEL, transform=above)
    text = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}):
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=metadata)
    drawn = text.getvalue()
    drawn = re.sub(
        r' xmlns(:xlink)?="[^"]*"| font-family: [^;"]*;', "", drawn[drawn.index("<svg") :]
    )
    drawn = re.sub(r'<g id="[^"]*"', "<g", drawn)  # the same in all charts of a page
    for name, color in COLORS.items():
        drawn = drawn.replace(color, f"var(--{name})")
    # Of positions, not of texts.
    return re.sub(r">[^<]+<|(\.\d\d)\d+", lambda found: found[1] or found[0], drawn)


def _rounded(values: Iterable[float]) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def timeline_chart(
    history: Sequence[Record], intervals: Sequence[timeline.Interval]
) -> dict[str, Any] | None:
    """Return the timeline of all workers for the template, or ``None`` if the history has no times.

    Its axis has the ``seconds`` of all fits, one after another, without the time between them. The
    paths of a lane are pairs of a kind and the outline of its bars; ``pitch`` is the distance of
    lanes in pixels. ``breaks`` are where another fit begins, and when it did; ``ticks`` percent of
    the axis, and seconds, which the script replaces when it zooms.
    """
    if not intervals:
        return None
    kinds = np.array([timeline.KINDS.index(interval.kind) for interval in intervals])
    workers = np.array([interval.worker for interval in intervals])
    times, starts = _joined(history, intervals)
    seconds = float(times.max()) or 1e-3
    times = (times * (TIMELINE_WIDTH / seconds)).round()
    numbers = np.unique(workers)
    per_lane = -(-len(numbers) // MAX_LANES)
    groups = [numbers[first : first + per_lane] for first in range(0, len(numbers), per_lane)]
    pitch = int(np.clip(_TIMELINE_HEIGHT // len(groups), *_LANE_PITCH))
    edges = np.linspace(0, TIMELINE_WIDTH, max(50, TOTAL_BARS // len(groups)) + 1).round()
    lanes = []
    for index, group in enumerate(groups):
        own = np.isin(workers, group)
        name = f"worker {group[0]}" if len(group) == 1 else f"workers {group[0]}-{group[-1]}"
        base = index * pitch + pitch - _LANE_GAP
        paths = _outlines(times[own], kinds[own], edges, len(group), base, pitch - _LANE_GAP)
        lanes.append({"name": name, "paths": paths})
    marks = MaxNLocator(10, steps=_STEPS).tick_values(0, seconds)
    return {
        "width": TIMELINE_WIDTH,
        "pitch": pitch,
        "seconds": seconds,
        "lanes": lanes,
        "breaks": [
            (f"{at / seconds * TIMELINE_WIDTH:.0f}", timestamp(start)) for at, start in starts[1:]
        ],
        "ticks": [
            (f"{100 * at / seconds:.2f}", f"{tick(at)} s") for at in marks if 0 <= at <= seconds
        ],
    }


def _joined(
    history: Sequence[Record], intervals: Sequence[timeline.Interval]
) -> tuple[NDArray[np.float64], list[tuple[float, float]]]:
    """Return the start and stop of each interval on the axis, and where each fit begins on it, with
    its time.
    """
    times = np.array([(interval.start, interval.stop) for interval in intervals])
    began = np.array([history[interval.position]["fit_started"] for interval in intervals])
    spans = sorted(
        (times[began == fit, 0].min(), times[began == fit, 1].max(), fit)
        for fit in np.unique(began)
    )
    starts = []
    now = 0.0
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
    """Return outlines of bars, each in front of the one before: all three kinds, two of them,
    training alone.
    """
    heights = np.zeros(len(edges) - 1)
    outlines: list[tuple[str, str]] = []
    for number, kind in enumerate(timeline.KINDS):
        own = times[kinds == number]
        starts = np.sort(own[:, 0])
        stops = np.sort(own[:, 1])
        spent = _until(edges, starts) - _until(edges, stops)
        heights = heights + np.diff(spent) / np.diff(edges) / workers
        path = f"M{edges[0]:.0f} {base}"
        index = 0
        for height, run in groupby(
            round(float(height), 1) for height in np.minimum(heights, 1) * thickness
        ):
            index += len(list(run))
            path += f"V{base - height:g}H{edges[index]:.0f}"
        outlines.append((kind, f"{path}V{base}z"))
    return outlines[::-1]


def _until(edges: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of the lengths to each edge from all of the sorted times that are before
    it.
    """
    number = np.searchsorted(times, edges)
    lengths: NDArray[np.float64] = (
        number * edges - np.concatenate([[0.0], np.cumsum(times)])[number]
    )
    return lengths
