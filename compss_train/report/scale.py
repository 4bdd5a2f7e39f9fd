"""Scales: where a value lies along an axis, and where the axis has its ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

LARGEST, SMALLEST = 1e300, 1e-250
"""Beyond the one nothing is drawn, below the other all is 0: arithmetic would overflow."""


@dataclass(frozen=True)
class Scale:
    """From ``low`` at pixel ``start`` to ``high`` at pixel ``stop``, linear or logarithmic."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, value = (math.log(each) if self.logarithmic else each for each in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.stop - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values within the scale, about as many."""
        return _decades(self.low, self.high, most) if self.logarithmic else _steps(self.low, self.high, most)


def fitting(
    values: Iterable[float], start: float, stop: float, *, logarithmic: bool = False, from_zero: bool = False
) -> Scale:
    """Return a scale that holds all finite values, with a little room around them."""
    drawn = [value if abs(value) > SMALLEST else 0.0 for value in values if abs(value) < LARGEST]
    low, high = min(drawn, default=1.0), max(drawn, default=1.0)
    if logarithmic and low > 0:
        return Scale(low / 1.15, high * 1.15, start, stop, True)
    spread = high - low
    room = 0.05 * (spread if spread > 1e-12 * max(abs(low), abs(high)) else abs(high) or 1.0)
    return Scale(0.0 if from_zero and low >= 0 else low - room, high + room, start, stop)


def exact(low: float, high: float, start: float, stop: float) -> Scale:
    """Return a linear scale without room around it; a single value is in its middle."""
    return Scale(low, high, start, stop) if high > low else Scale(low - 0.5, low + 0.5, start, stop)


def _steps(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def _decades(low: float, high: float, most: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for sizes in ((1, 2, 5), (1, 3), (1,)):
        within = [value for power in powers for size in sizes if low <= (value := float(f"{size}e{power}")) <= high]
        if len(within) <= most + 2:
            return within
    return within[:: -(-len(within) // most)]
