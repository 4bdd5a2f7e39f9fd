from math import ceil

import pytest

from compss_train.reports.advice import measured_cost
from tests.helpers.histories import online_record, steady_run

SAMPLES = 800
"""Of a round."""
SECONDS, MERGE = 0.001, 0.25
"""Of a sample, and of a merge, in synthetic histories."""


def history(workers, *, rounds=16, processes=1, extra=0.0):
    """Records that follow the formulas: an epoch is half of the rounds, each in waves of ``processes`` tasks."""
    records, now, seconds = [], 1000.0, SAMPLES / workers * SECONDS
    for number in range(rounds):
        began = now
        own = [
            {"worker": worker, "started": now + worker // processes * (seconds + extra), "seconds": seconds}
            for worker in range(workers)
        ]
        now += ceil(workers / processes) * (seconds + extra) + MERGE
        records.append(
            {
                "round": number,
                "epoch": 1 + number // (rounds // 2),
                "samples": SAMPLES,
                "seconds": now - began + (100 if number == 0 else 0),  # processes start
                "fit_started": 1000.0,
                "ended": now,
                "merge": "synchronous",
                "workers": own,
            }
        )
    return records


@pytest.mark.parametrize("extra", [0.0, 0.125])
@pytest.mark.parametrize(("workers", "processes"), [(1, 1), (2, 2), (8, 2), (8, 8), (5, 2)])
def test_the_workers_of_a_run_are_predicted_as_measured(workers, processes, extra):
    records = history(workers, processes=processes, extra=extra)
    cost = measured_cost(records)
    assert (cost.workers, cost.processes, cost.samples) == (workers, processes, SAMPLES)
    assert sum(cost.seconds(workers, processes)) == pytest.approx(records[-1]["seconds"])


def test_other_numbers_follow_the_formulas():
    cost = measured_cost(history(8, processes=2))
    assert (cost.sample, cost.merge) == pytest.approx((SECONDS, MERGE))
    assert cost.task == pytest.approx(0, abs=1e-9)
    for workers, processes, waves, reads in ((1, 2, 1, 1), (5, 2, 3, 5), (64, 2, 32, 16), (64, 64, 1, 16)):
        training, others = cost.seconds(workers, processes)
        assert training == pytest.approx(waves * SAMPLES / workers * SECONDS)
        assert others == pytest.approx(MERGE * reads / 8)


def test_the_first_epoch_and_rounds_without_workers_do_not_count():
    records = history(2)
    slow = [{**record, "seconds": 50.0} for record in records[:8]]
    emptied = [{**record, "workers": []} for record in records[8:12]]
    assert measured_cost([*slow, *emptied, *records[12:]]) == measured_cost(records[8:])
    assert sum(measured_cost(records[:1]).seconds(2, 1)) == pytest.approx(records[0]["seconds"])


@pytest.mark.parametrize("records", [[], [online_record()], steady_run(2, 2, "commutative")])
def test_histories_without_synchronous_merges_are_errors(records):
    with pytest.raises(ValueError, match="its workers do not merge in rounds"):
        measured_cost(records)
