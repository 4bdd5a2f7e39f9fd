"""Scales: where a value lies along an axis, and where the axis has its ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from compss_train.reports.timeline import Interval, Record

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


UNITS = 100_000
"""From one end of the axis to the other, whatever the screen's width: what zooming in can show."""


class TimeAxis:
    """Places intervals along an axis from 0 to ``UNITS``."""

    def __init__(self, history: Sequence[Record], found: Sequence[Interval]) -> None:
        self._fits = [record.get("fit_started") for record in history]
        spans: dict[object, tuple[float, float]] = {}
        for interval in found:
            start, stop = spans.get(self._fits[interval.position], (interval.start, interval.stop))
            spans[self._fits[interval.position]] = min(start, interval.start), max(stop, interval.stop)
        self._spans = dict(sorted(spans.items(), key=lambda item: item[1]))
        lengths = [stop - start for start, stop in self._spans.values()]
        self._before = dict(zip(self._spans, accumulate(lengths, initial=0.0), strict=False))
        self.seconds = sum(lengths) or 1e-3
        """Of all fits together."""

    def place(self, interval: Interval) -> tuple[float, float]:
        """Return where an interval starts and stops."""
        fit = self._fits[interval.position]
        shift = self._before[fit] - self._spans[fit][0]
        return self._units(interval.start + shift), self._units(interval.stop + shift)

    def pauses(self) -> Iterator[tuple[float, float]]:
        """Iterate over the ends of all fits but the last: where each is, and the unix seconds of what follows."""
        for fit in list(self._spans)[1:]:
            yield self._units(self._before[fit]), self._spans[fit][0]

    def _units(self, seconds: float) -> float:
        return seconds / self.seconds * UNITS
