"""What each worker did when, derived from the times in the records of a history.

A worker is *training* from ``started`` for ``seconds``. Synchronous workers then are *waiting* until the last one
of the round has ended, and all are *merging* until the first one begins the next round; who begins it later, as
there are fewer processes than workers, is waiting again. Where nobody waits for the others (``"commutative"``,
``"parameter_server"``) a worker is merging between two trainings, except as long as no process was free for the
second one: as many workers trained as ever did at a time, and they were fewer than all. That is waiting. After its
last training of a fit a worker waits for the others', and then for the last merge.

Clocks of several nodes may disagree by some milliseconds: what a worker's own clock says is kept, and the others'
is clamped to it, so that a worker's intervals never overlap and leave no gap within a fit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any, Literal, TypeAlias, get_args

Kind = Literal["training", "merging", "waiting"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Record: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of time in which a worker did one thing."""

    worker: int
    position: int
    """Place in the history of the round that it belongs to: the round's number, unless histories were joined."""
    kind: Kind
    start: float
    """Unix seconds, as ``stop``."""
    stop: float

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.stop - self.start


def intervals(history: Sequence[Record]) -> list[Interval]:
    """Return what each worker did, worker by worker in order of time.

    Rounds whose records tell no times, such as those of ``fit_online``, have none.
    """
    timed = [(position, record) for position, record in enumerate(history) if _is_timed(record)]
    fits = [_Fit(list(rounds)) for _, rounds in groupby(timed, lambda item: item[1]["fit_started"])]
    found = [interval for fit in fits for interval in fit.intervals()]
    return sorted(found, key=lambda interval: interval.worker)  # stable: times stay in order


def totals(found: Iterable[Interval]) -> dict[tuple[int, int], dict[str, float]]:
    """Return the seconds of each kind, by position in the history and worker."""
    sums: dict[tuple[int, int], dict[str, float]] = {}
    for interval in found:
        own = sums.setdefault((interval.position, interval.worker), dict.fromkeys(KINDS, 0.0))
        own[interval.kind] += interval.seconds
    return sums


def round_totals(found: Iterable[Interval]) -> dict[int, dict[str, float]]:
    """Return the seconds of each kind over all workers, by position in the history."""
    sums: dict[int, dict[str, float]] = {}
    for interval in found:
        own = sums.setdefault(interval.position, dict.fromkeys(KINDS, 0.0))
        own[interval.kind] += interval.seconds
    return sums


def _is_timed(record: Record) -> bool:
    return {"ended", "fit_started"} <= record.keys() and any("started" in own for own in record["workers"])


_Mark: TypeAlias = tuple[Kind, float, int]
"""Until when a worker does something, and the round that this belongs to."""


class _Fit:
    """The rounds of one fit: when workers trained in each, when the first began it and the last ended."""

    def __init__(self, rounds: list[tuple[int, Record]]) -> None:
        self._positions = [position for position, _ in rounds]
        self._ended = rounds[-1][1]["ended"]
        self._barriers = rounds[0][1].get("merge", "synchronous") == "synchronous"
        self._trainings = [
            {own["worker"]: _training(own) for own in record["workers"] if "started" in own} for _, record in rounds
        ]
        self._begins = [min(start for start, _ in each.values()) for each in self._trainings]
        self._ends = [max(stop for _, stop in each.values()) for each in self._trainings]
        everything = [times for each in self._trainings for times in each.values()]
        self._full = _Full(everything, len(set().union(*self._trainings)))

    def intervals(self) -> Iterator[Interval]:
        """Iterate over all workers' intervals."""
        for worker in sorted(set().union(*self._trainings)):
            yield from self._of_worker(worker)

    def _of_worker(self, worker: int) -> Iterator[Interval]:
        """Walk along the worker's rounds: every interval begins where the one before has ended."""
        own = [number for number, each in enumerate(self._trainings) if worker in each]
        now = self._trainings[own[0]][worker][0]
        for number, following in zip(own, [*own[1:], None], strict=True):
            position = self._positions[number]
            stop = max(now, self._trainings[number][worker][1])
            yield Interval(worker, position, "training", now, stop)
            for interval in self._until(worker, number, following, stop):
                yield interval
                stop = interval.stop
            now = stop

    def _until(self, worker: int, number: int, following: int | None, now: float) -> Iterator[Interval]:
        """Iterate over what a worker does between its training in a round and that in the following one it has."""
        limit = float("inf") if following is None else max(now, self._trainings[following][worker][0])
        for kind, until, position in self._marks(worker, number, following):
            if (stop := min(until, limit)) > now:
                yield Interval(worker, position, kind, now, stop)
                now = stop

    def _marks(self, worker: int, number: int, following: int | None) -> Iterator[_Mark]:
        last = len(self._positions) - 1 if following is None else following
        for each in range(number, last if self._barriers else number):
            yield "waiting", self._ends[each], self._positions[each]
            yield "merging", self._begins[each + 1], self._positions[each]
        if following is None:
            yield "waiting", max(self._ends), self._positions[last]
            yield "merging", self._ended, self._positions[last]
            return
        begin = self._trainings[following][worker][0]
        if not self._barriers:
            waited = self._full.seconds(self._trainings[number][worker][1], begin)
            yield "merging", begin - waited, self._positions[number]
        yield "waiting", begin, self._positions[following]


class _Full:
    """When no process was free: as many workers trained as ever did at a time, but not all of them."""

    def __init__(self, trainings: Collection[tuple[float, float]], workers: int) -> None:
        changes = sorted([*((start, 1) for start, _ in trainings), *((stop, -1) for _, stop in trainings)])
        self._times = [time for time, _ in changes]
        levels = list(accumulate(step for _, step in changes))
        most = max(levels)
        self._full = [level == most < workers for level in levels]
        lengths = (b - a if full else 0.0 for (a, b), full in zip(pairwise(self._times), self._full, strict=False))
        self._sums = list(accumulate(lengths, initial=0.0))

    def seconds(self, start: float, stop: float) -> float:
        """Return how long that was, between two times within the fit."""
        return max(0.0, self._until(stop) - self._until(start))

    def _until(self, time: float) -> float:
        place = bisect_right(self._times, time) - 1
        return self._sums[place] + (time - self._times[place] if self._full[place] else 0.0)


def _training(own: Record) -> tuple[float, float]:
    """Return when a worker's training started and stopped."""
    return own["started"], own["started"] + own["seconds"]
