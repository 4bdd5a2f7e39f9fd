"""The callback that writes the report."""

import math
from contextlib import suppress

import pytest

from compss_train.callbacks import Callback, Report
from tests.helpers.callbacks import StopAfter
from tests.helpers.models import SGD, mlp
from tests.helpers.small_fits import fit, trainer_of
from tests.reports.page_reader import PageReader


@pytest.fixture
def trainer():
    return trainer_of(net=mlp, optimizer=SGD)


class Reading(Callback):
    """Reads the report after each round."""

    def __init__(self, path):
        self.path = path
        self.seen = []

    def on_fit_start(self, trainer, total_samples):
        self.seen.append(self._read())

    def on_round_end(self, trainer, record):
        self.seen.append(self._read())

    def _read(self):
        text = self.path.read_text()
        rounds = len(PageReader(text).rows(-1)) if PageReader(text).tables else 0
        return rounds, ">running<" in text, 'http-equiv="refresh"' in text


@pytest.mark.parametrize(
    ("every", "seen"),
    [(None, [(0, False)] * 5), (1, [(n, True) for n in range(5)]), (2, [(n, True) for n in (0, 0, 2, 2, 4)])],
)
def test_reports_are_written_during_a_fit_and_at_its_end(trainer, tmp_path, monkeypatch, every, seen):
    monkeypatch.setattr("compss_train.callbacks.loggers.MIN_SECONDS", 0.0)
    monkeypatch.setattr("compss_train.callbacks.loggers.MAX_SHARE", math.inf)
    path = tmp_path / "made" / "report.html"
    reading = Reading(path)
    fit(trainer, Report(path, every), reading, num_epochs=4)
    assert reading.seen == [(rounds, True, refreshed) for rounds, refreshed in seen]
    assert reading._read() == (4, False, False)
    text = path.read_text()
    assert ">complete<" in text
    assert all(part in text for part in ("Training of Sequential", "num_epochs", "torch.optim.sgd.SGD", "Report"))
    fit(trainer, Report(path, every), num_epochs=4)
    assert len(PageReader(path.read_text()).rows(-1)) == 8
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("name", "value"), [("MAX_SHARE", 1e-9), ("MIN_SECONDS", 1e9)])
def test_reports_that_take_too_much_time_are_skipped(trainer, tmp_path, monkeypatch, name, value):
    monkeypatch.setattr("compss_train.callbacks.loggers.MAX_SHARE", math.inf)
    monkeypatch.setattr("compss_train.callbacks.loggers.MIN_SECONDS", 0.0)
    monkeypatch.setattr(f"compss_train.callbacks.loggers.{name}", value)
    reading = Reading(tmp_path / "report.html")
    fit(trainer, Report(reading.path, every=1), reading, num_epochs=4)
    assert reading.seen == [(0, True, True)] * 5
    assert reading._read() == (4, False, False)


class Failing(Callback):
    def on_round_end(self, trainer, record):
        if record["round"] == 2:
            raise RuntimeError("enough of <this>\nand that")


@pytest.mark.parametrize(
    ("ending", "why", "rounds"),
    [(StopAfter(0), "stopped: enough", 1), (Failing(), "failed: RuntimeError: enough of <this>", 3)],
)
def test_reports_show_why_a_fit_ended_early(trainer, tmp_path, ending, why, rounds):
    with suppress(RuntimeError):
        fit(trainer, Report(tmp_path / "report.html"), ending)
    reader = PageReader((tmp_path / "report.html").read_text())
    assert why in reader.texts
    assert len(reader.rows(-1)) == rounds


def test_unwritable_files_are_errors_before_training(trainer, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        fit(trainer, Report(tmp_path / "file" / "report.html"))
    assert trainer.history == []
    with pytest.raises(ValueError, match="every=0: give an integer of at least 1"):
        Report(tmp_path / "report.html", every=0)
