"""The law of means: whatever the batches and workers, a mean is over all targets that count.

It is compared with one mean in double precision.
"""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from compss_train import DistributedTrainer, Gradients, Merge
from tests.helpers.tolerances import sum_error

SAMPLES = 12
LENGTH = 3
RATE = 0.5
CLASSES = 4
IGNORED = -100
ROUNDING = sum_error(np.float32, SAMPLES * LENGTH * CLASSES * 10)


class Tagger(nn.Module):
    """Classifies the items of sequences (n, LENGTH)."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(2, CLASSES)

    def forward(self, x):
        return self.scores(x).movedim(-1, 1)


@st.composite
def tasks(draw):
    """Return x, y of which some targets are ignored, and weights of samples or ``None``."""
    seed = draw(st.integers(0, 99))
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(SAMPLES, LENGTH, 2)).astype(np.float32)
    y = generator.integers(0, CLASSES, (SAMPLES, LENGTH))
    y[generator.random(y.shape) < draw(st.sampled_from([0, 0.4, 0.9]))] = IGNORED
    y[: draw(st.integers(0, SAMPLES - 1))] = IGNORED
    y[-1, 0] = 0  # something counts
    weights = None
    if draw(st.booleans()):
        weights = generator.choice([0.0, 0.25, 1.0, 3.0], SAMPLES)
        weights[-1] = 1.0
    return x, y, weights


def expected(net, x, y, weights):
    """Return the loss, and the parameters after a step of gradient descent, in double precision."""
    net = copy.deepcopy(net).double()
    target = torch.from_numpy(y)
    losses = functional.cross_entropy(
        net(torch.from_numpy(x).double()), target, reduction="none", ignore_index=IGNORED
    )
    counted = (target != IGNORED).double()
    if weights is not None:
        counted *= torch.from_numpy(weights)[:, None]
    loss = (losses * counted).sum() / counted.sum()
    loss.backward()
    stepped = {
        name: (parameter - RATE * parameter.grad).detach()
        for name, parameter in net.named_parameters()
    }
    return loss.item(), stepped


def share_met(net, x, y, weights=None):
    """Return the share of the targets that count whose class the network finds."""
    counted = y != IGNORED
    if weights is not None:
        counted &= weights[:, None] > 0
    predicted = net(torch.from_numpy(x)).argmax(1).numpy()
    return (predicted == y)[counted].mean()


@settings(max_examples=25)
@given(
    task=tasks(),
    batch_size=st.sampled_from([1, 2, 5, 12]),
    workers=st.sampled_from([1, 2, 3]),
    merge=st.sampled_from([Merge(), Merge(kind="commutative")]),
)
def test_steps_and_losses_are_means_over_the_targets_that_count(task, batch_size, workers, merge):
    x, y, weights = task
    torch.manual_seed(0)
    net = Tagger()
    loss, stepped = expected(net, x, y, weights)
    with DistributedTrainer(num_workers=workers, engine="serial", seed=0) as trainer:
        trainer.build(
            net,
            {"optimizer": "sgd", "lr": RATE},
            "cross_entropy",
            "accuracy",
            gradients=Gradients(accumulate=SAMPLES),
        )
        trainer.fit(
            x,
            y,
            num_epochs=1,
            batch_size=batch_size,
            sample_weight=weights,
            shuffle=None,
            merge=merge,
            progress=False,
        )
        record = trainer.history[0]
        assert record["loss"] == pytest.approx(loss, rel=ROUNDING)
        assert record["accuracy"] == pytest.approx(share_met(net, x, y, weights))
        for name, array in trainer.get_parameters().items():
            np.testing.assert_allclose(array, stepped[name], rtol=ROUNDING, atol=ROUNDING)


@settings(max_examples=25)
@given(task=tasks(), batch_size=st.integers(1, SAMPLES), accumulate=st.integers(1, SAMPLES))
def test_steps_of_accumulated_batches_are_of_their_mean(task, batch_size, accumulate):
    """Each step is that of one batch with all samples of the accumulated ones."""
    x, y, weights = task
    torch.manual_seed(0)
    net = Tagger()
    batches = np.array_split(np.arange(SAMPLES), -(-SAMPLES // batch_size))
    looped = copy.deepcopy(net).double()
    for first in range(0, len(batches), accumulate):
        rows = np.concatenate(batches[first : first + accumulate])
        of_rows = None if weights is None else weights[rows]
        counts = (y[rows] != IGNORED) * (1 if of_rows is None else of_rows[:, None])
        if counts.any():
            _, stepped = expected(looped, x[rows], y[rows], of_rows)
            looped.load_state_dict(stepped)
    with DistributedTrainer(num_workers=1, engine="serial", seed=0) as trainer:
        trainer.build(
            net,
            {"optimizer": "sgd", "lr": RATE},
            "cross_entropy",
            gradients=Gradients(accumulate=accumulate),
        )
        trainer.fit(
            x,
            y,
            num_epochs=1,
            batch_size=batch_size,
            sample_weight=weights,
            shuffle=None,
            shuffle_block_data=False,
            progress=False,
        )
        for name, array in trainer.get_parameters().items():
            np.testing.assert_allclose(
                array, looped.state_dict()[name], rtol=10 * ROUNDING, atol=10 * ROUNDING
            )


@settings(max_examples=15)
@given(
    repetitions=st.lists(st.integers(0, 3), min_size=SAMPLES - 1, max_size=SAMPLES - 1),
    workers=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
)
def test_a_sample_of_weight_2_is_one_that_occurs_twice(repetitions, workers, seed):
    generator = np.random.default_rng(seed)
    weights = np.array([*repetitions, 1])
    x = generator.normal(size=(SAMPLES, LENGTH, 2)).astype(np.float32)
    y = generator.integers(0, CLASSES, (SAMPLES, LENGTH))
    torch.manual_seed(0)
    net = Tagger()
    fits = []
    for samples, of_samples in (
        ((x, y), weights),
        ((x.repeat(weights, 0), y.repeat(weights, 0)), None),
    ):
        with DistributedTrainer(num_workers=workers, engine="serial", seed=0) as trainer:
            trainer.build(net, {"optimizer": "sgd", "lr": RATE}, "cross_entropy")
            options = {"sample_weight": of_samples, "batch_size": 100, "progress": False}
            trainer.fit(*samples, num_epochs=1, **options)
            fits.append((trainer.get_parameters(), trainer.history[0]["loss"]))
    (weighted, loss), (repeated, expected_loss) = fits
    assert loss == pytest.approx(expected_loss, rel=ROUNDING)
    for name, array in weighted.items():
        np.testing.assert_allclose(array, repeated[name], rtol=ROUNDING, atol=ROUNDING)


@settings(max_examples=15)
@given(task=tasks(), batch_size=st.sampled_from([1, 5, 12]), workers=st.sampled_from([1, 3]))
def test_evaluations_are_means_over_the_targets_that_count(task, batch_size, workers):
    x, y, _ = task
    torch.manual_seed(0)
    net = Tagger()
    loss, _ = expected(net, x, y, None)
    with DistributedTrainer(num_workers=workers, engine="serial") as trainer:
        trainer.build(net, {"optimizer": "sgd", "lr": RATE}, nn.CrossEntropyLoss(), "accuracy")
        measured = trainer.evaluate(x, y, batch_size=batch_size)
    assert measured["loss"] == pytest.approx(loss, rel=ROUNDING)
    assert measured["accuracy"] == pytest.approx(share_met(net, x, y))


def test_a_fit_in_which_nothing_counts_is_an_error(raises):
    with DistributedTrainer(num_workers=2, engine="serial") as trainer:
        trainer.build(Tagger(), {"optimizer": "sgd", "lr": RATE}, "cross_entropy")
        y = np.full((SAMPLES, LENGTH), IGNORED)
        x = np.zeros((SAMPLES, LENGTH, 2), np.float32)
        with raises(ValueError, "no target of 12 samples counts, so that nothing was trained"):
            trainer.fit(x, y, num_epochs=1, batch_size=2, progress=False)


def test_a_merge_weighs_what_was_trained():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(8, 3)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    x[:2] = np.nan
    torch.manual_seed(0)
    net = nn.Linear(3, 1)

    def fitted(samples, workers, **options):
        with DistributedTrainer(num_workers=workers, engine="serial") as trainer:
            trainer.build(net, {"optimizer": "sgd", "lr": RATE}, "mse", **options)
            trainer.fit(
                x[samples],
                y[samples],
                num_epochs=1,
                batch_size=2,
                shuffle=None,
                shuffle_block_data=False,
                progress=False,
            )
            return trainer.get_parameters()["weight"], trainer.history[0]

    merged, record = fitted(slice(None), 2, gradients=Gradients(on_nan="skip"))
    first, _ = fitted(slice(2, 4), 1)
    second, _ = fitted(slice(4, 8), 1)
    np.testing.assert_allclose(merged, (2 * first + 4 * second) / 6, rtol=1e-6)
    assert record["samples"] == 6
    assert [worker["samples"] for worker in record["workers"]] == [2, 4]


def test_weights_whose_index_has_another_order_are_told():
    x = pd.DataFrame({"a": np.arange(8, dtype=np.float32)})
    y = x["a"] * 2
    weights = pd.Series(np.arange(8.0))
    with DistributedTrainer(num_workers=1, engine="serial") as trainer:
        trainer.build(nn.Linear(1, 1), {"optimizer": "sgd", "lr": 0.0}, "mse")
        with pytest.warns(UserWarning, match="x and sample_weight have the same index in another"):
            trainer.fit(
                x,
                y.to_frame(),
                num_epochs=1,
                batch_size=8,
                sample_weight=weights[::-1],
                progress=False,
            )
