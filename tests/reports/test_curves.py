import math

import numpy as np
import pytest

from compss_train.reports.curves import FARTHEST, LearningCurve, panels
from tests.helpers.histories import steady_run


def curve(values, falling=False, rounds=4):
    """The curve of values that are measured at equal distances, ``rounds`` an epoch."""
    history = [{"samples": 100 // rounds, "val": value, "workers": []} for value in values]
    return LearningCurve.of(history, "val", samples=100, falling=falling)


@pytest.mark.parametrize("falling", [False, True])
def test_a_curve_passes_through_its_best_values_and_back(falling):
    values = [0.2, 0.5, 0.4, 0.6] if not falling else [0.8, 0.5, 0.6, 0.4]
    learned = curve(values, falling)
    assert (learned.first, learned.best, learned.trained) == (values[0], values[-1], 1.0)
    for epochs, value in ((0.25, values[0]), (0.5, values[1]), (1.0, values[3])):
        assert learned.epochs_to(value) == pytest.approx(epochs)
        assert learned.value_at(epochs) == ("", pytest.approx(value))
    assert learned.epochs_to(learned.value_at(0.8)[1]) == pytest.approx(0.8)


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("power", [0.3, 0.55, 1.0])
def test_a_power_law_is_extended_exactly_and_not_far(falling, power):
    def law(epochs):
        return 0.1 + 0.2 * epochs**-power if falling else 0.9 - 0.2 * epochs**-power

    learned = curve(law(np.arange(1, 13) / 4), falling)
    assert learned.value_at(6.0) == ("~", pytest.approx(law(6.0)))
    assert learned.value_at(3.1 * FARTHEST) == ("<" if falling else ">", pytest.approx(law(3.0)))
    assert learned.value_at(0.1) == (">" if falling else "<", pytest.approx(law(0.25)))


def test_curves_without_a_perfect_end_are_not_extended():
    assert curve([0.2, 0.4]).value_at(1.0) == (">", 0.4)  # few points
    assert curve([0.1, 0.3, 0.6, 0.98]).value_at(2.0)[0] == ">"  # would pass 1


def test_a_run_that_diverged_is_an_error():
    with pytest.raises(ValueError, match="the last round has no finite val: the run has diverged"):
        curve([0.2, float("nan")])


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
