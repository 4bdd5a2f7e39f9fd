"""The laws of weights: a sample with weight n counts as n such samples; class weights are those of
torch.
"""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from compss_train.model.class_weights import check_class_weight, class_weights
from compss_train.model.losses import LOSSES
from compss_train.model.training_loss import TrainingLoss, check_weightable
from tests.helpers.models import named
from tests.helpers.tolerances import sum_error

# At most 8 samples that count 3 times, each with 6 elements, and a few roundings of each element.
ROUNDING = sum_error(np.float32, 8 * 3 * 6 + 10)

assert_close = partial(torch.testing.assert_close, rtol=ROUNDING, atol=ROUNDING)


def hinge(output, target, reduction="mean"):
    losses = (1 - output * target).clamp(min=0)
    return losses.mean() if reduction == "mean" else losses


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
    *(("numbers", loss) for loss in OF_NUMBERS),
    ("numbers", PROBABILITIES),
]


@pytest.mark.parametrize(("kind", "loss"), CASES, ids=named)
@settings(max_examples=8)
@given(
    weights=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    column=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_weight_is_the_number_of_times_a_sample_counts(kind, loss, weights, column, seed):
    torch.manual_seed(seed)
    check_weightable(loss)
    output, target = data(kind, len(weights))
    weight = torch.tensor(weights)
    ours = TrainingLoss(loss)(output, target, weight[:, None] if column else weight)
    if not weight.any():
        assert ours == 0
        assert not any(gradient.any() for gradient in torch.autograd.grad(ours, output))
        return
    often = torch.arange(len(weights)).repeat_interleave(weight)
    theirs = loss(output[often], target[often])
    if torch.isnan(theirs):  # all targets are ignored
        assert ours == 0
        return
    assert_close(ours, theirs)
    assert_close(*(torch.autograd.grad(value, output)[0] for value in (ours, theirs)))


@pytest.mark.parametrize(("kind", "loss"), CASES, ids=named)
def test_without_weights_it_is_the_loss_itself(kind, loss):
    output, target = data(kind, 5)
    ours = TrainingLoss(loss)(output, target)
    theirs = loss(output, target)
    assert torch.equal(ours, theirs)
    assert torch.equal(*(torch.autograd.grad(value, output)[0] for value in (ours, theirs)))


@pytest.mark.parametrize(
    ("weight", "name"),
    [
        (torch.tensor([1.0, -1.0]), "one is negative, NaN or infinite"),
        (torch.tensor([1.0, float("nan")]), "one is negative, NaN or infinite"),
        (torch.tensor([1.0, float("inf")]), "one is negative, NaN or infinite"),
        (torch.ones(3), "the weights of 2 samples have shape (3,),"),
        (torch.ones(1, 2), "the weights of 2 samples have shape (1, 2)"),
    ],
)
def test_invalid_sample_weights_are_errors(weight, name, raises):
    with raises(ValueError, name):
        TrainingLoss(LOSSES["mse"])(torch.rand(2, 3), torch.rand(2, 3), weight)


def mean_only(output, target):
    return (output - target).mean()


def third(output, target, scale=2.0):
    return scale * (output - target).mean()


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (mean_only, "the loss mean_only returns one number for a batch, and weights and samplers"),
        (third, "the loss third returns one number for a batch"),
        (partial(mean_only), "the loss partial returns one number for a batch"),
        (torch.dist, "returns one number for a batch"),
        (nn.PairwiseDistance(), "the loss PairwiseDistance returns one number"),
        (
            nn.MSELoss(reduction="sum"),
            "the loss MSELoss has reduction='sum'; a weighted loss must have 'mean'",
        ),
        (partial(functional.mse_loss, reduction="sum"), "has reduction='sum'"),
        (nn.CrossEntropyLoss(torch.ones(3)), "the loss CrossEntropyLoss has its own weights"),
        (partial(functional.cross_entropy, weight=torch.ones(3)), "has its own weights"),
    ],
    ids=named,
)
def test_losses_that_do_not_support_weights_are_errors(loss, name, raises):
    with raises(ValueError, name):
        check_weightable(loss)


def test_a_loss_that_ignores_reduction_none_is_an_error():
    def stubborn(output, target, reduction="mean"):
        return (output - target).mean()

    with pytest.raises(
        ValueError, match=r"reduction='none' returned a tensor of shape \(\) for 2 samples"
    ):
        TrainingLoss(stubborn)(torch.rand(2, 3), torch.rand(2, 3), torch.ones(2))


CLASSES = (0.5, 3.0, 0.0)
WEIGHTS = torch.tensor(CLASSES, dtype=torch.float64)


@given(
    samples=st.integers(1, 6),
    pixels=st.sampled_from([(), (1,), (4,), (2, 3)]),
    ignored=st.sampled_from([-100, 1, 255]),
    seed=st.integers(0, 99),
)
def test_class_indices_are_weighted_as_in_torch(samples, pixels, ignored, seed):
    torch.manual_seed(seed)
    output = torch.randn(samples, 3, *pixels)
    target = torch.randint(3, (samples, *pixels))
    target[torch.rand(target.shape) < 0.2] = ignored
    theirs = nn.CrossEntropyLoss(WEIGHTS.float(), ignore_index=ignored)(output, target)
    ours = TrainingLoss(nn.CrossEntropyLoss(ignore_index=ignored), CLASSES)(output, target)
    assert_close(ours, theirs.nan_to_num())  # where all that counts has no weight


@pytest.mark.parametrize("name", ["cross_entropy", "categorical_cross_entropy"])
@pytest.mark.parametrize("form", ["indices", "column", "bytes", "one-hot"])
def test_named_losses_and_every_form_of_targets(name, form):
    torch.manual_seed(0)
    logits = torch.randn(9, 3)
    target = torch.arange(9) % 3
    expected = nn.CrossEntropyLoss(WEIGHTS.float())(logits, target)
    output = logits if name == "cross_entropy" else logits.softmax(dim=1)
    form = {
        "indices": target,
        "column": target[:, None],
        "bytes": target.to(torch.uint8),
        "one-hot": functional.one_hot(target, 3),
    }[form]
    if name == "cross_entropy" and form.shape == output.shape:  # torch takes them as probabilities
        expected = nn.CrossEntropyLoss(WEIGHTS.float())(logits, form.float())
    assert_close(TrainingLoss(LOSSES[name], CLASSES)(output, form), expected)


@given(
    pixels=st.sampled_from([(), (4,), (2, 3)]),
    smoothing=st.sampled_from([0.0, 0.3]),
    soft=st.booleans(),
    functional_form=st.booleans(),
    seed=st.integers(0, 99),
)
def test_class_weights_are_those_of_torch(pixels, smoothing, soft, functional_form, seed):
    torch.manual_seed(seed)
    output = torch.randn(6, 3, *pixels)
    target = torch.randint(2, (6, *pixels))
    target.view(-1)[1:][torch.rand(target.numel() - 1) < 0.2] = -100
    if soft:
        target = torch.rand(6, 3, *pixels).softmax(1)
    loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
    if functional_form:
        loss = partial(functional.cross_entropy, label_smoothing=smoothing)
    theirs = nn.CrossEntropyLoss(WEIGHTS.float(), label_smoothing=smoothing)(output, target)
    assert_close(TrainingLoss(loss, CLASSES)(output, target), theirs)


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_probabilities_of_one_of_two_classes(shape, dtype):
    output = torch.rand(4, 1)
    target = torch.tensor([0, 1, 1, 0]).reshape(shape).to(dtype)
    weights = class_weights(torch.tensor([2.0, 5.0], dtype=torch.float64), output, target)
    assert weights.flatten().tolist() == [2, 5, 5, 2]
    losses = functional.binary_cross_entropy(
        output.flatten(), target.flatten().float(), reduction="none"
    )
    expected = (losses * weights.flatten()).sum() / 14
    ours = TrainingLoss(LOSSES["bce"], (2.0, 5.0))(output, target)
    assert ours.item() == pytest.approx(expected.item(), rel=ROUNDING)


@pytest.mark.parametrize(
    ("output", "target", "name"),
    [
        (
            torch.rand(2, 3),
            torch.tensor([0, 3]),
            "class_weight has 3 classes, and targets go from 0 to 3",
        ),
        (torch.rand(2, 2), torch.tensor([0, 1]), "3 classes, and the network outputs of (2, 2)"),
        (
            torch.rand(2, 3),
            torch.tensor([-1, 1]),
            "class_weight has 3 classes, and targets go from -1 to 1",
        ),
        (
            torch.rand(2, 3),
            torch.rand(2),
            "but targets of torch.float32 (2,) have no classes for outputs (2, 3)",
        ),
        (torch.rand(2, 4), torch.rand(2, 4), "targets of torch.float32 (2, 4) have no classes"),
    ],
)
def test_targets_without_these_classes_are_errors(output, target, name, raises):
    with raises(ValueError, name):
        class_weights(WEIGHTS, output, target, ignore_index=-100)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({0: 1, 2: 1}, "from 0 to the last one"),
        ([1], "to each of two or more classes"),
        (3.0, "to each of two or more classes"),
        ([[1, 2]], "to each of two or more classes"),
        ([1, -1], "a finite number of at least 0"),
        ([1, float("nan")], "a finite number of at least 0"),
        ([0, 0], "not 0 to all"),
        ("balanced", "a finite number"),
        (["a", "b"], "a finite number"),
    ],
    ids=named,
)
def test_invalid_class_weights_are_errors(wrong, message):
    with pytest.raises(ValueError, match=rf"class_weight=.*{message}"):
        check_class_weight(wrong)
