import math

import pytest

from compss_train.reports.curves import panels
from tests.helpers.histories import steady_run


def test_panels_without_a_finite_value_are_left_out():
    history = [{**record, "loss": math.nan, "val_loss": math.inf} for record in steady_run(3, 2)]
    for record in history:
        record["workers"] = [{**own, "loss": math.nan} for own in record["workers"]]
    assert [panel.title for panel in panels(history)] == ["samples/s"]


def test_plots_have_whole_rounds_and_legends_beside_the_curves():
    pytest.importorskip("matplotlib")
    from compss_train.reports.plots import draw

    for rounds in (1, 2, 3):
        figure = draw(steady_run(rounds, 2))
        figure.canvas.draw()
        for ax in figure.axes:
            low, high = ax.get_xlim()
            shown = [tick for tick in ax.get_xticks() if low <= tick <= high]
            assert shown
            assert all(tick == int(tick) for tick in shown)
            legend = ax.get_legend()
            assert legend is None or legend.get_window_extent().x0 >= ax.get_window_extent().x1
