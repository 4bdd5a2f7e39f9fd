import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.model.metrics import Measures, resolve_metrics
from compss_train.online.records import Progress, Report

SIMULATIONS = {"running": 1, "done": 2, "failed": 0}


@st.composite
def reports(draw):
    samples = draw(st.integers(0, 50))
    held = draw(st.integers(0, 9))
    return Report(
        samples=samples,
        batches=min(samples, 5),
        loss=float(samples),
        metrics={"mae": samples / 2},
        held=held,
        unseen=draw(st.integers(0, held)),
        put=draw(st.integers(held, 99)),
        got=draw(st.integers(0, 99)),
    )


steps = st.lists(st.none() | st.tuples(st.integers(0, 2), reports()), max_size=30)


@given(steps, st.sampled_from([None, "mae"]))
def test_records_cover_each_report_once_and_the_last_buffer_state(todo, metric):
    progress, last, records, since = Progress(3, resolve_metrics(metric)), [Report() for _ in range(3)], [], 0
    for number, step in enumerate(todo):
        if step is None:
            due = progress.is_due(0.0)
            records.append(progress.record(number, 7, SIMULATIONS))
            assert due == (records[-1]["batches"] > 0)
        else:
            progress.add(*step)
            last[step[0]] = step[1]
    records.append(progress.record(99, 7, SIMULATIONS, final=True))
    trained = [step for step in todo if step is not None]
    for name in ("samples", "batches"):
        assert sum(record[name] for record in records) == sum(getattr(report, name) for _, report in trained)
        for worker in range(3):
            total = sum(record["workers"][worker][name] for record in records)
            assert total == sum(getattr(report, name) for number, report in trained if number == worker)
    for record in records:
        assert (record["epoch"], record["simulations"], record["seconds"] > since) == (7, SIMULATIONS, True)
        assert record["loss"] == 1 if record["samples"] else math.isnan(record["loss"])
        assert ("mae" in record) == (metric is not None)
        if record["samples"] and metric:
            assert record["mae"] == 0.5
        assert record["samples_per_second"] == pytest.approx(record["samples"] / record["seconds"])
        assert record["batches_per_second"] == pytest.approx(record["batches"] / record["seconds"])
    held = sum(each.held for each in last)
    put = sum(each.put for each in last)
    record = records[-1]
    assert record["round"] == 99
    assert (record["received"], record["buffer"], progress.received) == (put, held, put)
    assert record["unseen"] == (sum(each.unseen for each in last) / held if held else 0)
    assert record["repetitions_mean"] == sum(each.got for each in last) / max(1, put)
    assert [each["buffer"] for each in record["workers"]] == [each.held for each in last]
    assert [each["received"] for each in record["workers"]] == [each.put for each in last]


def report(batches=1):
    return Report(samples=4 * batches, batches=batches, loss=2.0 * batches, held=1, put=2, got=3)


def test_the_final_record_covers_every_worker_that_trained():
    progress = Progress(2, Measures())
    for worker in (0, 1, 0):
        progress.add(worker, report())
    progress.record(0, 0, SIMULATIONS)
    for worker in (0, 1):
        progress.add(worker, report(0))
    assert [each["batches"] for each in progress.record(1, 0, SIMULATIONS, final=True)["workers"]] == [1, 1]
    assert progress.record(2, 0, SIMULATIONS, final=True)["batches"] == 0
