"""Line charts and charts of shares: the SVG paths, ticks and legends that the template draws."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any, TypeAlias

from compss_train.reports.curves import EDGES, Axis, Curve, Panel
from compss_train.reports.formatting import number, tick
from compss_train.reports.html.downsampling import downsample, limit_curves
from compss_train.reports.html.scales import LARGEST, Scale, exact_scale, padded_scale

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
    """The x positions at which another fit begins."""
    lines: Sequence[Line] = ()
    areas: Sequence[SvgPath] = ()
    script_data: dict[str, Any]
    """The values that the script shows under the pointer."""


def line_chart(panel: Panel, breaks: Sequence[float] = (), against: Axis = "round") -> Chart:
    """Return a chart with the curves of ``panel``; ``breaks`` are the x values at which another fit begins."""
    panel = limit_curves(panel)
    curves = [downsample(curve) for curve in panel.curves]
    x, y = _scales(panel, curves)
    colors = _color_classes(curves)
    return Chart(
        title=panel.title,
        note="logarithmic" if y.logarithmic else None,
        legend=[(curve.name, color) for curve, color in zip(curves, colors, strict=True)]
        if len(curves) > 1
        else [],
        y_ticks=_y_ticks(y),
        x_ticks=_x_ticks(x),
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


def _x_ticks(scale: Scale) -> list[Tick]:
    return [(_pixel(scale(value)), tick(value)) for value in scale.ticks(7) if value.is_integer()]


def _scales(panel: Panel, curves: Sequence[Curve]) -> tuple[Scale, Scale]:
    xs = [x for curve in curves for x in curve.xs] or [0.0]
    ys = (y for curve in curves for y in curve.ys)
    x = exact_scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    return x, padded_scale(ys, HEIGHT - BOTTOM, TOP, logarithmic=panel.spans_decades, from_zero=panel.from_zero)


def _script_data(x: Scale, curves: Sequence[Curve], over: Axis = "round") -> dict[str, Any]:
    """Return the curves and the range of the x axis, with 6 digits and ``None`` for NaN, as JSON has none."""
    return {
        "x": _rounded([x.low, x.high, x.start / WIDTH, x.stop / WIDTH]),
        "over": over,
        "curves": [{"name": curve.name, "x": _rounded(curve.xs), "y": _rounded(curve.ys)} for curve in curves],
    }


def _rounded(values: Iterable[float]) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def _line(curve: Curve, color: str, x: Scale, y: Scale) -> Line:
    """Return the paths of a curve, which NaN interrupts."""
    points = list(zip(curve.xs, curve.ys, strict=True))
    segments = [list(run) for drawn, run in groupby(points, key=lambda point: abs(point[1]) < LARGEST) if drawn]
    pixels = [[f"{_pixel(x(at))} {_pixel(y(value))}" for at, value in segment] for segment in segments]
    few = sum(map(len, pixels)) <= MAX_DOTS
    last = next((value for _, value in reversed(points) if not math.isnan(value)), math.nan)
    return Line(
        css_class=f"curve {color}",
        title=f"{curve.name}, at last {number(last)}",
        path="".join("M" + "L".join(segment) for segment in pixels),
        dots="".join(f"M{point}h0" for segment in pixels for point in segment if few or len(segment) == 1),
    )


def _color_classes(curves: Iterable[Curve]) -> list[str]:
    """Return the CSS class of each curve: its color, or the color of its median for an edge."""
    colors: list[str] = []
    numbers = count()
    for curve in curves:
        is_edge = curve.name.endswith(EDGES)
        colors.append(f"{colors[-1].removesuffix(' edge')} edge" if is_edge else f"c{next(numbers) % COLORS}")
    return colors


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
