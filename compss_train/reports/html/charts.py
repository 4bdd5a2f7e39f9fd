"""Line charts as SVG, in cards with their legends and the values for the script."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, groupby

from compss_train.reports.curves import Curve, Panel
from compss_train.reports.html.formatting import number, tick
from compss_train.reports.html.markup import Markup, data, tag
from compss_train.reports.html.scales import LARGEST, Scale, exact, fitting
from compss_train.reports.html.thinning import EDGES, condensed, thinned

WIDTH, HEIGHT = 480, 220
LEFT, RIGHT, TOP, BOTTOM = 50, 10, 8, 24
COLORS = 8
MARKED = 40
"""The most points that are marked by dots."""
BARS = 300
"""The most steps of a chart of shares."""


def chart(panel: Panel, breaks: Sequence[float] = ()) -> Markup:
    """Return a card with a panel's curves; ``breaks`` are the places where another fit begins."""
    panel = condensed(panel)
    curves = [thinned(curve) for curve in panel.curves]
    x, y = _scales(panel, curves)
    colors = _colors(curves)
    lines = [_line(curve, color, x, y) for curve, color in zip(curves, colors, strict=True)]
    names = legend((curve.name, color) for curve, color in zip(curves, colors, strict=True) if len(curves) > 1)
    note = "logarithmic" if y.logarithmic else None
    return _card(panel.title, names, _picture(x, y, [*_breaks(breaks, x), *lines]), _told(x, curves), note=note)


def shares_chart(title: str, xs: Sequence[float], spent: Sequence[Mapping[str, float]]) -> Markup:
    """Return a card with the shares of what ``spent`` has for each of ``xs``, as stacked steps."""
    size = -(-len(xs) // BARS)
    sums = [_sum(spent[first : first + size]) for first in range(0, len(xs), size)]
    x, y = Scale(xs[0], xs[-1] + 1, LEFT, WIDTH - RIGHT), Scale(0, 100, HEIGHT - BOTTOM, TOP)
    edges = [*xs[::size], xs[-1] + 1]
    stacks = {kind: [_share(each, list(each)[: place + 1]) for each in sums] for place, kind in enumerate(spent[0])}
    areas = [_area(kind, edges, stack, x, y) for kind, stack in reversed(stacks.items())]
    curves = [Curve(f"{kind} (%)", edges[:-1], [_share(each, [kind]) for each in sums]) for kind in stacks]
    return _card(title, legend(zip(stacks, stacks, strict=True)), _picture(x, y, areas), _told(x, curves))


def legend(names: Iterable[tuple[str, str]]) -> Markup:
    """Return names with their colours' classes."""
    return tag("div", *(tag("span", tag("i", class_=color), name) for name, color in names), class_="legend")


def _card(title: str, *content: object, note: str | None = None) -> Markup:
    heading = tag("h3", title, None if note is None else tag("small", note))
    return tag("figure", heading, *content, class_="card chart")


def _picture(x: Scale, y: Scale, content: Sequence[Markup]) -> Markup:
    return tag("svg", *_axes(x, y), *content, viewBox=f"0 0 {WIDTH} {HEIGHT}")


def _axes(x: Scale, y: Scale) -> Iterator[Markup]:
    for value in y.ticks(5):
        at = _n(y(value))
        yield tag("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at)
        yield tag("text", tick(value), x=LEFT - 6, y=at, dy="0.32em", text_anchor="end")
    for value in (value for value in x.ticks(7) if value.is_integer()):
        yield tag("text", tick(value), x=_n(x(value)), y=HEIGHT - 6, text_anchor="middle")


def _breaks(places: Iterable[float], x: Scale) -> Iterator[Markup]:
    for place in places:
        yield tag(
            "path", tag("title", "the next fit"), d=f"M{_n(x(place))} {TOP}V{HEIGHT - BOTTOM}", class_="break"
        )


def _scales(panel: Panel, curves: Sequence[Curve]) -> tuple[Scale, Scale]:
    xs = [x for curve in curves for x in curve.xs] or [0.0]
    ys = (y for curve in curves for y in curve.ys)
    x = exact(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    return x, fitting(ys, HEIGHT - BOTTOM, TOP, logarithmic=panel.spans_decades, from_zero=panel.from_zero)


def _told(x: Scale, curves: Sequence[Curve]) -> Markup:
    """Return what the script tells of the place under the pointer."""
    told = [{"name": curve.name, "x": curve.xs, "y": curve.ys} for curve in curves]
    return data({"x": [x.low, x.high, x.start / WIDTH, x.stop / WIDTH], "over": "round", "curves": told})


def _line(curve: Curve, color: str, x: Scale, y: Scale) -> Markup:
    """Return a curve; a NaN interrupts it."""
    points = list(zip(curve.xs, curve.ys, strict=True))
    runs = (list(run) for is_drawn, run in groupby(points, key=lambda point: abs(point[1]) < LARGEST) if is_drawn)
    pixels = [[f"{_n(x(at))} {_n(y(value))}" for at, value in run] for run in runs]
    few = sum(map(len, pixels)) <= MARKED
    dots = "".join(f"M{point}h0" for run in pixels for point in run if few or len(run) == 1)
    path = "".join("M" + "L".join(run) for run in pixels)
    last = next((value for _, value in reversed(points) if not math.isnan(value)), math.nan)
    told = tag("title", f"{curve.name}, at last {number(last)}")
    return tag("g", told, tag("path", d=path), tag("path", d=dots, class_="dots"), class_=f"curve {color}")


def _colors(curves: Iterable[Curve]) -> list[str]:
    """Return the class of each curve: its colour, or that of the median whose edge it is."""
    colors: list[str] = []
    places = count()
    for curve in curves:
        is_edge = curve.name.endswith(EDGES)
        colors.append(f"{colors[-1].removesuffix(' edge')} edge" if is_edge else f"c{next(places) % COLORS}")
    return colors


def _sum(spent: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for each in spent:
        sums.update(each)
    return dict(sums)


def _share(each: Mapping[str, float], kinds: Iterable[str]) -> float:
    return 100 * sum(each[kind] for kind in kinds) / (sum(each.values()) or 1.0)


def _area(kind: str, edges: Sequence[float], heights: Sequence[float], x: Scale, y: Scale) -> Markup:
    steps = (f"V{_n(y(height))}H{_n(x(edge))}" for edge, height in zip(edges[1:], heights, strict=True))
    path = f"M{_n(x(edges[0]))} {_n(y(0))}{''.join(steps)}V{_n(y(0))}z"
    return tag("path", d=path, class_=f"{kind} area")


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
