"""Plots of a history with matplotlib, without a display and without the global state of pyplot."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compss_train.reports.comparison import ComparedRun, comparison_panels, grouped
from compss_train.reports.curves import Axis, Panel, panels, positions
from compss_train.reports.records import Record
from compss_train.reports.timeline import KINDS, round_totals, worker_intervals

COLUMNS = 2
MAX_LEGEND_CURVES = 10
"""Curves of a panel beyond which it has no legend."""
MAX_DOTS = 40
"""Points that are marked by dots, so that single ones are seen, too; lines of more points have none."""
_LEGEND_CHARACTERS = 120
"""Names of curves that fit next to each other above a figure."""
KIND_COLORS = {"training": "#2f7ebc", "merging": "#e8862d", "waiting": "#c9ced6"}
_PANEL_INCHES = 5.6, 3.0


def draw(history: Sequence[Record], against: Axis = "round") -> Figure:
    """Return the figure; raise ``ValueError`` for an empty history."""
    if not history:
        raise ValueError("the history is empty, there is nothing to plot; call fit first")
    charts = panels(history, against)
    seconds = round_totals(worker_intervals(history))
    figure, axes = _grid(len(charts) + bool(seconds))
    for ax, panel in zip(axes, charts, strict=False):
        _draw_panel(ax, panel, against)
        if 1 < len(panel.curves) <= MAX_LEGEND_CURVES:
            _add_legend(ax)
    if seconds:
        rows = [seconds.get(index, {}) for index in range(len(history))]
        _draw_times(axes[-1], positions(history, against), rows)
        _name_axis(axes[-1], against)
    return figure


def draw_comparison(runs: Sequence[ComparedRun], against: Axis = "round") -> Figure:
    """Return a figure with the curves of several runs; those of several seeds are a median in a band."""
    groups = grouped(runs)
    charts = comparison_panels(groups, against)
    figure, axes = _grid(len(charts))
    colors = {group.name: f"C{number % 10}" for number, group in enumerate(groups)}
    for ax, panel in zip(axes, charts, strict=True):
        _draw_panel(ax, panel, against, colors)
    lines = {line.get_label(): line for ax in axes for line in ax.lines}
    columns = max(1, _LEGEND_CHARACTERS // (6 + max(map(len, colors))))
    named = [lines[name] for name in colors if name in lines]
    figure.legend(handles=named, loc="outside upper left", ncols=columns, fontsize="small", frameon=False)
    return figure


def draw_rates(rates: Sequence[float], losses: Sequence[float], smoothed: Sequence[float], chosen: float) -> Figure:
    """Return a figure with the losses of a learning-rate finder, their moving average, and the rate it suggests."""
    figure, (ax, *_) = _grid(1)
    ax.plot(rates, losses, linewidth=1, alpha=0.4, label="batches")
    ax.plot(rates, smoothed, linewidth=1.5, label="moving average")
    ax.axvline(chosen, color="#667085", linestyle="--", linewidth=1, label=f"suggested: {chosen:.2g}")
    ax.set_xscale("log")
    ax.set_xlabel("learning rate")
    ax.legend(fontsize="small")
    _style(ax, "loss")
    return figure


def _grid(number: int) -> tuple[Figure, list[Axes]]:
    rows = -(-number // COLUMNS)
    figure = Figure(figsize=(COLUMNS * _PANEL_INCHES[0], rows * _PANEL_INCHES[1]), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(rows, COLUMNS, index + 1) for index in range(number)]


def _draw_panel(ax: Axes, panel: Panel, against: Axis, colors: Mapping[str, str] | None = None) -> None:
    for curve in (each.drawable() for each in panel.curves):
        points = sum(map(math.isfinite, curve.ys))
        color = None if colors is None else colors[curve.name]
        marker = "." if points <= MAX_DOTS else None
        (line,) = ax.plot(curve.xs, curve.ys, label=curve.name, linewidth=1.5, marker=marker, color=color)
        if curve.band is not None:
            ax.fill_between(curve.xs, *curve.band, color=line.get_color(), alpha=0.2, linewidth=0)
    if panel.spans_decades:
        ax.set_yscale("log")
    elif panel.from_zero:
        ax.set_ylim(bottom=0)
    _name_axis(ax, against)
    _style(ax, panel.title)


def _add_legend(ax: Axes) -> None:
    """Add a legend beside the curves, which it would hide."""
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _name_axis(ax: Axes, against: Axis) -> None:
    ax.set_xlabel(against)
    if against in ("round", "epoch"):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _draw_times(ax: Axes, xs: list[float], seconds: list[dict[str, float]]) -> None:
    heights = [[each.get(kind, 0.0) for each in seconds] for kind in KINDS]
    if len(xs) == 1:
        xs, heights = [xs[0] - 0.5, xs[0] + 0.5], [each * 2 for each in heights]
    ax.stackplot(xs, heights, labels=KINDS, colors=[KIND_COLORS[kind] for kind in KINDS])
    _add_legend(ax)
    _style(ax, "seconds of all workers")


def _style(ax: Axes, title: str) -> None:
    ax.set_title(title, fontsize="medium")
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
