"""Panels: their curves, downsampled and summarized, and how they are drawn."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.reports.curves import LARGEST, MAX_CURVES, MAX_POINTS, Curve, panels
from compss_train.reports.timeline import KINDS, round_totals, worker_intervals
from tests.helpers.histories import steady_run

FLOATS = st.floats(-1e307, 1e307)


def curve_of(ys):
    return Curve("loss", [float(x) for x in range(len(ys))], ys)


def test_panels_without_a_finite_value_are_left_out():
    history = [{**record, "loss": math.nan, "val_loss": math.inf} for record in steady_run(3, 2)]
    for record in history:
        record["workers"] = [{**own, "loss": math.nan} for own in record["workers"]]
    assert [panel.title for panel in panels(history)] == ["samples/s", "the workers' time (%)"]


def test_plots_have_whole_rounds_and_legends_beside_the_curves():
    pytest.importorskip("matplotlib")
    from compss_train.reports.plots import draw

    for rounds in (1, 2, 3):
        figure = draw(steady_run(rounds, 2))
        figure.draw_without_rendering()
        for ax in figure.axes:
            low, high = ax.get_xlim()
            shown = [tick for tick in ax.get_xticks() if low <= tick <= high]
            assert shown
            assert all(tick == int(tick) for tick in shown)
            legend = ax.get_legend()
            assert legend is None or legend.get_window_extent().x0 >= ax.get_window_extent().x1


@pytest.mark.parametrize("rounds", [7, 1000])
def test_shares_of_time_are_those_of_the_intervals(rounds):
    history = steady_run(rounds, 3)
    panel = panels(history)[-1]
    assert panel.stacked
    assert [curve.name for curve in panel.curves] == [*KINDS]
    seconds = round_totals(worker_intervals(history))
    size = 1 if rounds == 7 else 4
    first = {kind: sum(seconds[index][kind] for index in range(size)) for kind in KINDS}
    assert [curve.ys[0] for curve in panel.curves] == pytest.approx(
        [100 * first[kind] / sum(first.values()) for kind in KINDS]
    )
    assert len(panel.curves[0].xs) == rounds // size


def test_panels_say_where_another_fit_begins():
    later = [{**record, "round": record["round"] + 3, "fit_started": 2000.0} for record in steady_run(2, 2)]
    assert {panel.breaks for panel in panels([*steady_run(3, 2), *later])} == {(3.0,)}


@given(st.lists(FLOATS | st.just(math.nan), min_size=1, max_size=4), st.integers(1, 400))
def test_downsampled_curves_keep_their_extremes(values, times):
    curve = curve_of(values * times).drawable()
    kept = curve.downsampled()
    assert len(kept.xs) == len(kept.ys) <= MAX_POINTS + 1
    for extreme in (np.fmin, np.fmax):
        assert str(extreme.reduce(kept.ys)) == str(extreme.reduce(curve.ys))
    assert kept.xs == sorted(kept.xs)
    assert all(str(curve.ys[int(x)]) == str(y) for x, y in zip(kept.xs, kept.ys, strict=True))


def test_values_that_cannot_be_drawn_are_gaps():
    curve = curve_of([math.inf, 1.0, math.nan, 2.0, LARGEST, -LARGEST / 2])
    assert str(curve.drawable().ys) == str([math.nan, 1.0, math.nan, 2.0, math.nan, -LARGEST / 2])


def test_many_curves_are_summarized_by_a_band():
    history = [
        {**record, "recall": [n + 10.0 * number for n in range(MAX_CURVES + 2)], "val_recall": [1.0 + number]}
        for number, record in enumerate(steady_run(2, 1))
    ]
    (panel,) = [panel for panel in panels(history) if panel.title == "recall"]
    assert [(curve.name, curve.ys, curve.band) for curve in panel.curves] == [
        ("recall, median", [4.5, 14.5], ([0.0, 10.0], [9.0, 19.0])),
        ("val_recall[0]", [1.0, 2.0], []),
    ]
