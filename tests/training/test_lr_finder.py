"""The learning-rate finder, and the profile of rounds."""

import gzip
import json
import math

import numpy as np
import pytest
import torch

from compss_train import DivergedError
from compss_train.callbacks import Profile, Report
from compss_train.training.lr_finder import LearningRates, growing_rates
from tests.helpers.models import assert_same_bits, mlp
from tests.helpers.small_fits import PLAIN_SGD, X, Y, fit, trainer_of
from tests.helpers.tolerances import sum_error

# Rounding of the order of the samples in a batch, amplified by a few steps.
TOLERANCE = sum_error(np.float32, len(X)) * 100


def plain_losses(rates):
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    x, y, losses = torch.from_numpy(X), torch.from_numpy(Y), []
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_losses_are_those_of_a_plain_loop_and_parameters_stay(engine):
    trainer = trainer_of(engine, workers=1, net=mlp, optimizer=PLAIN_SGD)
    before = trainer.get_parameters()
    found = trainer.find_lr(X, Y, batch_size=len(X), lowest=1e-3, highest=0.5, steps=12)
    assert_same_bits(trainer.get_parameters(), before)
    np.testing.assert_allclose(found.rates, np.geomspace(1e-3, 0.5, 12))
    np.testing.assert_allclose(found.losses, plain_losses(found.rates), rtol=TOLERANCE)


def test_the_search_ends_where_the_loss_diverges_and_suggests_less():
    trainer = trainer_of(workers=3, net=mlp, optimizer=PLAIN_SGD)
    found = trainer.find_lr(X, Y, batch_size=8, lowest=1e-4, highest=1e6, steps=60)
    assert len(found.losses) == len(found.rates) < 60
    assert not found.losses[-1] <= 4 * min(found.losses[:-1])
    assert 1e-4 < found.suggestion < found.rates[-1]
    again = trainer_of(workers=3, net=mlp, optimizer=PLAIN_SGD)
    assert again.find_lr(X, Y, batch_size=8, lowest=1e-4, highest=1e6, steps=60) == found


def test_the_suggestion_is_where_the_loss_falls_fastest():
    rates = growing_rates(1e-5, 1.0, 101)
    losses = [2.0 - 1.5 / (1 + math.exp(-8 * (math.log10(rate) + 2))) for rate in rates]
    assert 10**-2.3 < LearningRates(rates, losses).suggestion < 10**-1.3  # the moving average lags behind
    with pytest.raises(DivergedError, match="the loss falls at none of the learning rates from 1e-05 to 1"):
        _ = LearningRates(rates, sorted(losses)).suggestion


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lowest": 0}, "lowest=0: give a number above 0"),
        ({"lowest": 1, "highest": 0.1}, "lowest=1 is not below highest=0.1"),
        ({"steps": 1}, "steps=1: give an integer of at least 2"),
        ({"batch_size": 0}, "batch_size=0: give an integer of at least 1"),
    ],
)
def test_ranges_that_are_none_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        trainer_of().find_lr(X, Y, **options)


def test_it_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    found = LearningRates([1e-3, 1e-2, 1e-1], [2.0, 1.0, 1.5])
    found.plot(tmp_path / "rates.png")
    assert (tmp_path / "rates.png").stat().st_size > 1000


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
