"""The page of a report has everything of the history, needs no network, and escapes all texts."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compss_train.reports import html as report
from compss_train.reports.curves import (
    MAX_CURVES,
    MAX_POINTS,
    Curve,
    Panel,
    panels,
    training_seconds,
    training_speeds,
)
from compss_train.reports.formatting import duration, number, percent, speed, tick, uniform_format
from compss_train.reports.html import page
from compss_train.reports.plots import chart_of
from compss_train.reports.timeline import KINDS, round_rows, totals, worker_intervals
from tests.helpers.cases import slow
from tests.helpers.histories import histories, online_record, steady_run
from tests.reports.page_reader import PageReader, value_of

CONFIGURATION = {
    "trainer": {"num_workers": 2, "engine": "local"},
    "build": {
        "net": "Net(\n  (0): Linear(2, 3)\n)",
        "parameters": 12345,
        "optimizer": {"arguments": {"lr": 0.05}},
    },
    "fit": {
        "method": "fit",
        "num_epochs": 3,
        "buffer": None,
        "callbacks": ["Report"],
        "started": 1000.0,
    },
    "versions": {"python": "3.11"},
    "machine": {"host": "node7"},
}
ROUNDS = -1
"""The table of rounds is the last one."""


def heading(name):
    return f"{name} (s)" if name in KINDS else name.replace("_per_second", "/s").replace("_", " ")


def assert_shows(text, value):
    """Assert that a cell shows a value, numbers with at least 3 significant digits."""
    if isinstance(value, list):
        for part, item in zip(text.split(", "), value, strict=True):
            assert_shows(part, item)
    elif isinstance(value, str):
        assert text == value
    elif math.isnan(value):
        assert text == "NaN"
    else:
        assert value_of(text) == pytest.approx(value, rel=6e-3, abs=1e-9)


def assert_all_numbers_shown(history, reader):
    rows = reader.rows(ROUNDS)
    assert len(rows) == len(history)
    shown = round_rows(history)
    for record, seconds, rate in zip(
        shown, training_seconds(history), training_speeds(history), strict=True
    ):
        record.update(seconds=seconds, samples_per_second=rate)
    for cells, record in zip(rows, shown, strict=True):
        for name, value in record.items():
            if name in ("fit_started", "merge") and len({row.get(name) for row in shown}) == 1:
                assert heading(name) not in cells
                assert [text for text in reader.texts if f"{heading(name)}: " in text]
            elif name in ("ended", "fit_started"):
                assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", cells[heading(name)])
            elif name not in KINDS or value > 1e-9:
                assert_shows(cells[heading(name)], value)


@settings(max_examples=3)
@given(histories())
@example(steady_run(30, 3))
@example(
    [
        online_record(),
        online_record(1, math.nan, skipped=["a"]),
        online_record(2, 1e-9, repetitions=[0, 3]),
    ]
)
@example([{**record, "loss": math.inf} for record in steady_run(2, 1)])
@example(
    [
        {**record, "loss": 1e308 * (-1) ** record["round"], "lr": 5e-324}
        for record in steady_run(3, 1)
    ]
)
@example([{**steady_run(1, 1)[0], "seconds": 0.0, "samples_per_second": 0.0, "workers": []}])
@example([])
def test_pages_show_every_number_of_any_history(history):
    reader = PageReader(page(history, CONFIGURATION))
    if history:
        assert_all_numbers_shown(history, reader)
    else:
        assert "No round has ended yet." in reader.texts


def test_pages_show_the_configuration():
    texts = PageReader(page([], CONFIGURATION, "running")).texts
    shown = (
        "Training of Net",
        "running",
        "num_workers",
        "12,345",
        "lr",
        "0.05",
        ("Net(\n  (0): Linear(2, 3)\n)"),
    )
    assert {*shown} <= {*texts}
    assert "2 workers · engine local · on node7" in texts
    assert "1970-01-01 00:16:40 UTC" in texts


def test_the_table_of_workers_has_sums():
    history = steady_run(12, 3)
    rows = PageReader(page(history, {})).rows(0)
    for worker, cells in enumerate(rows):
        own = [record["workers"][worker] for record in history]
        assert (cells["worker"], cells["rounds"], cells["samples"]) == (str(worker), "12", "1,200")
        assert value_of(cells["training (s)"]) == pytest.approx(
            sum(each["seconds"] for each in own), rel=1e-3
        )


def test_a_page_is_self_contained():
    text = page(steady_run(5, 2), CONFIGURATION, "running", refresh=True)
    reader = PageReader(text)
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r"@import|url\((?!#)|\bfetch\(|XMLHttpRequest|\bimport\b", text)
    assert [
        link for _, each in reader.elements for name in ("src", "href") if (link := each.get(name))
    ] == ["data:,"]
    assert [each for each in reader.attributes("meta") if each.get("http-equiv") == "refresh"]
    assert "refresh" not in page(steady_run(5, 2), CONFIGURATION, "complete")


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)


@given(TEXTS, TEXTS)
def test_texts_and_attributes_are_escaped(name, text):
    reader = PageReader(page([], {"fit": {name: text}}, text))
    assert {name, text} <= {*reader.texts}
    assert reader.attributes("span")[0] == {"class": f"status {re.split('[: ]', text)[0]}"}


HOSTILE = """</script></style><script>alert('1')</script><img src=x onerror="alert(2)">&lt;"'`"""


def test_malicious_names_are_escaped():
    history = [
        {**record, HOSTILE: 0.25, "recall" + HOSTILE: [0.5] * 12, "merge": HOSTILE}
        for record in steady_run(3, 2)
    ]
    for record in history:
        record["skipped"] = [HOSTILE]
        record["workers"][0][HOSTILE] = 1.0
    parts = {"build": {"net": HOSTILE}, "machine": {"host": HOSTILE}}
    configuration = {HOSTILE: {HOSTILE: HOSTILE, "list": [HOSTILE]}, **parts}
    hostile = PageReader(page(history, configuration, HOSTILE))
    plain = PageReader(
        page(json.loads(json.dumps(history).replace(json.dumps(HOSTILE)[1:-1], "name")), {}, "name")
    )
    assert len(hostile.attributes("script")) == len(plain.attributes("script"))
    assert not hostile.attributes("img")
    assert not [
        name for _, attributes in hostile.elements for name in attributes if name.startswith("on")
    ]
    assert {HOSTILE, f"on {HOSTILE}"} & {
        part for text in hostile.texts for part in text.split(" · ")
    } != set()
    assert HOSTILE in hostile.tables[ROUNDS][0]
    assert HOSTILE in {curve["name"] for values in hostile.values for curve in values["curves"]}


def drawn(reader):
    """Return the seconds that each lane shows of each kind, by its outlines of three, two and one
    of them.
    """
    (whole,) = [
        float(each["data-seconds"]) for each in reader.attributes("div") if "data-seconds" in each
    ]
    shown = {}
    lane = None
    for tag, attributes in reader.elements:
        if tag == "g" and attributes.get("class") == "lane":
            lane = shown.setdefault(attributes["data-name"], [])
        elif tag == "path" and attributes.get("class") in KINDS:
            lane.append(bars(attributes["d"]))
    for name, outlines in shown.items():
        thickness = max(height for _, height in outlines[0])
        areas = [sum(length * height for length, height in each) / thickness for each in outlines]
        spent = [
            (area - front) / 100_000 * whole
            for area, front in zip(areas, [*areas[1:], 0], strict=True)
        ]
        shown[name] = dict(zip(reversed(KINDS), spent, strict=True))
    return shown


def bars(outline):
    """Return the lengths and heights of adjacent bars."""
    start, base = map(float, re.match(r"M(\d+) ([\d.]+)", outline).groups())
    steps = re.findall(r"V([\d.]+)H(\d+)", outline)
    edges = [start, *(float(edge) for _, edge in steps)]
    return [
        (stop - begin, base - float(top))
        for begin, stop, (top, _) in zip(edges, edges[1:], steps, strict=False)
    ]


@pytest.mark.parametrize(
    ("rounds", "workers", "merge", "second"),
    [
        (20, 5, "synchronous", "worker 1"),
        (20, 5, "commutative", "worker 1"),
        *slow((400, 20, "synchronous", "worker 1")),
        (30, 129, "synchronous", "workers 3-5"),
    ],
)
def test_lanes_show_the_mean_seconds_of_their_workers(rounds, workers, merge, second):
    history = steady_run(rounds, workers, merge)
    size = 1 if workers <= 64 else 3
    seconds = totals(worker_intervals(history), lambda interval: interval.worker // size)
    shown = drawn(PageReader(page(history, {})))
    assert list(shown)[1] == second
    assert len(shown) == len(seconds)
    for lane, found in enumerate(shown.values()):
        expected = {kind: spent / size for kind, spent in seconds[lane].items()}
        assert found == pytest.approx(expected, rel=0.02 if size == 1 else 0.05, abs=0.02)


@pytest.mark.parametrize(
    ("rounds", "workers", "most"),
    [(200, 16, 350_000), *slow((2000, 1, 450_000)), (90, 64, 450_000)],
)
def test_reports_of_long_runs_stay_small(rounds, workers, most):
    text = page(steady_run(rounds, workers), CONFIGURATION)
    assert len(text) < most
    rows = PageReader(text).rows(ROUNDS)
    assert (rows[0]["round"], rows[-1]["round"]) == ("0", f"{rounds - 1:,}")
    assert len(rows) <= 401


def test_reports_are_written_atomically(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    report.write(path, steady_run(2, 2))
    before = path.read_text()
    assert PageReader(before).rows(ROUNDS)

    def cut_off(self, text, **_):
        with self.open("w") as file:
            file.write(text[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", cut_off)
    with pytest.raises(OSError, match="No space left"):
        report.write(path, steady_run(3, 2))
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        report.write(tmp_path / "nowhere" / "report.html", [])


FLOATS = st.floats(-1e307, 1e307)


def curve_of(ys):
    return Curve("loss", [float(x) for x in range(len(ys))], ys)


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


@given(st.lists(FLOATS | st.just(math.nan), min_size=1, max_size=4), st.integers(1, 400))
def test_downsampled_curves_keep_their_extremes(values, times):
    curve = curve_of(values * times).drawable()
    kept = curve.downsampled()
    assert len(kept.xs) == len(kept.ys) <= MAX_POINTS + 1
    for extreme in (np.fmin, np.fmax):
        assert str(extreme.reduce(kept.ys)) == str(extreme.reduce(curve.ys))
    assert kept.xs == sorted(kept.xs)
    assert all(str(curve.ys[int(x)]) == str(y) for x, y in zip(kept.xs, kept.ys, strict=True))


def test_many_curves_are_summarized_by_a_band():
    history = [
        {
            **record,
            "recall": [n + 10.0 * number for n in range(MAX_CURVES + 2)],
            "val_recall": [1.0 + number],
        }
        for number, record in enumerate(steady_run(2, 1))
    ]
    (panel,) = [panel for panel in panels(history) if panel.title == "recall"]
    assert [(curve.name, curve.ys, curve.band) for curve in panel.curves] == [
        ("recall, median", [4.5, 14.5], ([0.0, 10.0], [9.0, 19.0])),
        ("val_recall[0]", [1.0, 2.0], []),
    ]


def test_shares_and_scores_have_a_linear_axis_even_over_decades():
    history = steady_run(6, 2)
    for each, record in enumerate(history):
        record.update(loss=10.0**-each, accuracy=1 - 0.999 * 0.1**each)
        for own in record["workers"]:
            own.update(started=10.0 * each, seconds=9.99)
        record["ended"] = 10.0 * each + 10
    notes = {panel.title: chart_of(panel)["note"] for panel in panels(history)}
    assert [notes[title] for title in ("loss", "accuracy", "the workers' time (%)")] == [
        "logarithmic",
        None,
        None,
    ]
    (shares,) = [chart_of(panel)["picture"] for panel in panels(history) if panel.stacked]
    assert {"0", "20", "40", "60", "80", "100"} <= {*re.findall(r">(\d+)</text>", shares)}


def test_measures_are_the_first_columns_of_rounds():
    history = [{**online_record(number), "val_loss": 0.5} for number in range(2)]
    assert PageReader(page(history, {})).tables[ROUNDS][0][:4] == [
        "round",
        "loss",
        "val loss",
        "samples",
    ]


def test_the_table_of_rounds_agrees_with_the_chart_and_says_once_what_is_the_same():
    history = steady_run(3, 2)
    for record in history:
        record["fit_started"] = history[0]["workers"][0]["started"] - 50
    history[0]["seconds"] += 50
    reader = PageReader(page(history, {}))
    (chart,) = [
        values["curves"][0]["y"]
        for values in reader.values
        if values["curves"][0]["name"] == "samples_per_second"
    ]
    rows = reader.rows(ROUNDS)
    assert [value_of(row["samples/s"]) for row in rows] == pytest.approx(chart, rel=0.01)
    assert not {"fit started", "merge"} & rows[0].keys()
    (note,) = [text for text in reader.texts if "merge: synchronous" in text]
    assert "fit started: " in note
    assert "seconds are without start-up" in note


def test_labels_of_axes_have_all_their_digits():
    texts = re.findall(
        r">([\d.]+)</text>", chart_of(Panel("accuracy", [curve_of([0.9805, 0.999])]))["picture"]
    )
    assert {"0.985", "0.99", "0.995"} <= {*texts}


def test_formats_of_numbers_times_and_shares():
    assert [
        number(v) for v in (0.12345, 12345, 12345.678, 0.0, 100.0, math.nan, 1e-7, True, "x", -0.5)
    ] == [*("0.1235", "12,345", "12,346", "0", "100", "NaN", "1.000e-07", "True", "x", "-0.5")]
    assert [uniform_format([23.4, 0.12])(v) for v in (23.4, 0.12, 0.0)] == [
        "23.400",
        "0.120",
        "0.000",
    ]
    assert [duration(v) for v in (0.0123, 5, 65, 7265)] == [
        "12 ms",
        "5.0 s",
        "1 min 05 s",
        ("2 h 01 min"),
    ]
    assert [percent(v) for v in (0, 0.012, 0.5, 1)] == ["0%", "1.2%", "50%", "100%"]
    assert [tick(v) for v in (0.0, 0.5, 2000, 20000, 3e6, 1e-5)] == [
        "0",
        "0.5",
        "2000",
        "20k",
        "3M",
        "1e-05",
    ]
    assert [speed(v) for v in (1234567, 12345.6, 99.5)] == ["1.23M", "12,346", "99.5"]
