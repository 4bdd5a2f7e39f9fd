"""The time axis of a timeline, which leaves out what was between fits: that may have been days."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from compss_train.timeline import Interval, Record

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
