from itertools import pairwise
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compss_train.reports.advice import (
    MeasuredRun,
    NoiseScale,
    Plan,
    advise,
    measured_cost,
    measured_noise,
    samples_per_epoch,
    solved_noise,
    worth,
)
from compss_train.reports.curves import LearningCurve

SAMPLES = 12_800
SECONDS = 0.001
"""A sample takes so long in synthetic histories."""
MERGE = 0.25


def reached(epochs):
    """The accuracy that one worker with an infinitely small batch has after some epochs."""
    return 0.9 - 0.3 * epochs**-0.7


def history(plan, noise, *, epochs=2, processes=1, rounds=16, extra=0.0):
    """Records that follow the formulas: so many rounds an epoch, each in waves of ``processes`` tasks."""
    records, now = [], 1000.0
    seconds = SAMPLES / rounds / plan.workers * SECONDS
    for number in range(epochs * rounds):
        began = now
        workers = [
            {"worker": worker, "started": now + worker // processes * (seconds + extra), "seconds": seconds}
            for worker in range(plan.workers)
        ]
        now += ceil(plan.workers / processes) * (seconds + extra) + MERGE
        records.append(
            {
                "round": number,
                "epoch": number // rounds + 1,
                "samples": SAMPLES // rounds,
                "seconds": now - began + (100 if number == 0 else 0),  # processes start
                "fit_started": 1000.0,
                "ended": now,
                "merge": "synchronous",
                "workers": [{**worker, "samples": SAMPLES // rounds / plan.workers} for worker in workers],
                "val_accuracy": reached((number + 1) / rounds / (1 + plan.joint_batch / noise)),
                **({"noise_scale": noise, "worker_agreement": 0.6} if plan.workers > 1 else {}),
            }
        )
    return records


def measured(plan, noise, **options):
    records = history(plan, noise, **options)
    samples = samples_per_epoch(records)
    return MeasuredRun(
        plan=plan,
        curve=LearningCurve.of(records, "val_accuracy", samples=samples, falling=False),
        cost=measured_cost(records, plan.workers),
        samples=samples,
    )


def plan(workers, batch=50, merges=16, gain=1.0):
    return Plan(workers=workers, batch=batch, merges=merges, gain=gain)


@pytest.mark.parametrize(("workers", "processes"), [(2, 2), (8, 2), (8, 8), (6, 4)])
def test_costs_are_those_of_the_history(workers, processes):
    cost = measured_cost(history(plan(workers), 400, processes=processes), workers)
    assert cost.processes == processes
    assert cost.sample == pytest.approx(SECONDS)
    assert cost.merge == pytest.approx(MERGE)
    assert cost.task == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("workers", "gain"), [(1, 1.0), (2, 1.0), (64, 1.0), (64, 7.0)])
def test_one_run_predicts_by_its_noise_scale(workers, gain):
    noise = 400.0
    records = history(plan(8), noise, processes=2)
    found = measured_noise(records, batch=50)
    assert (found.samples, 1 / found.high, 1 / found.low) == (noise, noise / 2, noise * 2)
    run = measured(plan(8), noise, processes=2)
    other = plan(workers, merges=10, gain=gain)
    (row,) = advise([run], [other], found, processes=2, target=run.curve.best, num_epochs=1)
    epochs = 2 * (1 + other.joint_batch / noise) / (1 + 8 * 50 / noise)
    merge = MERGE * {1: 1, 2: 2, 64: 16}[workers] / 8
    assert row.epochs == pytest.approx(epochs)
    assert row.seconds == pytest.approx(epochs * (SAMPLES * SECONDS / min(workers, 2) + 10 * merge))
    assert row.least_epochs < row.epochs < row.most_epochs
    assert row.value == pytest.approx(reached(1 / (1 + other.joint_batch / noise)), rel=0.02)


@pytest.mark.parametrize("noise", [30.0, 400.0, 20_000.0])
@pytest.mark.parametrize("numbers", [(1, 8), (2, 32), (1, 4, 16)])
def test_several_runs_give_the_noise_scale_that_they_follow(noise, numbers):
    runs = [measured(plan(workers), noise, rounds=64, epochs=4) for workers in numbers]
    found = solved_noise(runs, runs[-1].curve.best)
    assert found.samples == pytest.approx(noise, rel=0.05)
    assert found.low <= found.rate <= found.high
    rows = advise(runs, [plan(8)], found, processes=1, target=runs[-1].curve.best, num_epochs=3)
    assert rows[0].value == pytest.approx(reached(3 / (1 + 400 / noise)), abs=0.003)


def test_runs_that_learn_alike_lose_nothing():
    runs = [measured(plan(workers), 1e12) for workers in (2, 32)]
    assert solved_noise(runs, runs[-1].curve.best).samples == inf


@pytest.mark.parametrize(("workers", "processes"), [(8, 2), (8, 8), (5, 2), (1, 1)])
@pytest.mark.parametrize("extra", [0.0, 0.125])
def test_the_workers_of_a_run_are_predicted_as_measured(workers, processes, extra):
    run = measured(plan(workers), 400, processes=processes, extra=extra)
    others = measured(plan(32), 400, processes=processes)
    records = history(plan(workers), 400, processes=processes, extra=extra)
    noise = NoiseScale(rate=1 / 50, low=0, high=1)
    (row,) = advise([others, run], [plan(workers)], noise, processes=processes, target=run.curve.best, num_epochs=1)
    seconds = sum(record["seconds"] for record in records) - 100
    assert (row.measured, row.mark, row.value) == (True, "", pytest.approx(records[15]["val_accuracy"]))
    assert (row.epochs, row.least_epochs, row.most_epochs) == pytest.approx((2, 2, 2))
    assert row.seconds == pytest.approx(seconds)


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1), st.sampled_from([1, 2, 4, 8, 64]), st.integers(1, 64), st.floats(1, 10))
def test_epochs_grow_with_workers_and_seconds_fall_with_processes(rate, workers, processes, gain):
    run = measured(plan(workers), 400, processes=1)
    noise = NoiseScale(rate=rate, low=rate / 2, high=rate * 2)
    plans = [plan(number, gain=min(number, gain)) for number in range(1, 65)]
    few, more = (
        advise([run], plans, noise, processes=limit, target=run.curve.best, num_epochs=1)
        for limit in (processes, processes + 1)
    )
    epochs = [row.epochs for row in few]
    assert all(later >= earlier * (1 - 1e-12) for earlier, later in pairwise(epochs))
    assert all(after.seconds <= before.seconds * (1 + 1e-12) for before, after in zip(few, more, strict=True))
    best = worth(few)
    assert best.seconds <= 1.1 * min(row.seconds for row in few)
    assert all(row.seconds > best.seconds / 1.1 for row in few if row.workers < best.workers)


def test_epochs_of_a_run_that_was_cut_or_merges_every_other_one_have_all_samples():
    records = history(plan(2), 400)
    assert samples_per_epoch(records[:-3]) == SAMPLES
    assert samples_per_epoch([{"epoch": 2, "samples": 200}, {"epoch": 3, "samples": 100}]) == 100


def test_long_rounds_and_those_without_noise_are_errors():
    records = history(plan(8), 400)
    with pytest.raises(ValueError, match=r"its rounds have 11 batches a worker.*every=5\) at most"):
        measured_noise(records, batch=100 / 10.5)
    for record in records:
        del record["noise_scale"]
    with pytest.raises(ValueError, match=r"0\.60, the change is nearly all noise"):
        measured_noise(records, batch=50)
    records = [{**record, "worker_agreement": 0.99} for record in records]
    with pytest.raises(ValueError, match=r"0\.99, the change is nearly all common to the workers"):
        measured_noise(records, batch=50)


def test_runs_that_do_not_show_what_workers_cost_are_errors():
    with pytest.raises(ValueError, match="have 800 to 800 samples together, too similar"):
        solved_noise([measured(plan(8, batch=100), 400), measured(plan(32, batch=25), 400)], 0.5)
    with pytest.raises(ValueError, match=r"no value was passed by all runs \(workers: first to best value: 1: "):
        solved_noise([measured(plan(1), 400, rounds=1), measured(plan(64), 40)], 0.5)
