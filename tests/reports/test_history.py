"""The history as a list, as tables, as plots and as files."""

import json
import math
import pickle
import re
import sys
import time

import numpy as np
import pytest
from hypothesis import example, given

from compss_train import BadFileError, DistributedTrainer, Merge
from compss_train.reports.curves import panels, positions, title_of
from compss_train.reports.history import History, line_of, save_figure
from compss_train.reports.records import flatten
from compss_train.reports.timeline import KINDS, worker_rows
from tests.helpers.histories import histories, online_record
from tests.helpers.models import SGD, blocked, classification, mlp
from tests.helpers.small_fits import combined


@pytest.fixture(scope="module")
def trainer():
    """One that has fitted twice: rounds in which a worker has nothing to train, and no validation
    at last.
    """
    x, y = classification()
    with DistributedTrainer(2, engine="serial", seed=0, threads=1) as built:
        built.build(mlp(), SGD, "cross_entropy", "accuracy")
        assert built.history == []
        options = {"batch_size": 5, "progress": False}
        built.fit(
            *blocked(x, y, 3),
            num_epochs=1,
            validation_data=(x, y),
            **combined(options, merge=Merge(unit="blocks")),
        )
        built.fit(*blocked(x, y, 3), num_epochs=2, merge="commutative", **options)
        yield built


def test_a_history_is_a_list_that_json_can_represent(trainer):
    history = trainer.history
    assert isinstance(history, History)
    assert history == list(history)
    assert json.loads(json.dumps(history)) == history == pickle.loads(pickle.dumps(history))
    assert isinstance(history[1:], History)
    assert history[1:] == list(history)[1:]
    assert history[0]["round"] == 0


def test_records_have_times_of_fits_rounds_and_tasks(trainer):
    history = trainer.history
    assert [record["merge"] for record in history] == ["synchronous"] * 2 + ["commutative"] * 2
    assert len({record["fit_started"] for record in history}) == 2
    assert [record["ended"] for record in history] == sorted(record["ended"] for record in history)
    for record in history:
        assert [own["worker"] for own in record["workers"]] == (
            [0] if record["round"] == 1 else [0, 1]
        )
        for own in record["workers"]:
            assert record["fit_started"] <= own["started"] < own["started"] + own["seconds"]
            # Two clocks of one machine.
            assert own["started"] + own["seconds"] <= record["ended"] + 0.1
    assert history[-1]["ended"] <= time.time()


@given(histories())
def test_frames_have_every_number_of_every_record(history):
    frame = History(history).to_frame()
    workers = History(history).to_frame(workers=True)
    entries = [own for record in history for own in record["workers"]]
    assert (len(frame), len(workers)) == (len(history), len(entries))
    for rows, records in ((frame, history), (workers, entries)):
        for (_, cells), record in zip(rows.iterrows(), records, strict=True):
            for name, value in flatten(record).items():
                assert cells[name] == value or np.isnan(cells[name])
                assert not isinstance(value, float) or cells[name] == pytest.approx(
                    value, nan_ok=True
                )
    assert frame.empty is workers.empty is (not history)
    if history:
        assert frame["recall[1]"].to_list() == pytest.approx(
            [r["recall"][1] for r in history], nan_ok=True
        )
        spent = sum(own["seconds"] for own in entries)
        assert workers["training"].sum() <= spent + 1e-6  # less where clocks disagree
        # Some had nothing to train.
        assert frame[[*KINDS]].sum().sum() >= workers[[*KINDS]].sum().sum() - 1e-6


def test_plots_need_no_display_and_are_saved(trainer, tmp_path):
    before = "matplotlib.pyplot" in sys.modules
    figure = trainer.history.plot(tmp_path / "plot.svg")
    for name in ("plot.png", "plot.pdf"):
        save_figure(figure, tmp_path / name)
    assert all(
        (tmp_path / f"plot.{suffix}").stat().st_size > 5000 for suffix in ("svg", "png", "pdf")
    )
    assert ("matplotlib.pyplot" in sys.modules) == before
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["loss", "accuracy", "samples/s", "loss by worker", "the workers' time (%)"]
    loss = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    assert [*loss["loss"]] == [record["loss"] for record in trainer.history]
    assert np.isnan(loss["val_loss"][2:]).all()
    # And where a fit begins.
    assert [len(line.get_xdata()) for line in figure.axes[3].lines] == [4, 3, 2]
    assert (
        title_of("val_averaged_recall[2]")
        == title_of("val_recall[2]")
        == title_of("recall")
        == "recall"
    )


def test_notebooks_show_pictures_and_tables(trainer):
    """As IPython asks objects, which knows nothing of matplotlib here."""
    formatters = pytest.importorskip("IPython.core.formatters")
    shown = formatters.DisplayFormatter().format
    assert shown(trainer.history.plot())[0]["image/png"].startswith(b"\x89PNG")
    parameters = trainer.get_parameters()
    table = trainer.summary()
    for value in (trainer, trainer.history, parameters, History(), table):
        assert shown(value)[0]["text/html"].count("<table>") == 1
    loss = trainer.history[-1]["loss"]
    assert repr(trainer).startswith(
        "DistributedTrainer(num_workers=2, engine='serial', seed=0), history of "
    )
    assert f"epoch 3, loss {loss:.4f}"[:-1] in repr(trainer)
    assert repr(parameters) == "4 arrays of 163 numbers"
    assert pickle.loads(pickle.dumps(parameters)).keys() == parameters.keys()


@pytest.mark.parametrize("against", ["round", "epoch", "samples", "seconds"])
def test_plots_of_unusual_histories(against):
    records = [
        online_record(),
        online_record(1, math.nan),
        online_record(2, 1e-5, recall=[0.5, 0.25]),
    ]
    figure = History(records).plot(against=against)
    titles = {axes.get_title(): axes for axes in figure.axes}
    assert {
        "loss",
        "recall",
        "samples/s",
        "batches/s",
        "samples in buffers",
        "simulations",
    } <= titles.keys()
    assert titles["loss"].get_yscale() == "log"
    assert [line.get_label() for line in titles["recall"].lines] == ["recall[0]", "recall[1]"]
    assert {axes.get_xlabel() for axes in figure.axes} == {against}
    if against == "round":
        figure.draw_without_rendering()
        History(records[:1]).plot()


@given(histories())
def test_positions_never_decrease_and_panels_have_a_point_per_record(history):
    for against in ("round", "epoch", "samples", "seconds"):
        # Two runs in one file, whose rounds begin again at 0.
        xs = positions(history + history, against)
        assert xs == sorted(xs)
        assert len(xs) == 2 * len(history)
    for panel in panels(history):
        assert all(len(curve.xs) == len(curve.ys) <= len(history) for curve in panel.curves)


def test_the_last_of_several_runs_in_a_file_is_loaded(trainer, tmp_path):
    path = tmp_path / "history.jsonl"
    text = "".join(map(line_of, trainer.history))
    for before in (text, text + text[: text.index("\n") + 1]):
        path.write_text(before + text)
        repeated = before.count("\n")
        with pytest.warns(
            UserWarning, match=f"has {repeated} rounds that occur again later"
        ) as warned:
            assert History.load(path) == trainer.history
        assert warned[0].filename == __file__
    restored = [{**record, "loss": 2.0} for record in trainer.history[1:]]
    History([*trainer.history, *restored]).save(path)
    with pytest.warns(UserWarning, match=f"has {len(restored)} rounds that occur again later"):
        assert History.load(path) == [trainer.history[0], *restored]


@given(history=histories())
@example(history=[])
def test_saved_histories_are_loaded_unchanged(history, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "history.jsonl"
    History(history).save(path)
    assert str(History.load(path)) == str(History(history))  # NaN is no equal of itself
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # as parsers do that know JSON's numbers only


def test_errors_name_damaged_files(trainer, tmp_path):
    path = tmp_path / "history.jsonl"
    trainer.history.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.warns(UserWarning, match=r"history\.jsonl ends with an incomplete line"):
        assert History.load(path) == trainer.history[:-1]
    others = [
        json.dumps({**trainer.history[0], "workers": workers}).encode() + b"\n"
        for workers in (3, [1.0])
    ]
    for wrong in (b"{}\n", b"no json\n", b"[1, 2]\n", b"\xff\n", *others):
        path.write_bytes(whole[: whole.index(b"\n") + 1] + wrong + whole)
        with pytest.raises(
            BadFileError, match=r"history\.jsonl has no record of a round in line 2"
        ):
            History.load(path)
    with pytest.raises(FileNotFoundError):
        History.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("method", "module", "extra"),
    [("to_frame", "pandas", "pandas"), ("plot", "matplotlib", "plot")],
)
def test_errors_name_missing_packages_and_extras(trainer, monkeypatch, method, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ModuleNotFoundError,
        match=rf"{method} needs {module}: pip install 'compss_train\[{extra}\]'",
    ):
        getattr(trainer.history, method)()


@pytest.mark.parametrize(
    "reach", [lambda h: h["loss"], lambda h: h[:, "loss"], lambda h: h.history, lambda h: h.keys()]
)
def test_what_is_no_list_says_how_to_get_a_column(trainer, reach):
    with pytest.raises((TypeError, AttributeError)) as caught:
        reach(trainer.history)
    hint = str(caught.value).partition("; ")[2]
    for column in re.search(r"of dicts: (.*), or (.*)", hint).groups():
        assert [*eval(column, {"history": trainer.history})] == [
            record["loss"] for record in trainer.history
        ]
    assert pickle.loads(pickle.dumps(trainer.history)) == trainer.history


def test_records_of_online_fits_have_no_epoch_and_belong_to_the_one_before():
    records = [online_record(0), {**online_record(1), "epoch": 1}, online_record(2)]
    assert positions(records, "epoch") == [0.0, 1.0, 1.0]
    assert [row.get("epoch") for row in worker_rows(records)] == [None, None, 1, 1, None, None]
    assert "epoch" not in repr(History(records))
    assert "epoch 1" in repr(History(records[:2]))
