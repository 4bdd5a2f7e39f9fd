"""The learning-rate finder: the losses of a plain loop, and the rate that it suggests."""

import math

import numpy as np
import pytest
import torch

from compss_train import DivergedError
from compss_train.training.lr_finder import LearningRates, growing_rates
from tests.helpers.models import assert_same_bits, mlp
from tests.helpers.small_fits import PLAIN_SGD, X, Y, trainer_of
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
