"""Probabilities as the outputs of a network whose loss takes logits: one warning a fit, and the same training."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from compss_train import BufferSpec, Gradients, Merge, Simulations
from compss_train.engines import Resources
from compss_train.model.losses import are_probabilities
from tests.helpers.models import SGD, assert_same_bits, blocked, classification, mlp
from tests.helpers.small_fits import trainer_of
from tests.online.simulations import simulate_rows

X, Y = blocked(*classification(), 4)
WARNING = "remove the softmax at the end of the network, or build with loss='categorical_cross_entropy'"
MERGES = [
    {"merge": "synchronous"},
    {"merge": Merge("synchronous", every=2, unit="batches"), "buffer": BufferSpec("FIFO", 32)},
    {"merge": "commutative"},
    {"merge": "parameter_server"},
]


def soft() -> nn.Module:
    return nn.Sequential(mlp(), nn.Softmax(dim=1))


def built(net, loss, engine="serial", **options):
    return trainer_of(engine, 2, seed=3, net=lambda: net, optimizer=SGD, loss=loss, metric=None, **options)


def fit(trainer, **options):
    return trainer.fit(X, Y, num_epochs=3, batch_size=5, progress=False, **options)


def raised(function, *args, **options):
    """Return the messages of the warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **options)
    return [str(each.message) for each in caught if WARNING in str(each.message)]


@pytest.mark.parametrize("merge", MERGES, ids=str)
def test_a_fit_warns_once(merge):
    trainer = built(soft(), "cross_entropy")
    assert len(raised(fit, trainer, **merge)) == 1
    assert len(raised(fit, trainer, **merge)) == 1


def untold(output, target):
    return functional.cross_entropy(output, target)


def test_losses_of_logits_warn_and_train_to_the_same_bits():
    expected = fit(built(soft(), untold))  # no known loss of logits
    for loss in (
        *("cross_entropy", "ce", "softmax_cross_entropy", functional.cross_entropy, nn.CrossEntropyLoss()),
        partial(functional.cross_entropy, label_smoothing=0.0),
        nn.CrossEntropyLoss(label_smoothing=0.0),
    ):
        trainer = built(soft(), loss)
        assert len(raised(fit, trainer)) == 1
        assert_same_bits(trainer.get_parameters(), expected)


def test_the_warning_points_to_the_caller(shared_local):
    with pytest.warns(UserWarning, match=WARNING) as caught:
        fit(built(soft(), "ce", shared_local))
    assert [each.filename for each in caught] == [__file__]


@pytest.mark.parametrize(
    "way_out",
    [(mlp(), "cross_entropy"), (soft(), "categorical_cross_entropy"), (soft(), nn.NLLLoss()), (soft(), untold)],
    ids=["net", "loss", "NLL", "unknown"],
)
def test_both_ways_out_are_silent(way_out):
    assert raised(fit, built(*way_out)) == []


def test_check_fit_warns_as_a_fit_does():
    check = partial(built(soft(), "cross_entropy").check_fit, X, Y, num_epochs=1, batch_size=5)
    assert len(raised(check)) == 1
    assert raised(partial(built(mlp(), "cross_entropy").check_fit, X, Y, num_epochs=1, batch_size=5)) == []


def test_the_first_batch_that_is_not_skipped_is_checked():
    x = X.collect().copy()
    x[:5] = np.nan
    trainer = trainer_of(workers=1, seed=3, net=soft, optimizer=SGD, gradients=Gradients(on_nan="skip"))
    options = {"shuffle": None, "shuffle_block_data": False, "progress": False}
    assert len(raised(trainer.fit, x, Y.collect(), num_epochs=1, batch_size=5, **options)) == 1
    assert trainer.history[0]["skipped_batches"] == 1


def test_an_online_fit_warns_once(shared_local):
    shared_local.reserve([Resources()] * 4)
    trainer = trainer_of(shared_local, 2, seed=3, net=soft)
    online = partial(
        trainer.fit_online,
        Simulations(simulate_rows, [classification(40), classification(40)]),
        buffer=BufferSpec("FIFO", 16),
        batch_size=5,
        merge=Merge(every=2),
        record_every=0.01,
        progress=False,
    )
    assert len(raised(online)) == 1


@given(
    st.integers(1, 50), st.integers(2, 300), st.floats(-5, 5), st.sampled_from(["float16", "bfloat16", "float32"])
)
def test_every_softmax_gives_probabilities_and_its_logits_are_none(samples, classes, scale, dtype):
    logits = torch.randn(samples, classes, generator=torch.Generator().manual_seed(samples)) * 10**scale
    rounded = logits.softmax(dim=1).to(getattr(torch, dtype))
    assert are_probabilities(rounded)
    assert are_probabilities(rounded[:, :, None].expand(-1, -1, 4))
    assert not are_probabilities(rounded * 1.1)
    assert not are_probabilities(rounded - rounded.max() / 2)
    assert not are_probabilities(torch.full_like(rounded, torch.nan))
    for other in (torch.rand(4, 3), torch.ones(4), torch.ones(4, 3).long(), torch.empty(0, 3), "text", None):
        assert not are_probabilities(other)
