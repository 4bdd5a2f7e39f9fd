"""Where a sampler has drawn inputs, in reports, tables and TensorBoard."""

from types import SimpleNamespace

import pytest

from compss_train.callbacks import TensorBoard
from compss_train.reports.curves import input_panels, panels
from compss_train.reports.html import page
from compss_train.reports.plots import chart_of, draw
from compss_train.reports.records import flatten
from tests.helpers.histories import online_record


def history_of(*records):
    """Return records with these inputs: pairs of an input and how it was drawn."""
    number = 0
    history = []
    for at, drawn in enumerate(records):
        inputs = []
        for value, origin in drawn:
            inputs.append({"simulation": number, "input": value, "origin": origin})
            number += 1
        history.append({**online_record(at), **({"inputs": inputs} if inputs else {})})
    return history


@pytest.mark.parametrize(
    ("value", "titles"),
    [
        (0.5, ["parameter 0 over simulation"]),
        ([0.5], ["parameter 0 over simulation"]),
        ([0.5, 2.0], ["parameter 1 over parameter 0"]),
        ([1, 2, 3], ["parameter 1 over parameter 0", "parameter 1 over parameter 2"]),
        ({"width": 1.0, "height": 2.0}, ["height over width"]),
        ("a text", []),
        ([], []),
    ],
)
def test_two_parameters_a_panel(value, titles):
    found = input_panels(history_of([(value, "")] * 3))
    assert [panel.title for panel in found] == [f"inputs: {title}" for title in titles]
    assert all(len(panel.curves[0].xs) == 3 for panel in found)


def test_the_share_of_each_way_and_points_of_all_draws():
    history = history_of(
        [([0, 1], "uniform")], [], [([2, 3], "child"), ([4, 5], "child"), ([6, 7], "uniform")]
    )
    share, points = input_panels(history)
    assert [(curve.name, curve.xs, curve.ys) for curve in share.curves] == [
        ("uniform", [0, 2], [100, pytest.approx(100 / 3)]),
        ("child", [0, 2], [0, pytest.approx(200 / 3)]),
    ]
    assert [(curve.xs, curve.ys) for curve in points.curves] == [([0, 6], [1, 7]), ([2, 4], [3, 5])]
    assert [panel.title for panel in panels(history)][-2:] == [share.title, points.title]
    assert flatten(history[2])["inputs.child"] == 2
    assert "inputs" not in flatten(history[2])


def test_pages_and_figures_draw_them():
    history = history_of([([0, 1], "uniform")], [([2, 3], "child"), ([4, 5e9], "child")])
    text = page(history, {})
    assert "inputs: parameter 1 over parameter 0" in text
    chart = chart_of(input_panels(history)[1])
    assert chart["script_data"]["curves"] == []
    assert [name for name, _ in chart["legend"]] == ["uniform", "child"]
    assert draw(history).axes


def test_tensorboard_has_numbers_and_a_picture(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = TensorBoard(tmp_path)
    history = history_of([([0, 1], "uniform")], [([2, 3], "child"), ([4, 5], "child")])
    trainer = SimpleNamespace(configuration={}, history=[])
    board.on_fit_start(trainer, None)
    for record in history:
        board.on_round_end(trainer, record)
    trainer.history = history
    board.on_fit_end(trainer)
    events = reader.EventAccumulator(str(tmp_path)).Reload()
    assert events.Scalars("inputs/child")[0].value == 2
    assert len(events.Images("inputs")) == 1
