"""The law of weights: a sample with weight n counts as n such samples, one with weight 0 as none."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from compss_train.model.loss_weights import TrainingLoss, check_weightable
from compss_train.model.losses import LOSSES
from tests.helpers.models import named


def of_samples(output, target, weight=None):
    losses = (output - target).abs().flatten(1).sum(dim=1)
    return losses.mean() if weight is None else (losses * weight).sum() / weight.sum()


def hinge(output, target, reduction="mean"):
    losses = (1 - output * target).clamp(min=0)
    return losses.mean() if reduction == "mean" else losses


class OfSamples(nn.Module):
    def forward(self, output, target, *, weight=None):
        return of_samples(output, target, weight)


class Huber(nn.Module):
    reduction = "mean"

    def forward(self, output, target):
        return functional.huber_loss(output, target, reduction=self.reduction)


CLASSIFYING = [
    *map(LOSSES.get, ("cross_entropy", "categorical_cross_entropy")),
    nn.CrossEntropyLoss(),
    nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=1),
    nn.NLLLoss(),
    functional.cross_entropy,
    partial(functional.cross_entropy, label_smoothing=0.1),
]
OF_NUMBERS = [
    *map(LOSSES.get, ("mse", "dice")),
    nn.MSELoss(),
    nn.L1Loss(),
    nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)),
    functional.smooth_l1_loss,
    *(hinge, Huber()),
]
TAKE_WEIGHTS = [of_samples, OfSamples()]
PROBABILITIES = LOSSES["binary_cross_entropy"]


def data(kind, samples):
    """Return outputs, which need gradients, and targets."""
    outputs = torch.rand(samples, 3, 2, requires_grad=True)
    if kind == "classes":
        return outputs, torch.randint(3, (samples, 2))
    if kind == "one class":
        return outputs[:, :, 0], torch.randint(3, (samples, 1)).squeeze(1)
    return outputs, torch.rand(samples, 3, 2)


CASES = [
    *((kind, loss) for kind in ("classes", "one class") for loss in CLASSIFYING),
    *(("numbers", loss) for loss in [*OF_NUMBERS, *TAKE_WEIGHTS]),
    ("numbers", PROBABILITIES),
]


@pytest.mark.parametrize(("kind", "loss"), CASES, ids=named)
@settings(max_examples=8)
@given(weights=st.lists(st.integers(0, 3), min_size=1, max_size=8), column=st.booleans(), seed=st.integers(0, 99))
def test_a_weight_is_the_number_of_times_a_sample_counts(kind, loss, weights, column, seed):
    torch.manual_seed(seed)
    check_weightable(loss)
    output, target = data(kind, len(weights))
    weight = torch.tensor(weights)
    ours = TrainingLoss(loss)(output, target, weight[:, None] if column else weight)
    if not weight.any():
        if loss not in TAKE_WEIGHTS:  # which decide for themselves
            assert ours == 0
            assert not any(gradient.any() for gradient in torch.autograd.grad(ours, output))
        return
    often = torch.arange(len(weights)).repeat_interleave(weight)
    theirs = loss(output[often], target[often])
    if torch.isnan(theirs):  # all targets are ignored
        assert ours == 0
        return
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(value, output)[0] for value in (ours, theirs)))


@pytest.mark.parametrize(("kind", "loss"), CASES, ids=named)
def test_without_weights_it_is_the_loss_itself(kind, loss):
    output, target = data(kind, 5)
    ours, theirs = TrainingLoss(loss)(output, target), loss(output, target)
    assert torch.equal(ours, theirs)
    assert torch.equal(*(torch.autograd.grad(value, output)[0] for value in (ours, theirs)))


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_the_scale_of_weights_does_not_matter(scale):
    output, target = data("numbers", 4)
    weight = torch.tensor([1.0, 2.0, 0.0, 4.0], dtype=torch.float64)
    losses = [TrainingLoss(LOSSES["mse"])(output, target, factor * weight) for factor in (1.0, scale)]
    torch.testing.assert_close(*losses)


def test_half_precision_is_weighted_in_full_precision():
    output, target = torch.tensor([[1000.0], [1.0]], dtype=torch.bfloat16), torch.tensor([[1001.5], [0.0]])
    ours = TrainingLoss(LOSSES["mse"])(output, target, torch.tensor([2.0, 1.0]))
    assert ours.item() == pytest.approx((2 * 2.25 + 1) / 3)
    assert TrainingLoss(LOSSES["mse"])(output.double(), target.double(), torch.ones(2)).dtype == torch.float64


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.tensor([1.0, -1.0]), "a sample weight is negative, NaN or infinite"),
        (torch.tensor([1.0, float("nan")]), "a sample weight is negative, NaN or infinite"),
        (torch.tensor([1.0, float("inf")]), "a sample weight is negative, NaN or infinite"),
        (torch.ones(3), r"the weights of 2 samples have shape \(3,\); give one number for each sample"),
        (torch.ones(1, 2), r"the weights of 2 samples have shape \(1, 2\)"),
    ],
)
def test_invalid_sample_weights_are_errors(weight, message):
    with pytest.raises(ValueError, match=message):
        TrainingLoss(LOSSES["mse"])(torch.rand(2, 3), torch.rand(2, 3), weight)


def mean_only(output, target):
    return (output - target).mean()


def third(output, target, scale=2.0):
    return scale * (output - target).mean()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (mean_only, "the loss mean_only returns one number for a batch and takes no weights"),
        (third, "the loss third returns one number for a batch"),
        (partial(mean_only), "the loss partial returns one number for a batch"),
        (torch.dist, "returns one number for a batch"),
        (nn.PairwiseDistance(), "the loss PairwiseDistance returns one number"),
        (nn.MSELoss(reduction="sum"), "the loss MSELoss has reduction='sum'; a weighted loss must have 'mean'"),
        (partial(functional.mse_loss, reduction="sum"), "has reduction='sum'"),
        (nn.CrossEntropyLoss(torch.ones(3)), "the loss CrossEntropyLoss has its own weights"),
        (partial(functional.cross_entropy, weight=torch.ones(3)), "has its own weights"),
    ],
    ids=named,
)
def test_losses_that_do_not_support_weights_are_errors(loss, message):
    with pytest.raises(ValueError, match=message):
        check_weightable(loss)


def test_a_loss_that_ignores_reduction_none_is_an_error():
    def stubborn(output, target, reduction="mean"):
        return (output - target).mean()

    with pytest.raises(ValueError, match=r"reduction='none' has shape \(\) for 2 samples"):
        TrainingLoss(stubborn)(torch.rand(2, 3), torch.rand(2, 3), torch.ones(2))
