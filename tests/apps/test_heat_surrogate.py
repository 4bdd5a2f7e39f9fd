"""The app that learns a surrogate of the heat equation: its methods, reports and exit codes."""

import functools
import json
import re

import numpy as np
import pytest

from tests.apps.conftest import assert_is_a_picture, assert_one_line_error, assert_wrong_option

SMALL = (
    *("--grid", 8, "--steps", 20, "--substeps", 1, "--validation-simulations", 2, "--seeds", 0),
    *("--buffer-size", 40, "--threshold", 10, "--batches", 60, "--record-every", 0.1),
)
OFFLINE = ("--methods", "offline", "--engine", "serial", "--offline-simulations", 3)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def app(here, monkeypatch):
    """Run the app with few panels in its figures: each takes time."""
    import heat_plots

    monkeypatch.setattr(heat_plots, "SHOWN_STEPS", (1, 100))
    return functools.partial(here, "heat_surrogate")


def history(folder, method, seed=0):
    return [
        json.loads(line)
        for line in (folder / f"history-{method}-{seed}.jsonl").read_text().splitlines()
    ]


def rows(text):
    """Return the table's cells by method."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return {cells[0]: cells[1:] for cells in lines if len(cells) == 8 and cells[0] != "method"}


@pytest.mark.slow  # processes that simulate and train, three times
def test_methods_are_compared(forked_processes, app, tmp_path):
    methods = ["FIFO", "Reservoir", "offline"]
    done = app(*SMALL, "--merge-every", 20, "--output", tmp_path, "--methods", *methods)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert list(rows(done.stdout)) == methods
    assert "Reservoir to offline: " in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report["methods"]) == methods
    assert report["equal_batches"] == 60
    for method, (row,) in report["methods"].items():
        assert row["batches"] >= 60
        assert row["batches_per_second"] == row["batches"] / row["seconds"]
        assert row["loss_at_equal_batches"] is not None
        records = history(tmp_path, method)
        assert records[-1]["total_batches"] == row["batches"]
        assert records[-1]["elapsed"] == row["seconds"]
    (seen,) = report["methods"]["Reservoir"]
    (stored,) = report["methods"]["offline"]
    assert stored["simulations"] == seen["simulations"]
    trained = history(tmp_path, "FIFO")[-1]["repetitions"]
    assert trained[1] == sum(trained[1:]) == 600
    for name in ("loss", "repetitions", "fields"):
        assert_is_a_picture(tmp_path / f"{name}.png", 250)


def test_seeds_are_repetitions_with_other_networks_and_simulations(app, tmp_path):
    done = app(*SMALL, *OFFLINE, "--seeds", 4, 5, 4, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    first, second = report["methods"]["offline"]
    assert (first["seed"], second["seed"]) == (4, 5)
    assert first["loss_at_equal_batches"] != second["loss_at_equal_batches"]
    assert re.search(r" \(.* to .*\)$", rows(done.stdout)["offline"][-2])
    assert (
        history(tmp_path, "offline", 4)[0]["val_loss"]
        != history(tmp_path, "offline", 5)[0]["val_loss"]
    )


WRONG = {
    "--grid 0": ("--grid=0", "at least 1"),
    "--offline-simulations -1": ("--offline-simulations=-1",),
    "--lr nan": ("--lr=nan", "above 0"),
    "--record-every 0": ("--record-every=0", "above 0"),
    "--threshold 41": ("threshold=41", "40"),
    "--buffer-size 9 --threshold 5": ("a batch of 10 samples", "capacity 9"),
    "--seeds 0 -1": ("seed=-1",),
    "--methods LIFO": ("'LIFO'", "Reservoir"),
    "--methods offline --engine steam": ("steam", "local"),
    "--engine serial": ("2 tasks", "--methods offline", "--simulators"),
}


def test_what_is_wrong_is_said_in_one_line(app, tmp_path, monkeypatch):
    for options, parts in WRONG.items():
        assert_wrong_option(app(*SMALL, *options.split()), *parts)
    (tmp_path / "file").touch()
    assert_one_line_error(app(*SMALL, *OFFLINE, "--output", tmp_path / "file"), "--output", "file")
    assert_one_line_error(app(*SMALL, *OFFLINE, "--lr", 1e30), "loss")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert_one_line_error(app(*SMALL, *OFFLINE), "pip install matplotlib")


def record(second, loss, **others):
    return {
        "elapsed": second,
        "total_batches": 100 * second,
        "seconds": 1.0,
        "val_loss": loss,
    } | others


@pytest.fixture
def runs(modules):
    """Return invented runs with two seeds: the reservoir is twice as fast."""
    from heat_experiment import Run

    fields = np.linspace(0, 1, 5 * 6 * 6, dtype=np.float32).reshape(5, 6, 6)
    made = []
    for seed in (0, 1):
        slow = [record(second, (1 + seed) / (second + 1)) for second in range(1, 11)]
        fast = [
            {**record(second, 0.5 / second), "total_batches": 200 * second}
            for second in range(1, 6)
        ]
        made += [
            Run("offline", seed, slow, 10, [0] * 9 + [100], fields),
            Run("Reservoir", seed, fast, 44, [3, 200, 150, 20], 0.9 * fields),
        ]
    return made


def test_losses_are_compared_after_equal_batches_and_equal_time(runs):
    import heat_report

    report = heat_report.make(runs)
    offline = report["methods"]["offline"]
    reservoir = report["methods"]["Reservoir"]
    assert (report["equal_batches"], report["equal_seconds"]) == (1000, 5)
    assert [row["loss_at_equal_batches"] for row in offline] == [1 / 11, 2 / 11]
    assert [row["loss_at_equal_seconds"] for row in offline] == [1 / 6, 2 / 6]
    for row in reservoir:
        assert row["loss_at_equal_batches"] == row["loss_at_equal_seconds"] == 0.1
        assert (row["batches_per_second"], row["unique_samples"]) == (200, 370)
    assert offline[0]["batches_per_second"] == 100
    conclusion = heat_report.conclusion(report)
    assert "2.00 (2.00 to 2.00) of the batches/s" in conclusion
    assert (
        "0.83 (0.55 to 1.10) of the validation loss after 1,000 batches, 0.45 (0.30 to 0.60) "
        "after 5.0 s"
    ) in conclusion
    assert rows(heat_report.table(report))["offline"] == [
        *("1,000", "10.0", "100.0", "10", "100"),
        *("1.4e-01 (9.1e-02 to 1.8e-01)", "2.5e-01 (1.7e-01 to 3.3e-01)"),
    ]
