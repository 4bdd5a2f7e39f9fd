"""fit_online with values that ``set_hyperparameters`` set before: they hold in all its batches."""

import pytest
import torch
from torch import nn

from compss_train import Schedule
from compss_train.callbacks import Callback
from tests.helpers.callbacks import CallAt
from tests.helpers.models import SGD, assert_same_bits, awkward_net, classification
from tests.online.fits import batches_of, build_trainer, fit_online, plain_loop
from tests.online.simulations import simulate_rows


class Penalized:
    """A loss with a weight, in an attribute."""

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, output, target):
        return nn.functional.cross_entropy(output, target) + self.weight * output.pow(2).mean()


def set_values(trainer):
    trainer.set_hyperparameters(lr=0.025, momentum=0.5, attributes={"loss.weight": 0.5})


def expected(x, y):
    def make_optimizer(parameters):
        return torch.optim.SGD(parameters, lr=0.025, momentum=0.5)

    return plain_loop(awkward_net(), make_optimizer, batches_of(7, x, y), Penalized(0.5))


@pytest.mark.parametrize("when", ["before", "at the start"])
@pytest.mark.parametrize("schedule", [None, Schedule(lambda batch: 1.0, unit="batches")])
def test_values_that_were_set_before_are_those_of_a_plain_loop(local, when, schedule):
    x, y = classification(samples=60)
    trainer = build_trainer(local, 1, awkward_net(), SGD, Penalized(0.1), schedule=schedule)
    callbacks = []
    if when == "before":
        set_values(trainer)
    else:
        callbacks = [CallAt("fit_start", set_values)]
    ours = fit_online(trainer, simulate_rows, [(x, y)], callbacks=callbacks)
    assert_same_bits(ours, expected(x, y))
    assert trainer.history[-1]["lr"] == 0.025


class SetsInRounds(Callback):
    def on_round_end(self, trainer, record):
        trainer.set_hyperparameters(lr=0.1)


def test_values_are_not_set_during_an_online_fit(local, raises):
    x, y = classification(samples=60)
    trainer = build_trainer(local, 1, awkward_net(), SGD)
    with raises(RuntimeError, "fit_online"):
        fit_online(trainer, simulate_rows, [(x, y)], callbacks=[SetsInRounds()])
