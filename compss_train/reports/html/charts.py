"""The charts of a page: panels as SVG of matplotlib, with their legends and the values that the script shows."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from compss_train.reports.curves import Axis, Curve, Panel
from compss_train.reports.plots import COLORS, color_of, draw_panel

_WIDTH, _HEIGHT = 480, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 10, 16, 24
_FONT_SIZE = 11.5
_LABEL = {"ha": "center", "va": "bottom", "fontsize": _FONT_SIZE, "color": COLORS["muted"]}


@dataclass(frozen=True)
class Chart:
    """A panel as the template draws it."""

    title: str
    note: str | None
    legend: list[tuple[str, str]]
    """Pairs of a name and the CSS class of its color; empty for a single curve."""
    picture: str
    script_data: dict[str, Any]
    """The values that the script shows under the pointer."""


def chart_of(panel: Panel, against: Axis = "round") -> Chart:
    """Return the chart of a panel."""
    panel = replace(panel, curves=[curve.downsampled() for curve in panel.curves])
    legend = [(curve.name, color_of(panel, number)) for number, curve in enumerate(panel.curves)]
    data = {
        "x": [*_rounded(panel.span), _LEFT / _WIDTH, 1 - _RIGHT / _WIDTH],
        "over": against,
        "curves": [_curve_data(curve) for curve in panel.curves],
    }
    note = "logarithmic" if panel.spans_decades else None
    return Chart(panel.title, note, legend if len(legend) > 1 else [], _svg(panel, against), data)


def _svg(panel: Panel, against: Axis) -> str:
    """Return an SVG element without title and legend, whose colors have the names of the page's style."""
    figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72))
    size = (_WIDTH - _LEFT - _RIGHT) / _WIDTH, (_HEIGHT - _TOP - _BOTTOM) / _HEIGHT
    ax = figure.add_axes((_LEFT / _WIDTH, _BOTTOM / _HEIGHT, *size))
    draw_panel(ax, panel, against)
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


def _curve_data(curve: Curve) -> dict[str, Any]:
    """Return the points of a curve with 6 digits, and ``None`` for values that JSON cannot represent."""
    data = {"name": curve.name, "x": _rounded(curve.xs), "y": _rounded(curve.ys)}
    return data if curve.band is None else {**data, "low": _rounded(curve.band[0]), "high": _rounded(curve.band[1])}


def _rounded(values: Iterable[float]) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
