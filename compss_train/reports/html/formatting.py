"""Numbers, times and durations as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

DIGITS = 4
"""Significant ones, of numbers that are not whole."""
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: object) -> str:
    """Return a number with 4 significant digits, a whole one in full; other values as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return str(value).replace("nan", "NaN")
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    if 1e-4 <= abs(value) < 1e15:
        text = f"{value:,.{_decimals(value)}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.{DIGITS - 1}e}"


def like(values: Sequence[float]) -> Callable[[float], str]:
    """Return what makes texts of such values: with as many decimals each, where they are about as large.

    The largest has 4 significant digits or more, the smallest 3.
    """
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    if not sizes or max(sizes) > 1e3 * min(sizes) or not 1e-4 <= min(sizes) <= max(sizes) < 1e15:
        return number
    whole = all(size == int(size) for size in sizes)
    decimals = 0 if whole else max(_decimals(max(sizes)), _decimals(min(sizes)) - 1)
    return lambda value: f"{value:,.{decimals}f}" if math.isfinite(value) else number(value)


def _decimals(value: float) -> int:
    return max(0, DIGITS - 1 - math.floor(math.log10(abs(value))))


def tick(value: float) -> str:
    """Return the label of a tick: short, such as ``20k`` or ``1e-05``."""
    for size, letter in _LARGE:
        if abs(value) >= size * (10 if letter == "k" else 1):
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def speed(value: float) -> str:
    """Return samples a second, millions with two decimals."""
    return f"{value / 1e6:,.2f}M" if value >= 1e6 else f"{value:,.0f}" if value >= 100 else number(value)


def percent(share: float) -> str:
    """Return a share of 1 as a whole percentage, small ones with a digit more."""
    return f"{100 * share:.0f}%" if share >= 0.095 or share == 0 else f"{100 * share:.1f}%"


def duration(seconds: float) -> str:
    """Return a duration in the units that suit it."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def moment(unix: float) -> str:
    """Return a date and time, in UTC."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
