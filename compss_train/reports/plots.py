"""Charts of histories: panels and timelines.

Panels are drawn with matplotlib, without a display and pyplot's global state. In figures panels are
side by side; in pages each is an SVG element of its own. The timeline of a page is drawn here, as
the page's script zooms into it: one lane per worker, colored by its activity over time. A lane is a
row of bars of equal length: in each the share of training is drawn from the bottom, the share of
merging above it, and waiting is the rest. If there are more workers than lanes on a screen, several
workers share a lane.
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
from compss_train.reports.curves import Curve, Panel, panels
from compss_train.reports.formatting import tick, timestamp
from compss_train.reports.records import Axis, Record

COLUMNS = 2
MAX_DOTS = 40
"""Points that are marked by dots, so that single ones are seen; lines of more points have none."""
MANY_POINTS = 400
"""More points in a plane are drawn smaller."""
_STEPS = (1, 2, 5, 10)
"""Distances of ticks, times powers of 10."""
_PANEL_INCHES = (5.6, 3.0)

_CURVE_COLORS = (
    *("#2563a8", "#dc7a12", "#2b8a57", "#8a55b8"),
    *("#c23f3c", "#12869a", "#be4f8b", "#867618"),
)
COLORS = {
    **{f"c{number}": color for number, color in enumerate(_CURVE_COLORS)},
    "training": "#2f74b5",
    "merging": "#ef9a3c",
    "waiting": "#dfe3ea",
    "muted": "#667085",
    "grid": "#eceef2",
}
"""Colors by the names that they have in a page's style, which has others for dark screens."""

# The picture of a panel in a page, in points.
_WIDTH = 480
_HEIGHT = 220
_LEFT = 50
_RIGHT = 10
_TOP = 16
_BOTTOM = 24
_FONT_SIZE = 11.5
_LABEL = {"ha": "center", "va": "bottom", "fontsize": _FONT_SIZE, "color": COLORS["muted"]}

TIMELINE_WIDTH = 100_000
"""Length of the time axis, on any screen: the resolution of zooming."""
TOTAL_BARS = 8_000
"""Bars of all lanes together."""
MAX_LANES = 64
_LANE_PITCH = (9, 24)
"""The smallest and the largest distance from a lane to the next, in pixels."""
_TIMELINE_HEIGHT = 256
"""Pixels of all lanes, unless that makes their distances too small or too large."""
_LANE_GAP = 2
"""Pixels between two lanes."""


class Picture(Figure):
    """A figure that notebooks show, also those that have not prepared pyplot."""

    def _repr_png_(self) -> bytes:
        stream = BytesIO()
        self.savefig(stream, format="png")
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
    """Return a figure with the curves of several runs.

    Those of several seeds are a median in a band.
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
    width, height = _PANEL_INCHES
    figure = Picture(figsize=(COLUMNS * width, rows * height), layout="constrained")
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
    elif panel.points:
        _scatter(ax, panel)
    else:
        _plot_lines(ax, panel)
    for x in panel.breaks:
        ax.axvline(x, color=COLORS["muted"], linestyle=(0, (3, 3)), linewidth=1)
    if not panel.points:
        ax.set_xlim(panel.span)
    if panel.logarithmic:
        ax.set_yscale("log")
    else:
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
        ax.set_ylim(bottom=0 if panel.from_zero else None)
    is_whole = against in ("round", "epoch") and not panel.points
    ax.xaxis.set_major_locator(MaxNLocator(7, steps=_STEPS, integer=is_whole, min_n_ticks=1))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: tick(value))
        axis.set_minor_formatter(NullFormatter())
    ax.tick_params(which="both", length=0, pad=6, colors=COLORS["muted"])
    ax.set_axisbelow(True)
    ax.grid(axis="y", color=COLORS["grid"])
    ax.spines[:].set_visible(False)


def _plot_lines(ax: Axes, panel: Panel) -> None:
    """Draw the curves of a panel as lines, some in a band."""
    for number, curve in enumerate(panel.curves):
        ax.plot(
            curve.xs,
            curve.ys,
            label=curve.name,
            linewidth=1.8,
            marker="." if sum(map(math.isfinite, curve.ys)) <= MAX_DOTS else None,
            color=COLORS[_color_of(panel, number)],
            clip_on=False,
        )
        if curve.band:
            lowest, highest = curve.band
            color = COLORS[_color_of(panel, number)]
            ax.fill_between(curve.xs, lowest, highest, color=color, alpha=0.18, linewidth=0)


def _scatter(ax: Axes, panel: Panel) -> None:
    """Draw the curves of a panel as points of a plane."""
    are_many = sum(len(curve.xs) for curve in panel.curves) > MANY_POINTS
    for number, curve in enumerate(panel.curves):
        ax.plot(
            curve.xs,
            curve.ys,
            ".",
            label=curve.name,
            color=COLORS[_color_of(panel, number)],
            alpha=0.7,
            markersize=4 if are_many else 8,
        )


def _stack(ax: Axes, panel: Panel) -> None:
    """Draw shares on top of each other; a single one as wide as a round."""
    xs = panel.curves[0].xs
    heights = [curve.ys for curve in panel.curves]
    if len(xs) == 1:
        xs = [xs[0] - 0.5, xs[0] + 0.5]
        heights = [shares * 2 for shares in heights]
    names = [curve.name for curve in panel.curves]
    ax.stackplot(xs, heights, labels=names, colors=[COLORS[name] for name in names])
    ax.set_ylim(0, 100)


def _color_of(panel: Panel, number: int) -> str:
    """Return the name of the color of a curve of a panel."""
    curve = panel.curves[number]
    if panel.stacked:
        return curve.name
    color = number if curve.color is None else curve.color
    return f"c{color % len(_CURVE_COLORS)}"


def chart_of(panel: Panel, against: Axis = "round") -> dict[str, Any]:
    """Return a panel as the templates of pages draw it.

    The values that the script shows under the pointer have 6 digits, and are ``None`` where JSON
    cannot represent them.
    """
    if not panel.points:
        panel = replace(panel, curves=[curve.downsampled() for curve in panel.curves])
    legend = [(curve.name, _color_of(panel, number)) for number, curve in enumerate(panel.curves)]
    curves = [] if panel.points else [_script_data(curve) for curve in panel.curves]
    axis = [*_rounded(panel.span), _LEFT / _WIDTH, 1 - _RIGHT / _WIDTH]
    return {
        "title": panel.title,
        "note": "logarithmic" if panel.logarithmic else None,
        "legend": legend if len(legend) > 1 else [],
        "picture": _svg(panel, against),
        "script_data": {"x": axis, "over": against, "curves": curves},
    }


def _script_data(curve: Curve) -> dict[str, Any]:
    values = {"name": curve.name, "x": _rounded(curve.xs), "y": _rounded(curve.ys)}
    if curve.band:
        lowest, highest = curve.band
        values |= {"low": _rounded(lowest), "high": _rounded(highest)}
    return values


def _svg(panel: Panel, against: Axis) -> str:
    """Return an SVG element without title and legend, with the names of colors in a page's style.

    The texts and their font are left to the page.
    """
    figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72))
    width = (_WIDTH - _LEFT - _RIGHT) / _WIDTH
    height = (_HEIGHT - _TOP - _BOTTOM) / _HEIGHT
    ax = figure.add_axes((_LEFT / _WIDTH, _BOTTOM / _HEIGHT, width, height))
    _draw_panel(ax, panel, against)
    ax.tick_params(labelsize=_FONT_SIZE)
    above = ax.get_xaxis_transform()
    for x in panel.breaks:
        ax.text(x, 1, "continued", _LABEL, transform=above)
    text = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}):
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=metadata)
    element = text.getvalue()
    element = element[element.index("<svg") :]
    element = re.sub(r' xmlns(:xlink)?="[^"]*"| font-family: [^;"]*;', "", element)
    element = re.sub(r'<g id="[^"]*"', "<g", element)  # the same in all charts of a page
    for name, color in COLORS.items():
        element = element.replace(color, f"var(--{name})")
    # Two decimals of positions, not of texts.
    return re.sub(r">[^<]+<|(\.\d\d)\d+", lambda match: match[1] or match[0], element)


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
        is_in_group = np.isin(workers, group)
        name = f"worker {group[0]}" if len(group) == 1 else f"workers {group[0]}-{group[-1]}"
        outlines = _outlines(
            times[is_in_group],
            kinds[is_in_group],
            edges,
            workers=len(group),
            base=index * pitch + pitch - _LANE_GAP,
            thickness=pitch - _LANE_GAP,
        )
        lanes.append({"name": name, "paths": outlines})
    marks = MaxNLocator(10, steps=_STEPS).tick_values(0, seconds)
    return {
        "width": TIMELINE_WIDTH,
        "pitch": pitch,
        "seconds": seconds,
        "lanes": lanes,
        "breaks": [
            (f"{position / seconds * TIMELINE_WIDTH:.0f}", timestamp(start))
            for position, start in starts[1:]
        ],
        "ticks": [
            (f"{100 * mark / seconds:.2f}", f"{tick(mark)} s")
            for mark in marks
            if 0 <= mark <= seconds
        ],
    }


def _joined(
    history: Sequence[Record], intervals: Sequence[timeline.Interval]
) -> tuple[NDArray[np.float64], list[tuple[float, float]]]:
    """Return the start and stop of each interval on the axis, and where on it each fit begins.

    The beginning of a fit has its time, too.
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
    """Return outlines of bars, each in front of the one before.

    They are those of all three kinds together, of two of them, and of training alone.
    """
    heights = np.zeros(len(edges) - 1)
    outlines: list[tuple[str, str]] = []
    for number, kind in enumerate(timeline.KINDS):
        starts = np.sort(times[kinds == number, 0])
        stops = np.sort(times[kinds == number, 1])
        spent = _until(edges, starts) - _until(edges, stops)
        heights = heights + np.diff(spent) / np.diff(edges) / workers
        pixels = [round(float(height), 1) for height in np.minimum(heights, 1) * thickness]
        path = f"M{edges[0]:.0f} {base}"
        index = 0
        for height, bars in groupby(pixels):
            index += len(list(bars))
            path += f"V{base - height:g}H{edges[index]:.0f}"
        outlines.append((kind, f"{path}V{base}z"))
    return outlines[::-1]


def _until(edges: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of the lengths to each edge from all of the sorted times before it."""
    number = np.searchsorted(times, edges)
    sums = np.concatenate([[0.0], np.cumsum(times)])
    lengths: NDArray[np.float64] = number * edges - sums[number]
    return lengths
