"""The activity of each worker over time, derived from the times in the records of a history.

A worker is *training* from ``started`` for ``seconds``. With synchronous merging it then is
*waiting* until the last worker of the round has finished. All workers are *merging* until the first
one starts the next round. A worker that starts the next round later, because there are fewer
processes than workers, is waiting again.

With asynchronous merging (``"commutative"``, ``"parameter_server"``) a worker is merging between
two trainings, but waiting while no process is free for the second one: while as many workers train
as ever did at the same time, and that is fewer than all workers.

After its last training of a fit, a worker waits for the others and then for the last merge. Clocks
of different nodes may differ by some milliseconds. Times of a worker's own clock are kept, and
those of other clocks are clamped to them, so that the intervals of a worker never overlap and leave
no gap within a fit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from math import inf
from operator import attrgetter
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from compss_train.reports.records import Record, Row, epoch_of, flatten

Kind = Literal["training", "merging", "waiting"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A period in which a worker had one kind of activity."""

    worker: int
    position: int
    """Index of its round in the history: the round's number, unless histories were joined."""
    kind: Kind
    start: float
    """In Unix seconds, as ``stop``."""
    stop: float


def worker_intervals(history: Sequence[Record]) -> list[Interval]:
    """Return the intervals of all workers, worker by worker in order of time.

    Rounds without times in their records, such as those of ``fit_online``, have no intervals.
    """
    timed = [(position, record) for position, record in enumerate(history) if _is_timed(record)]
    fits = [_Fit(list(rounds)) for _, rounds in groupby(timed, lambda item: item[1]["fit_started"])]
    unsorted = [interval for fit in fits for interval in fit.intervals()]
    return sorted(unsorted, key=lambda interval: interval.worker)  # stable, so times stay in order


def startup_seconds(history: Sequence[Record]) -> list[float]:
    """Return the seconds of each round in which no worker had started yet.

    They are 0 in all rounds but the first one of each fit.
    """
    seconds = []
    fit_started = None
    for record in history:
        startup = 0.0
        if _is_timed(record) and record["fit_started"] != fit_started:
            first = min(start for start, _ in _trainings(record).values())
            startup = float(min(max(0.0, first - record["fit_started"]), record["seconds"]))
        seconds.append(startup)
        fit_started = record.get("fit_started")
    return seconds


def totals(
    intervals: Iterable[Interval], key: Callable[[Interval], Any] = attrgetter("position", "worker")
) -> dict[Any, dict[str, float]]:
    """Return the seconds of each kind, by position in the history and worker.

    ``key`` is another key, made of an interval.
    """
    sums: dict[Any, dict[str, float]] = {}
    for interval in intervals:
        by_kind = sums.setdefault(key(interval), dict.fromkeys(KINDS, 0.0))
        by_kind[interval.kind] += interval.stop - interval.start
    return sums


def round_totals(intervals: Iterable[Interval]) -> dict[int, dict[str, float]]:
    """Return the seconds of each kind over all workers, by position in the history."""
    return totals(intervals, attrgetter("position"))


def activity_shares(intervals: Iterable[Interval]) -> dict[str, float]:
    """Return the share of each kind of activity in the time of all workers."""
    seconds = totals(intervals, lambda _: "all").get("all", dict.fromkeys(KINDS, 0.0))
    whole = sum(seconds.values()) or 1.0
    return {kind: spent / whole for kind, spent in seconds.items()}


def round_rows(history: Sequence[Record], intervals: list[Interval] | None = None) -> list[Row]:
    """Return a row per round, with the seconds of all workers in training, merging and waiting.

    ``intervals`` are those of the history, if already computed.
    """
    seconds = round_totals(worker_intervals(history) if intervals is None else intervals)
    return [
        {**flatten(record), **seconds.get(position, {})} for position, record in enumerate(history)
    ]


def worker_rows(history: Sequence[Record], intervals: list[Interval] | None = None) -> list[Row]:
    """Return a row per round and worker that trained in it (of an online fit: every worker)."""
    seconds = totals(worker_intervals(history) if intervals is None else intervals)
    return [
        {
            "round": record["round"],
            **epoch_of(record),
            "worker": entry["worker"],
            **flatten(entry),
            **seconds.get((position, entry["worker"]), {}),
        }
        for position, record in enumerate(history)
        for entry in record["workers"]
    ]


def _is_timed(record: Record) -> bool:
    return {"ended", "fit_started"} <= record.keys() and bool(_trainings(record))


def _trainings(record: Record) -> dict[int, tuple[float, float]]:
    """Return the start and stop of each worker's training, by worker."""
    return {
        entry["worker"]: (entry["started"], entry["started"] + entry["seconds"])
        for entry in record["workers"]
        if "started" in entry
    }


_Mark: TypeAlias = tuple[Kind, float, int]
"""A kind of activity, the time until which it lasts, and the index of the round it belongs to."""


class _Fit:
    """The timed rounds of one fit."""

    def __init__(self, rounds: list[tuple[int, Record]]) -> None:
        self._positions = [position for position, _ in rounds]
        self._ended = rounds[-1][1]["ended"]
        self._barriers = rounds[0][1].get("merge", "synchronous") == "synchronous"
        self._trainings = [_trainings(record) for _, record in rounds]
        spans = [list(by_worker.values()) for by_worker in self._trainings]
        self._starts = [min(start for start, _ in of_round) for of_round in spans]
        self._stops = [max(stop for _, stop in of_round) for of_round in spans]
        self._workers = sorted(set().union(*self._trainings))
        changes = np.array(list(chain.from_iterable(chain.from_iterable(spans))))
        steps = np.tile([1, -1], len(changes) // 2)
        order = np.lexsort((steps, changes))  # at the same time, stops come before starts
        self._changes = changes[order]
        """The times at which a training starts or stops."""
        training = np.cumsum(steps[order])[:-1]
        is_full = (training == training.max()) & (training < len(self._workers))
        self._full_seconds = np.cumsum([0.0, *np.diff(self._changes) * is_full])
        """The seconds before each change in which no process was free.

        As many workers were training as ever did.
        """

    def intervals(self) -> Iterator[Interval]:
        """Iterate over the intervals of all workers."""
        return chain.from_iterable(map(self._of_worker, self._workers))

    def _of_worker(self, worker: int) -> Iterator[Interval]:
        """Iterate over the intervals of a worker; each starts when the previous one stops."""
        rounds = [number for number, by_worker in enumerate(self._trainings) if worker in by_worker]
        now = self._trainings[rounds[0]][worker][0]
        for number, following in zip(rounds, [*rounds[1:], None], strict=True):
            stop = max(now, self._trainings[number][worker][1])
            limit = inf if following is None else max(stop, self._trainings[following][worker][0])
            marks: list[_Mark] = [("training", stop, self._positions[number])]
            for kind, until, position in chain(marks, self._marks(worker, number, following)):
                end = min(until, limit)
                if kind == "training" or end > now:
                    yield Interval(worker=worker, position=position, kind=kind, start=now, stop=end)
                    now = end

    def _marks(self, worker: int, number: int, following: int | None) -> Iterator[_Mark]:
        """Iterate over what a worker does after its training of a round, until the following."""
        last = len(self._positions) - 1 if following is None else following
        if self._barriers:
            for between in range(number, last):
                yield "waiting", self._stops[between], self._positions[between]
                yield "merging", self._starts[between + 1], self._positions[between]
        if following is None:
            yield "waiting", max(self._stops), self._positions[last]
            yield "merging", self._ended, self._positions[last]
            return
        begin = self._trainings[following][worker][0]
        if not self._barriers:
            pause = (self._trainings[number][worker][1], begin)
            waited = np.diff(np.interp(pause, self._changes, self._full_seconds))[0]
            yield "merging", begin - max(0.0, float(waited)), self._positions[number]
        yield "waiting", begin, self._positions[following]
