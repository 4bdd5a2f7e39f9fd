"""Panels of histories drawn with matplotlib, without a display and without the global state of pyplot.

In figures they are side by side; in pages each is an SVG element of its own.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from compss_train.reports.comparison import ComparedRun, comparison_panels, grouped
from compss_train.reports.curves import Axis, Panel, panels
from compss_train.reports.formatting import tick
from compss_train.reports.records import Record

COLUMNS = 2
MAX_DOTS = 40
"""Points that are marked by dots, so that single ones are seen, too; lines of more points have none."""
_STEPS = 1, 2, 5, 10
"""Distances of ticks, times powers of 10."""
_LEGEND_CHARACTERS = 120
"""Names of curves that fit next to each other above a figure."""
_PANEL_INCHES = 5.6, 3.0

_CURVES = "#2563a8", "#dc7a12", "#2b8a57", "#8a55b8", "#c23f3c", "#12869a", "#be4f8b", "#867618"
_KINDS = {"training": "#2f74b5", "merging": "#ef9a3c", "waiting": "#dfe3ea"}
_OTHERS = {"muted": "#667085", "grid": "#eceef2"}
COLORS = {f"c{number}": color for number, color in enumerate(_CURVES)} | _KINDS | _OTHERS
"""Colors by the names that they have in a page's style, which has others for dark screens."""

_WIDTH, _HEIGHT = 480, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 10, 16, 24
_FONT_SIZE = 11.5
_LABEL = {"ha": "center", "va": "bottom", "fontsize": _FONT_SIZE, "color": COLORS["muted"]}
"""The picture of a panel in a page, in points."""


def draw(history: Sequence[Record], against: Axis = "round") -> Figure:
    """Return the figure of a history; raise ``ValueError`` for an empty one."""
    if not history:
        raise ValueError("the history is empty, there is nothing to plot; call fit first")
    charts = panels(history, against)
    figure, axes = _grid(len(charts))
    for ax, panel in zip(axes, charts, strict=True):
        _draw_titled(ax, panel, against)
        if len(panel.curves) > 1:
            ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def draw_comparison(runs: Sequence[ComparedRun], against: Axis = "round") -> Figure:
    """Return a figure with the curves of several runs; those of several seeds are a median in a band."""
    groups = grouped(runs)
    charts = comparison_panels(groups, against)
    figure, axes = _grid(len(charts))
    for ax, panel in zip(axes, charts, strict=True):
        _draw_titled(ax, panel, against)
    lines = {line.get_label(): line for ax in axes for line in ax.lines}
    columns = max(1, _LEGEND_CHARACTERS // (6 + max(len(group.name) for group in groups)))
    named = [lines[group.name] for group in groups if group.name in lines]
    figure.legend(handles=named, loc="outside upper left", ncols=columns, fontsize="small", frameon=False)
    return figure


def draw_rates(rates: Sequence[float], losses: Sequence[float], smoothed: Sequence[float], chosen: float) -> Figure:
    """Return a figure with the losses of a learning-rate finder, their moving average, and the rate it suggests."""
    figure, (ax, *_) = _grid(1)
    ax.plot(rates, losses, linewidth=1, alpha=0.4, label="batches")
    ax.plot(rates, smoothed, linewidth=1.5, label="moving average")
    ax.axvline(chosen, color=COLORS["muted"], linestyle="--", linewidth=1, label=f"suggested: {chosen:.2g}")
    ax.set_xscale("log")
    ax.set(title="loss", xlabel="learning rate")
    ax.legend(fontsize="small")
    return figure


def _grid(number: int) -> tuple[Figure, list[Axes]]:
    rows = -(-number // COLUMNS)
    figure = Figure(figsize=(COLUMNS * _PANEL_INCHES[0], rows * _PANEL_INCHES[1]), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(rows, COLUMNS, index + 1) for index in range(number)]


def _draw_titled(ax: Axes, panel: Panel, against: Axis) -> None:
    _draw_panel(ax, panel, against)
    ax.set_title(panel.title, fontsize="medium")
    ax.set_xlabel(against)


def _draw_panel(ax: Axes, panel: Panel, against: Axis) -> None:
    """Draw the curves of a panel, without its title and the names of its curves."""
    if panel.stacked:
        _stack(ax, panel)
    for number, curve in enumerate(() if panel.stacked else panel.curves):
        drawn = curve.drawable()
        color = COLORS[_color_of(panel, number)]
        marker = "." if sum(map(math.isfinite, drawn.ys)) <= MAX_DOTS else None
        ax.plot(drawn.xs, drawn.ys, label=curve.name, linewidth=1.8, marker=marker, color=color, clip_on=False)
        if drawn.band is not None:
            ax.fill_between(drawn.xs, *drawn.band, color=color, alpha=0.18, linewidth=0)
    for at in panel.breaks:
        ax.axvline(at, color=COLORS["muted"], linestyle=(0, (3, 3)), linewidth=1)
    ax.set_xlim(panel.span)
    if panel.spans_decades:
        ax.set_yscale("log")
    else:
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
        ax.set_ylim(bottom=0 if panel.from_zero else None)
    ax.xaxis.set_major_locator(MaxNLocator(7, steps=_STEPS, integer=against in ("round", "epoch"), min_n_ticks=1))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: tick(value))
        axis.set_minor_formatter(NullFormatter())
    ax.tick_params(which="both", length=0, pad=6, colors=COLORS["muted"])
    ax.set_axisbelow(True)
    ax.grid(axis="y", color=COLORS["grid"])
    ax.spines[:].set_visible(False)


def _stack(ax: Axes, panel: Panel) -> None:
    """Draw shares on top of each other; a single one as wide as a round."""
    xs, heights = panel.curves[0].xs, [curve.ys for curve in panel.curves]
    if len(xs) == 1:
        xs, heights = [xs[0] - 0.5, xs[0] + 0.5], [each * 2 for each in heights]
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
    """Return a panel as the templates of pages draw it, with the values that the script shows under the pointer.

    The values have 6 digits, and are ``None`` where JSON cannot represent them.
    """
    panel = replace(panel, curves=[curve.downsampled() for curve in panel.curves])
    legend = [(curve.name, _color_of(panel, number)) for number, curve in enumerate(panel.curves)]
    curves = [
        {"name": curve.name, "x": _rounded(curve.xs), "y": _rounded(curve.ys)}
        | dict(zip(("low", "high"), map(_rounded, curve.band or ()), strict=False))
        for curve in panel.curves
    ]
    axis = [*_rounded(panel.span), _LEFT / _WIDTH, 1 - _RIGHT / _WIDTH]
    return {
        "title": panel.title,
        "note": "logarithmic" if panel.spans_decades else None,
        "legend": legend if len(legend) > 1 else [],
        "picture": _svg(panel, against),
        "script_data": {"x": axis, "over": against, "curves": curves},
    }


def _svg(panel: Panel, against: Axis) -> str:
    """Return an SVG element without title and legend, whose colors have the names of the page's style."""
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
        figure.savefig(
            text, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    drawn = text.getvalue()
    drawn = re.sub(r' xmlns(:xlink)?="[^"]*"| font-family: [^;"]*;', "", drawn[drawn.index("<svg") :])
    drawn = re.sub(r'<g id="[^"]*"', "<g", drawn)  # the same in all charts of a page
    for name, color in COLORS.items():
        drawn = drawn.replace(color, f"var(--{name})")
    return re.sub(r"(\.\d\d)\d+", r"\1", drawn)


def _rounded(values: Iterable[float]) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
