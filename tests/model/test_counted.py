"""A user's loss is a mean over its count: it trains as the loss of torch that it is."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from compss_train import Counted, DistributedTrainer, Gradients
from tests.helpers.tolerances import sum_error

SAMPLES = 12
ROUNDING = sum_error(np.float32, 400)


def masked(output, target):
    """The cross entropy of known targets; NaN if there are none."""
    known = target >= 0
    return functional.cross_entropy(output[known], target[known])


def number_known(target):
    return (target >= 0).sum()


def step(net, batch, context):
    x, y = batch
    return {"loss": masked(net(x), y), "count": int(number_known(y))}


def step_with_loss(net, batch, context):
    x, y = batch
    return context.loss(net(x), y)


WAYS = {
    "Counted": {"loss": Counted(masked, count=number_known)},
    "step": {"training_step": step, "validation_step": step},
    "step with the loss of build": {
        "loss": "cross_entropy",
        "training_step": step_with_loss,
        "validation_step": step_with_loss,
    },
}


def fitted(x, y, workers, batch_size, **options):
    torch.manual_seed(0)
    net = nn.Linear(3, 4)
    with DistributedTrainer(num_workers=workers, engine="serial", seed=0) as trainer:
        trainer.build(
            net,
            {"optimizer": "sgd", "lr": 0.5, "momentum": 0.9},
            gradients=Gradients(accumulate=2),
            **options,
        )
        trainer.fit(
            x, y, num_epochs=2, batch_size=batch_size, validation_data=(x, y), progress=False
        )
        return trainer.get_parameters(), trainer.history


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=8)
@given(
    ignored=st.sets(st.integers(0, SAMPLES - 2)),
    workers=st.sampled_from([1, 2]),
    batch_size=st.sampled_from([1, 2, 5]),
)
def test_a_counted_loss_is_that_of_torch(way, ignored, workers, batch_size):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(SAMPLES, 3)).astype(np.float32)
    y = generator.integers(0, 4, SAMPLES)
    y[sorted(ignored)] = -100
    theirs, expected = fitted(x, y, workers, batch_size, loss="cross_entropy")
    ours, history = fitted(x, y, workers, batch_size, **WAYS[way])
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=ROUNDING, atol=ROUNDING)
    for record, other in zip(history, expected, strict=True):
        for name in ("loss", "val_loss"):
            assert record[name] == pytest.approx(other[name], rel=ROUNDING)


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf"), None, torch.zeros(2)], ids=str)
def test_what_is_no_count_is_an_error(count, raises):
    x = np.ones((4, 3), np.float32)
    y = np.zeros(4, int)
    with raises(ValueError, "the count of a batch's loss is"):
        fitted(x, y, 1, 4, loss=Counted(masked, count=lambda target: count))


def test_what_is_no_function_is_an_error(raises):
    with raises(TypeError, "Counted(function='mse')"):
        Counted("mse", count=len)
    with raises(TypeError, "Counted(count=3)"):
        Counted(masked, count=3)
