"""The law of the timeline: a worker's intervals never overlap, and cover it from first start to
last end.
"""

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.reports.curves import training_seconds, training_speeds
from compss_train.reports.timeline import (
    KINDS,
    round_totals,
    startup_seconds,
    totals,
    worker_intervals,
)
from tests.helpers.histories import SECONDS, histories, numbered, online_record, steady_run


def by_worker_and_fit(history):
    def place(interval):
        return interval.worker, history[interval.position]["fit_started"]

    return {key: list(found) for key, found in groupby(worker_intervals(history), key=place)}


@given(histories(clocks=st.floats(-5, 5)))
def test_intervals_never_overlap_and_have_no_gaps_with_any_clocks(history):
    found = by_worker_and_fit(history)
    trained = {
        (own["worker"], record["fit_started"]) for record in history for own in record["workers"]
    }
    assert found.keys() == trained
    for (worker, started), own in found.items():
        fit = [record for record in history if record["fit_started"] == started]
        mine = [
            (r["round"], each) for r in fit for each in r["workers"] if each["worker"] == worker
        ]
        assert own[0].start == mine[0][1]["started"]
        assert own[-1].stop >= max(
            fit[-1]["ended"], mine[-1][1]["started"] + mine[-1][1]["seconds"]
        )
        assert all(one.stop == other.start for one, other in pairwise(own))
        assert all(
            interval.stop > interval.start for interval in own if interval.kind != "training"
        )
        assert [i.position for i in own if i.kind == "training"] == [number for number, _ in mine]


@st.composite
def synchronous_runs(draw):
    """A run with the seconds of each kind that it is made of: delays before tasks, tasks, and
    merges.
    """
    workers = draw(st.integers(1, 4))
    now = start = 1000.0
    records = []
    expected = {}
    for number in range(draw(st.integers(1, 4))):
        delays = [draw(SECONDS) for _ in range(workers)]
        delays = [delay - min(delays) for delay in delays]
        tasks = [draw(SECONDS) + 0.001 for _ in range(workers)]
        merging = draw(SECONDS)
        last = max(map(sum, zip(delays, tasks, strict=True)))
        own = [
            {"worker": worker, "started": now + delays[worker], "seconds": tasks[worker]}
            for worker in range(workers)
        ]
        for worker in range(workers):
            before = delays[worker] if number else 0
            waiting = before + last - delays[worker] - tasks[worker]
            expected[number, worker] = {
                "training": tasks[worker],
                "merging": merging,
                "waiting": waiting,
            }
        now += last + merging
        records.append({"fit_started": start, "ended": now, "merge": "synchronous", "workers": own})
    return numbered(records), expected


@given(synchronous_runs())
def test_synchronous_workers_wait_for_the_last_worker_and_the_merge(run):
    history, expected = run
    found = worker_intervals(history)
    assert totals(found).keys() == expected.keys()
    for place, spent in totals(found).items():
        assert spent == pytest.approx(expected[place], abs=1e-6)
    for number, spent in round_totals(found).items():
        summed = {
            kind: sum(each[kind] for place, each in expected.items() if place[0] == number)
            for kind in KINDS
        }
        assert spent == pytest.approx(summed, abs=1e-6)


def timed(merge, *rounds):
    """Records of rounds, each of trainings (worker, start, seconds) and its end."""
    records = []
    for trainings, end in rounds:
        own = [
            {"worker": worker, "started": start, "seconds": took}
            for worker, start, took in trainings
        ]
        records.append({"fit_started": 0.0, "ended": end, "merge": merge, "workers": own})
    return records


def test_a_worker_waits_during_a_round_without_data_for_it():
    both = [(0, 1.0, 1.0), (1, 1.0, 2.0)]
    one = [(1, 4.0, 2.0)]
    again = [(0, 7.0, 1.0), (1, 7.5, 2.0)]
    history = timed("synchronous", (both, 3.5), (one, 6.5), (again, 10.0))
    idle = [
        (i.position, i.kind, i.start, i.stop) for i in worker_intervals(history) if i.worker == 0
    ]
    assert idle == [
        (0, "training", 1.0, 2.0),
        (0, "waiting", 2.0, 3.0),
        (0, "merging", 3.0, 4.0),
        (1, "waiting", 4.0, 6.0),
        (1, "merging", 6.0, 7.0),
        (2, "training", 7.0, 8.0),
        (2, "waiting", 8.0, 9.5),
        (2, "merging", 9.5, 10.0),
    ]


def test_startup_is_until_the_first_worker_trains_in_each_fit():
    history = [
        *steady_run(3, 2),
        *({**record, "fit_started": 999.9} for record in steady_run(2, 2)),
    ]
    startup = startup_seconds(history)  # both fits train from 1000, with records of 0.8 s
    assert startup == [0.8, 0.0, 0.0, pytest.approx(0.1), 0.0]
    assert training_seconds(history) == [0.0, 0.8, 0.8, pytest.approx(0.7), 0.8]
    assert training_speeds(history)[1:] == [250.0, 250.0, pytest.approx(200 / 0.7), 250.0]
    assert startup_seconds([online_record()]) == [0.0]
