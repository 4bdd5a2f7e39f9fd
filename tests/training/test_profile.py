"""The trace of a worker's round."""

import gzip
import json

import pytest

from compss_train.callbacks import Profile, Report
from tests.helpers.models import assert_same_bits
from tests.helpers.small_fits import X, Y, fit, trainer_of


def spans(path):
    read = gzip.open if path.suffix == ".gz" else open
    with read(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    return sorted({int(each["name"].split()[1]) for each in events if str(each.get("name")).startswith("batch ")})


def test_the_report_names_the_trace_of_a_round(tmp_path, shared_local):
    path, report = tmp_path / "traces" / "a b.json", tmp_path / "report.html"
    traced, plain = trainer_of(shared_local), trainer_of()
    fit(traced, Profile(path), Report(report))
    fit(plain)
    assert_same_bits(traced.get_parameters(), plain.get_parameters())
    first, *_, last = spans(path)
    assert len(spans(path)) == last + 1 - first > 1
    assert 0 < first < traced.snapshot().workers[0].batches > last
    assert "traces/a b.json" in report.read_text()
    assert traced.configuration["fit"]["profile"] == str(path)


def test_another_round_and_worker_of_a_second_fit(tmp_path):
    path = tmp_path / "trace.json.gz"
    trainer = trainer_of()
    fit(trainer, num_epochs=1)
    trained = trainer.snapshot().workers[2].batches
    fit(trainer, Profile(path, round=1, worker=2), num_epochs=1)
    assert spans(path)[0] == trained


def test_a_fit_without_that_round_writes_no_trace(tmp_path):
    with pytest.warns(UserWarning, match="ended before its round 2, or worker 0"):
        fit(trainer_of(), Profile(tmp_path / "trace.json"), num_epochs=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("trace.txt", ValueError, "ends in .json or .json.gz"),
        (3, ValueError, "ends in .json or .json.gz"),
        (f"{__file__}/trace.json", OSError, "not a writable folder"),
    ],
)
def test_what_cannot_be_traced_is_found_before_the_fit(value, error, message):
    with pytest.raises(error, match=message):
        trainer_of().check_fit(X, Y, num_epochs=2, batch_size=9, callbacks=[Profile(value)])
    with pytest.raises(ValueError, match="worker=3\\): there are 3 workers"):
        fit(trainer_of(), Profile("trace.json", worker=3))
    with pytest.raises(ValueError, match="round"):
        Profile("trace.json", round=0)
