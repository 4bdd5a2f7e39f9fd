"""Scales of axes: positions of values and of ticks."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from compss_train.reports.curves import LARGEST
from compss_train.reports.records import Record
from compss_train.reports.timeline import Interval

SMALLEST = 1e-250
"""Smaller magnitudes are drawn as 0, as arithmetic loses them."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A linear or logarithmic scale from ``low`` at pixel ``start`` to ``high`` at pixel ``stop``."""

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
        """Return about ``most`` round values within the scale."""
        return _decades(self.low, self.high, most) if self.logarithmic else _steps(self.low, self.high, most)


def padded_scale(
    values: Iterable[float], start: float, stop: float, *, logarithmic: bool = False, from_zero: bool = False
) -> Scale:
    """Return a scale that contains all finite values, with a margin around them."""
    drawn = [value if abs(value) > SMALLEST else 0.0 for value in values if abs(value) < LARGEST]
    low, high = min(drawn, default=1.0), max(drawn, default=1.0)
    if logarithmic and low > 0:
        return Scale(low=low / 1.15, high=high * 1.15, start=start, stop=stop, logarithmic=True)
    spread = high - low
    margin = 0.05 * (spread if spread > 1e-12 * max(abs(low), abs(high)) else abs(high) or 1.0)
    bottom = 0.0 if from_zero and low >= 0 else low - margin
    return Scale(low=bottom, high=high + margin, start=start, stop=stop)


def exact_scale(low: float, high: float, start: float, stop: float) -> Scale:
    """Return a linear scale without margins; a single value is in its middle."""
    low, high = (low, high) if high > low else (low - 0.5, low + 0.5)
    return Scale(low=low, high=high, start=start, stop=stop)


def _steps(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def _decades(low: float, high: float, most: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for sizes in ((1, 2, 5), (1, 3), (1,)):
        within = [value for power in powers for size in sizes if low <= (value := float(f"{size}e{power}")) <= high]
        if len(within) <= most + 2:
            return within
    return within[:: -(-len(within) // most)]


AXIS_UNITS = 100_000
"""Length of the time axis, on any screen: the resolution of zooming."""


class TimeAxis:
    """An axis from 0 to ``AXIS_UNITS`` with the fits one after another, without the time between them."""

    def __init__(self, history: Sequence[Record], intervals: Sequence[Interval]) -> None:
        self._fits = [record.get("fit_started") for record in history]
        spans: dict[object, tuple[float, float]] = {}
        for interval in intervals:
            start, stop = spans.get(self._fits[interval.position], (interval.start, interval.stop))
            spans[self._fits[interval.position]] = min(start, interval.start), max(stop, interval.stop)
        self._spans = dict(sorted(spans.items(), key=lambda item: item[1]))
        lengths = [stop - start for start, stop in self._spans.values()]
        self._offsets = dict(zip(self._spans, accumulate(lengths, initial=0.0), strict=False))
        self.seconds = sum(lengths) or 1e-3
        """Total length of all fits."""

    def span(self, interval: Interval) -> tuple[float, float]:
        """Return the positions of the start and stop of an interval."""
        fit = self._fits[interval.position]
        shift = self._offsets[fit] - self._spans[fit][0]
        return self._units(interval.start + shift), self._units(interval.stop + shift)

    def breaks(self) -> Iterator[tuple[float, float]]:
        """Iterate over pairs of the position at which another fit begins and the unix time of its start."""
        for fit in list(self._spans)[1:]:
            yield self._units(self._offsets[fit]), self._spans[fit][0]

    def _units(self, seconds: float) -> float:
        return seconds / self.seconds * AXIS_UNITS
