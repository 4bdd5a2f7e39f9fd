"""The activity of each worker over time, derived from the times in the records of a history.

A worker is *training* from ``started`` for ``seconds``. With synchronous merging it then is *waiting* until the
last worker of the round has finished. All workers are *merging* until the first one starts the next round. A worker
that starts the next round later, because there are fewer processes than workers, is waiting again.

With asynchronous merging (``"commutative"``, ``"parameter_server"``) a worker is merging between two trainings, but
waiting while no process was free for the second one: as many workers were training as ever did at the same time,
and these were not all workers.

After its last training of a fit, a worker waits for the others and then for the last merge. Clocks of different
nodes may differ by some milliseconds. Times of a worker's own clock are kept, and those of other clocks are clamped
to them, so that the intervals of a worker never overlap and leave no gap within a fit.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby, pairwise
from math import inf
from typing import Literal, TypeAlias, get_args

from compss_train.reports.records import Record, Row, flatten

Kind = Literal["training", "merging", "waiting"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A period in which a worker had one kind of activity."""

    worker: int
    position: int
    """Index in the history of the round it belongs to: the number of the round, unless histories were joined."""
    kind: Kind
    start: float
    """In Unix seconds, as ``stop``."""
    stop: float

    @property
    def seconds(self) -> float:
        """Length of the interval."""
        return self.stop - self.start


def worker_intervals(history: Sequence[Record]) -> list[Interval]:
    """Return the intervals of all workers, worker by worker in order of time.

    Rounds without times in their records, such as those of ``fit_online``, have no intervals.
    """
    timed = [(position, record) for position, record in enumerate(history) if _is_timed(record)]
    fits = [_Fit(list(rounds)) for _, rounds in groupby(timed, lambda item: item[1]["fit_started"])]
    unsorted = [interval for fit in fits for interval in fit.intervals()]
    return sorted(unsorted, key=lambda interval: interval.worker)  # stable, so times stay in order


def startup_seconds(history: Sequence[Record]) -> list[float]:
    """Return the seconds of each round in which no worker had started yet: in the first round of each fit."""
    seconds = [0.0] * len(history)
    for number, (before, record) in enumerate(zip([{}, *history], history, strict=False)):
        if _is_timed(record) and before.get("fit_started") != record["fit_started"]:
            first = min(own["started"] for own in record["workers"] if "started" in own)
            seconds[number] = float(min(max(0.0, first - record["fit_started"]), record["seconds"]))
    return seconds


def totals(intervals: Iterable[Interval]) -> dict[tuple[int, int], dict[str, float]]:
    """Return the seconds of each kind, by position in the history and worker."""
    sums: dict[tuple[int, int], dict[str, float]] = {}
    for interval in intervals:
        own = sums.setdefault((interval.position, interval.worker), dict.fromkeys(KINDS, 0.0))
        own[interval.kind] += interval.seconds
    return sums


def round_totals(intervals: Iterable[Interval]) -> dict[int, dict[str, float]]:
    """Return the seconds of each kind over all workers, by position in the history."""
    sums: dict[int, dict[str, float]] = {}
    for interval in intervals:
        own = sums.setdefault(interval.position, dict.fromkeys(KINDS, 0.0))
        own[interval.kind] += interval.seconds
    return sums


def round_rows(history: Sequence[Record], intervals: list[Interval] | None = None) -> list[Row]:
    """Return a row per round, with the seconds that all workers spent in training, merging and waiting.

    ``intervals`` are those of the history, if they are known already.
    """
    seconds = round_totals(worker_intervals(history) if intervals is None else intervals)
    return [{**flatten(record), **seconds.get(position, {})} for position, record in enumerate(history)]


def worker_rows(history: Sequence[Record], intervals: list[Interval] | None = None) -> list[Row]:
    """Return a row per round and worker that trained in it (of an online fit: every worker)."""
    seconds = totals(worker_intervals(history) if intervals is None else intervals)
    return [
        {
            "round": record["round"],
            "epoch": record["epoch"],
            "worker": own["worker"],
            **flatten(own),
            **seconds.get((position, own["worker"]), {}),
        }
        for position, record in enumerate(history)
        for own in record["workers"]
    ]


def _is_timed(record: Record) -> bool:
    return {"ended", "fit_started"} <= record.keys() and any("started" in own for own in record["workers"])


_Mark: TypeAlias = tuple[Kind, float, int]
"""A kind of activity, the time until which it lasts, and the index of the round it belongs to."""


class _Fit:
    """The timed rounds of one fit."""

    def __init__(self, rounds: list[tuple[int, Record]]) -> None:
        self._positions = [position for position, _ in rounds]
        self._ended = rounds[-1][1]["ended"]
        self._barriers = rounds[0][1].get("merge", "synchronous") == "synchronous"
        self._trainings = [
            {
                own["worker"]: (own["started"], own["started"] + own["seconds"])
                for own in record["workers"]
                if "started" in own
            }
            for _, record in rounds
        ]
        """The start and stop of each worker's training, by round."""
        self._starts = [min(start for start, _ in each.values()) for each in self._trainings]
        self._stops = [max(stop for _, stop in each.values()) for each in self._trainings]
        trainings = [times for each in self._trainings for times in each.values()]
        self._full_times = _FullTimes(trainings, len(set().union(*self._trainings)))

    def intervals(self) -> Iterator[Interval]:
        """Iterate over the intervals of all workers."""
        for worker in sorted(set().union(*self._trainings)):
            yield from self._of_worker(worker)

    def _of_worker(self, worker: int) -> Iterator[Interval]:
        """Iterate over the intervals of a worker; each starts when the previous one stops."""
        own = [number for number, each in enumerate(self._trainings) if worker in each]
        now = self._trainings[own[0]][worker][0]
        for number, following in zip(own, [*own[1:], None], strict=True):
            stop = max(now, self._trainings[number][worker][1])
            limit = inf if following is None else max(stop, self._trainings[following][worker][0])
            marks: list[_Mark] = [("training", stop, self._positions[number])]
            for kind, until, position in chain(marks, self._marks(worker, number, following)):
                if kind == "training" or min(until, limit) > now:
                    until = min(until, limit)
                    yield Interval(worker=worker, position=position, kind=kind, start=now, stop=until)
                    now = until

    def _marks(self, worker: int, number: int, following: int | None) -> Iterator[_Mark]:
        last = len(self._positions) - 1 if following is None else following
        for each in range(number, last if self._barriers else number):
            yield "waiting", self._stops[each], self._positions[each]
            yield "merging", self._starts[each + 1], self._positions[each]
        if following is None:
            yield "waiting", max(self._stops), self._positions[last]
            yield "merging", self._ended, self._positions[last]
            return
        begin = self._trainings[following][worker][0]
        if not self._barriers:
            waited = self._full_times.seconds(self._trainings[number][worker][1], begin)
            yield "merging", begin - waited, self._positions[number]
        yield "waiting", begin, self._positions[following]


class _FullTimes:
    """The times when no process was free: the largest number of workers was training, but not all of them."""

    def __init__(self, trainings: Collection[tuple[float, float]], workers: int) -> None:
        changes = sorted([*((start, 1) for start, _ in trainings), *((stop, -1) for _, stop in trainings)])
        self._times = [time for time, _ in changes]
        levels = list(accumulate(step for _, step in changes))
        most = max(levels)
        self._full = [level == most < workers for level in levels]
        lengths = (b - a if full else 0.0 for (a, b), full in zip(pairwise(self._times), self._full, strict=False))
        self._sums = list(accumulate(lengths, initial=0.0))

    def seconds(self, start: float, stop: float) -> float:
        """Return the seconds without a free process between two times of the fit."""
        return max(0.0, self._until(stop) - self._until(start))

    def _until(self, time: float) -> float:
        place = bisect_right(self._times, time) - 1
        return self._sums[place] + (time - self._times[place] if self._full[place] else 0.0)
