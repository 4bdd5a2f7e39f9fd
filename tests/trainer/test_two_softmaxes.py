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
from compss_train.model.losses import LOSSES, are_probabilities, takes_logits
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
@pytest.mark.parametrize("loss", ["cross_entropy", "softmax_cross_entropy", nn.CrossEntropyLoss()], ids=str)
def test_a_fit_warns_once(loss, merge):
    trainer = built(soft(), loss)
    assert len(raised(fit, trainer, **merge)) == 1
    assert len(raised(fit, trainer, **merge)) == 1


def test_the_warning_points_to_the_caller(shared_local):
    with pytest.warns(UserWarning, match=WARNING) as caught:
        fit(built(soft(), "ce", shared_local))
    assert [each.filename for each in caught] == [__file__]


@pytest.mark.parametrize(
    "way_out", [(mlp(), "cross_entropy"), (soft(), "categorical_cross_entropy")], ids=["net", "loss"]
)
def test_both_ways_out_are_silent(way_out):
    assert raised(fit, built(*way_out)) == []


def test_the_same_bits_are_trained():
    hidden = lambda output, target: functional.cross_entropy(output, target)  # noqa: E731  # no known loss of logits
    trainer = built(soft(), functional.cross_entropy)
    with pytest.warns(UserWarning, match=WARNING):
        ours = fit(trainer)
    assert_same_bits(ours, fit(built(soft(), hidden)))


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


def test_other_outputs_are_no_probabilities():
    for output in (torch.rand(4, 3), torch.ones(4), torch.ones(4, 3).long(), torch.empty(0, 3), "text", None):
        assert not are_probabilities(output)
    assert not are_probabilities(torch.full((2, 2), torch.nan))


def test_the_losses_that_take_logits():
    named = {name for name, loss in LOSSES.items() if takes_logits(loss)}
    assert named == {"cross_entropy", "ce", "softmax_cross_entropy"}
    assert takes_logits(functional.cross_entropy)
    assert takes_logits(partial(functional.cross_entropy, label_smoothing=0.1))
    assert takes_logits(nn.CrossEntropyLoss(label_smoothing=0.1))
    assert not takes_logits(nn.NLLLoss())
    assert not takes_logits(nn.MSELoss())
