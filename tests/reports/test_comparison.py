"""Comparisons of runs: what differs, which runs are one with several seeds, and their curves."""

import io
import math
from math import ceil

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compss_train.reports.advice import measured_cost
from compss_train.reports.comparison import (
    ComparedRun,
    comparison_panels,
    comparison_table,
    differing,
    grouped,
)
from compss_train.reports.html import comparison_page, page
from compss_train.reports.records import best_value
from tests.helpers.histories import online_record, steady_run
from tests.reports.page_reader import PageReader


def record(number, **measured):
    times = {"seconds": 2.0, "samples_per_second": 50.0, "workers": []}
    return {"round": number, "epoch": number + 1, "samples": 100, **times, **measured}


def run(name, losses, lr=0.1, seed=0, **fit):
    configuration = {
        "trainer": {"num_workers": 2, "seed": seed},
        "build": {"optimizer": {"arguments": {"lr": lr}}},
        "fit": {"started": hash(name), "callbacks": [name], **fit},
    }
    history = [record(number, loss=2.0, val_loss=loss) for number, loss in enumerate(losses)]
    return ComparedRun(name=name, history=history, configuration=configuration)


def test_what_differs_is_named_and_nothing_else():
    runs = [run("a", [1.0]), run("b", [1.0], lr=0.2), run("c", [1.0], seed=3, max_time=60)]
    assert differing(runs) == ["trainer.seed", "build.optimizer.arguments.lr", "fit.max_time"]
    assert differing(runs[:1]) == []
    rows = comparison_table(runs)
    assert [row["lr"] for row in rows] == ["0.1", "0.2", "0.1"]
    assert [row["max_time"] for row in rows] == ["-", "-", "60"]


def of_file(name, network, details, parameters, net="Sequential(\n  (0): Linear()\n)", **build):
    return ComparedRun(
        name=name,
        history=[record(0, loss=1.0)],
        configuration={
            "trainer": {"seed": 0},
            "build": {"net": net, "parameters": parameters, "optimizer": "SGD"},
            "details": details,
        },
        run_file={"home": name, "network": network, "build": build},
    )


def test_networks_are_compared_by_what_the_run_files_say_of_them():
    shapes = [
        {"net": "Sequential", "net.0.out_features": width, "net.1.in_features": width}
        for width in (8, 16)
    ]
    runs = [
        of_file("a", {"width": 8}, shapes[0], 100),
        of_file("b", {"width": 16}, shapes[1], 200, net="other"),
    ]
    assert differing(runs) == ["network.width", "build.parameters"]
    assert [row["width"] for row in comparison_table(runs)] == ["8", "16"]
    others = [
        of_file("a", {}, {"loss.p": 1}, 100, loss=0.1),
        of_file("b", {}, {"loss.p": 2}, 100, loss=0.2),
    ]
    assert differing(others) == ["build.loss"]


def test_tables_have_the_last_and_best_value_of_validation():
    row = comparison_table([run("a", [3.0, 1.0, 2.0])])[0]
    assert (row["val_loss"], row["best val_loss"], row["rounds"], row["epochs"]) == (
        "2",
        ("1, round 1"),
        "3",
        "3",
    )
    assert (row["time"], row["samples/s"]) == ("6.0 s", "50")
    # As Checkpoint keeps.
    assert comparison_table([run("a", [2.0, 1.0, 1.0])])[0]["best val_loss"] == "1, round 1"
    assert best_value(
        "score", [record(number, score=score) for number, score in enumerate((1, 3, 3))]
    ) == (3, 1)
    assert "loss" not in row
    empty = comparison_table(
        [run("a", [1.0]), ComparedRun(name="b", history=[], configuration={}, state="failed")]
    )[1]
    assert (empty["val_loss"], empty["best val_loss"], empty["rounds"], empty["state"]) == (
        "-",
        "-",
        "0",
        "failed",
    )


def test_studies_have_no_epochs():
    study = ComparedRun(name="a", history=[online_record(0)], configuration={})
    assert "epochs" not in comparison_table([study])[0]
    assert [row.get("epochs") for row in comparison_table([study, run("b", [1.0])])] == [None, "1"]


def test_runs_that_differ_in_their_seed_are_a_group():
    groups = grouped([run("a", [1.0]), run("b", [1.0], lr=0.2), run("c", [1.0], seed=3)])
    assert [(group.name, [each.name for each in group.runs]) for group in groups] == [
        ("a (2 seeds)", ["a", "c"]),
        ("b", ["b"]),
    ]
    assert grouped([run("a", [1.0]), run("b", [1.0])])[0].name == "a (2 runs)"
    unknown = [ComparedRun(name=name, history=[], configuration={}) for name in "ab"]
    assert [group.name for group in grouped(unknown)] == ["a", "b"]


def test_a_group_has_its_median_between_the_edges():
    seeds = [
        run(str(seed), losses, seed=seed)
        for seed, losses in enumerate([[3, 1], [5, 2, 7], [4, math.nan]])
    ]
    panels = {
        panel.title: panel for panel in comparison_panels(grouped([*seeds, run("b", [9.0], lr=1)]))
    }
    assert list(panels) == ["loss", "val loss", "samples/s"]
    curves = {curve.name: curve for curve in panels["val loss"].curves}
    assert list(curves) == ["0 (3 seeds)", "b"]
    assert [curve.ys for curve in curves.values()] == [[4, 1.5, 7], [9.0]]
    assert [[*curve.band] for curve in curves.values()] == [[[3, 1, 7], [5, 2, 7]], []]
    assert curves["0 (3 seeds)"].xs == [0, 1, 2]


def test_pages_and_figures_have_a_curve_for_each_group():
    """Names with a common first word are those of different runs, however many these are."""
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    from compss_train.reports.plots import draw_comparison

    runs = [
        run(f"<net> lr[{lr}] {seed}", [lr + seed, 1.0], lr, seed)
        for lr in range(1, 13)
        for seed in range(2)
    ]
    names = [f"<net> lr[{lr}] 0 (2 seeds)" for lr in range(1, 13)]
    text = comparison_page(runs, "seconds")
    assert text.count("<figure") == 3
    assert '"over":"seconds"' in text
    drawn = [chart["curves"] for chart in PageReader(text).values]
    figure = draw_comparison(runs, "seconds")
    assert all(ax.get_legend() is None for ax in figure.axes)
    # Medians and bands.
    assert (len(figure.axes[1].lines), len(figure.axes[1].collections)) == (12, 12)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
    for curves, ax in zip(drawn, figure.axes, strict=True):
        assert (
            [curve["name"] for curve in curves] == [line.get_label() for line in ax.lines] == names
        )
        assert [curve["y"] for curve in curves] == [list(line.get_ydata()) for line in ax.lines]


LARGE = 1e300
EXTREME = st.sampled_from(
    [LARGE, -1.7e308, 1e-320, math.inf, math.nan, 9e149, -9e149, 0.0, 1.0, 200.0]
)


@settings(max_examples=1)
@given(st.lists(st.lists(EXTREME, min_size=1, max_size=4), min_size=1, max_size=3))
@example([[LARGE, 1.0, 2.0], [1.0, math.inf, -math.inf]])
@example([[9e149, 1e-320, 5.0], [math.nan, 1.0, 5.0]])
@example([[LARGE, -LARGE], [math.nan] * 2])
def test_losses_that_cannot_be_drawn_leave_gaps(losses):
    """Wherever they are: in a curve, in its band or in one edge of it, in all values."""
    pytest.importorskip("jinja2")
    from compss_train.reports.plots import draw, draw_comparison

    seeds = [run("a", values, seed=seed) for seed, values in enumerate(losses)]
    assert "<svg" in comparison_page([*seeds, run("b", [1.0], lr=1)])
    assert "<svg" in page(seeds[0].history, {})
    for figure in (draw(seeds[0].history), draw_comparison(seeds)):
        figure.savefig(io.BytesIO(), format="svg")


SAMPLES = 800
"""Samples of a round of a synthetic history."""
SECONDS = 0.001
"""Seconds that a worker needs for a sample."""
MERGE = 0.25
"""Seconds of a merge."""


def history(workers, *, rounds=16, processes=1, extra=0.0):
    """Records that follow the formulas: an epoch is half of the rounds.

    A round is waves of ``processes`` tasks.
    """
    records = []
    now = 1000.0
    seconds = SAMPLES / workers * SECONDS
    for number in range(rounds):
        began = now
        own = [
            {
                "worker": worker,
                "started": now + worker // processes * (seconds + extra),
                "seconds": seconds,
            }
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
    for workers, processes, waves, reads in (
        (1, 2, 1, 1),
        (5, 2, 3, 5),
        (64, 2, 32, 16),
        (64, 64, 1, 16),
    ):
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
