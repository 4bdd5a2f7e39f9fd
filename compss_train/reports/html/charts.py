"""Line charts and charts of shares: the SVG paths, ticks and legends that the template draws."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from compss_train.reports.curves import Axis, Curve, Panel
from compss_train.reports.formatting import number, tick
from compss_train.reports.html.downsampling import downsample
from compss_train.reports.html.scales import Scale, exact_scale, padded_scale

WIDTH, HEIGHT = 480, 220
LEFT, RIGHT, TOP, BOTTOM = 50, 10, 8, 24
COLORS = 8
MAX_DOTS = 40
"""Points that are marked by dots; lines of more points have none."""
MAX_STEPS = 300
"""Steps of a chart of shares."""

Tick: TypeAlias = tuple[str, str]
"""The pixel and the label of a tick."""


@dataclass(frozen=True)
class Line:
    """A curve of a chart."""

    css_class: str
    title: str
    path: str
    dots: str
    band: str = ""
    """The outline of the values that the curve summarizes."""


@dataclass(frozen=True)
class SvgPath:
    """A path of an SVG image."""

    css_class: str
    data: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart as the template draws it; all positions are pixels as strings."""

    title: str
    note: str | None = None
    legend: list[tuple[str, str]]
    """Pairs of a name and the CSS class of its color."""
    y_ticks: list[Tick]
    x_ticks: list[Tick]
    breaks: Sequence[str] = ()
    """The x positions at which another fit begins, such as a resumed one."""
    lines: Sequence[Line] = ()
    areas: Sequence[SvgPath] = ()
    script_data: dict[str, Any]
    """The values that the script shows under the pointer."""


def line_chart(panel: Panel, breaks: Sequence[float] = (), against: Axis = "round") -> Chart:
    """Return a chart with the curves of ``panel``; ``breaks`` are the x values at which another fit begins."""
    curves = [downsample(curve) for curve in panel.curves]
    x, y = _scales(panel, curves)
    colors = [f"c{number % COLORS}" for number in range(len(curves))]
    return Chart(
        title=panel.title,
        note="logarithmic" if y.logarithmic else None,
        legend=[(curve.name, color) for curve, color in zip(curves, colors, strict=True)]
        if len(curves) > 1
        else [],
        y_ticks=_y_ticks(y),
        x_ticks=_x_ticks(x, whole=against in ("round", "epoch")),
        breaks=[_pixel(x(value)) for value in breaks],
        lines=[_line(curve, color, x, y) for curve, color in zip(curves, colors, strict=True)],
        script_data=_script_data(x, curves, against),
    )


def shares_chart(title: str, xs: Sequence[float], seconds: Sequence[Mapping[str, float]]) -> Chart:
    """Return a chart of stacked steps with the share of each kind in ``seconds``, which has a dict for each x."""
    size = -(-len(xs) // MAX_STEPS)
    sums = [_sum(seconds[first : first + size]) for first in range(0, len(xs), size)]
    x = Scale(low=xs[0], high=xs[-1] + 1, start=LEFT, stop=WIDTH - RIGHT)
    y = Scale(low=0, high=100, start=HEIGHT - BOTTOM, stop=TOP)
    edges = [*xs[::size], xs[-1] + 1]
    kinds = list(seconds[0])
    stacks = {kind: [_percentage(each, kinds[: index + 1]) for each in sums] for index, kind in enumerate(kinds)}
    curves = [Curve(f"{kind} (%)", edges[:-1], [_percentage(each, [kind]) for each in sums]) for kind in kinds]
    return Chart(
        title=title,
        legend=[(kind, kind) for kind in kinds],
        y_ticks=_y_ticks(y),
        x_ticks=_x_ticks(x),
        areas=[SvgPath(f"{kind} area", _steps(edges, stack, x, y)) for kind, stack in reversed(stacks.items())],
        script_data=_script_data(x, curves),
    )


def _y_ticks(scale: Scale) -> list[Tick]:
    return [(_pixel(scale(value)), tick(value)) for value in scale.ticks(5)]


def _x_ticks(scale: Scale, *, whole: bool = True) -> list[Tick]:
    ticks = [value for value in scale.ticks(7) if value.is_integer() or not whole]
    return [(_pixel(scale(value)), tick(value)) for value in ticks]


def _scales(panel: Panel, curves: Sequence[Curve]) -> tuple[Scale, Scale]:
    xs = [x for curve in curves for x in curve.xs] or [0.0]
    ys = (y for curve in curves for y in curve.drawn)
    x = exact_scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    return x, padded_scale(ys, HEIGHT - BOTTOM, TOP, logarithmic=panel.spans_decades, from_zero=panel.from_zero)


def _script_data(x: Scale, curves: Sequence[Curve], over: Axis = "round") -> dict[str, Any]:
    """Return the curves and the range of the x axis, with 6 digits and ``None`` for NaN, as JSON has none."""
    return {
        "x": _rounded([x.low, x.high, x.start / WIDTH, x.stop / WIDTH]),
        "over": over,
        "curves": [_curve_data(curve) for curve in curves],
    }


def _curve_data(curve: Curve) -> dict[str, Any]:
    data = {"name": curve.name, "x": _rounded(curve.xs), "y": _rounded(curve.ys)}
    return data if curve.band is None else {**data, "low": _rounded(curve.band[0]), "high": _rounded(curve.band[1])}


def _rounded(values: Iterable[float]) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def _line(curve: Curve, color: str, x: Scale, y: Scale) -> Line:
    """Return the paths of a curve, which values that cannot be drawn interrupt."""
    drawn = curve.drawable()
    pixels = _segments(drawn.xs, drawn.ys, x, y)
    few = sum(map(len, pixels)) <= MAX_DOTS
    last = next((value for value in reversed(curve.ys) if not math.isnan(value)), math.nan)
    edges = [] if drawn.band is None else [_segments(drawn.xs, ys, x, y) for ys in drawn.band]
    return Line(
        css_class=f"curve {color}",
        title=f"{curve.name}, at last {number(last)}",
        path="".join("M" + "L".join(segment) for segment in pixels),
        dots="".join(f"M{point}h0" for segment in pixels for point in segment if few or len(segment) == 1),
        band="".join(f"M{'L'.join([*low, *reversed(high)])}z" for low, high in zip(*edges, strict=True)),
    )


def _segments(xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale) -> list[list[str]]:
    """Return the pixels of each run of points between NaN."""
    runs = groupby(zip(xs, ys, strict=True), key=lambda point: math.isnan(point[1]))
    return [[f"{_pixel(x(at))} {_pixel(y(value))}" for at, value in run] for missing, run in runs if not missing]


def _sum(seconds: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for each in seconds:
        sums.update(each)
    return dict(sums)


def _percentage(seconds: Mapping[str, float], kinds: Iterable[str]) -> float:
    return 100 * sum(seconds[kind] for kind in kinds) / (sum(seconds.values()) or 1.0)


def _steps(edges: Sequence[float], heights: Sequence[float], x: Scale, y: Scale) -> str:
    steps: Iterator[str] = (
        f"V{_pixel(y(height))}H{_pixel(x(edge))}" for edge, height in zip(edges[1:], heights, strict=True)
    )
    return f"M{_pixel(x(edges[0]))} {_pixel(y(0))}{''.join(steps)}V{_pixel(y(0))}z"


def _pixel(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
