"""The law of weights of classes: those of torch's own losses."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from compss_train.model.loss_weights import TrainingLoss, check_class_weight, class_weights
from compss_train.model.losses import LOSSES
from tests.helpers.models import named

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
    output, target = torch.randn(samples, 3, *pixels), torch.randint(3, (samples, *pixels))
    target[torch.rand(target.shape) < 0.2] = ignored
    theirs = nn.CrossEntropyLoss(WEIGHTS.float(), ignore_index=ignored)(output, target)
    ours = TrainingLoss(nn.CrossEntropyLoss(ignore_index=ignored), CLASSES)(output, target)
    torch.testing.assert_close(ours, theirs.nan_to_num())  # where all that counts has no weight


@pytest.mark.parametrize("name", ["cross_entropy", "categorical_cross_entropy"])
@pytest.mark.parametrize("form", ["indices", "column", "bytes", "one-hot"])
def test_named_losses_and_every_form_of_targets(name, form):
    torch.manual_seed(0)
    logits, target = torch.randn(9, 3), torch.arange(9) % 3
    expected = nn.CrossEntropyLoss(WEIGHTS.float())(logits, target)
    output = logits if name == "cross_entropy" else logits.softmax(dim=1)
    form = {
        "indices": target,
        "column": target[:, None],
        "bytes": target.to(torch.uint8),
        "one-hot": functional.one_hot(target, 3),
    }[form]
    torch.testing.assert_close(TrainingLoss(LOSSES[name], CLASSES)(output, form), expected)


def test_soft_targets_have_the_mean_weight_of_their_classes():
    soft = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    assert class_weights(WEIGHTS, torch.rand(3, 3), soft).tolist() == [1.0, 0.0, 0.5]


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_probabilities_of_one_of_two_classes(shape, dtype):
    output, target = torch.rand(4, 1), torch.tensor([0, 1, 1, 0]).reshape(shape).to(dtype)
    weights = class_weights(torch.tensor([2.0, 5.0], dtype=torch.float64), output, target)
    assert weights.flatten().tolist() == [2, 5, 5, 2]
    losses = functional.binary_cross_entropy(output.flatten(), target.flatten().float(), reduction="none")
    expected = (losses * weights.flatten()).sum() / 14
    ours = TrainingLoss(LOSSES["bce"], (2.0, 5.0))(output, target)
    assert ours.item() == pytest.approx(expected.item())


def test_samples_and_classes_multiply():
    torch.manual_seed(0)
    output, target, weight = torch.randn(6, 3, 2), torch.randint(3, (6, 2)), torch.rand(6)
    losses = functional.cross_entropy(output, target, reduction="none")
    both = WEIGHTS[target] * weight[:, None]
    ours = TrainingLoss(LOSSES["ce"], CLASSES)(output, target, weight)
    assert ours.item() == pytest.approx(((losses * both).sum() / both.sum()).item())


def test_a_loss_with_a_weight_argument_gets_class_weights():
    given_weights = []

    def own(output, target, weight=None):
        given_weights.append(weight)
        return torch.tensor(0.0)

    target = torch.tensor([1, 0, 2])
    TrainingLoss(own, CLASSES)(torch.rand(3, 3), target)
    TrainingLoss(own, CLASSES)((torch.rand(3, 3), "a second output"), target[:, None], torch.tensor([2, 2, 1]))
    assert [weight.tolist() for weight in given_weights] == [[3.0, 0.5, 0.0], [6.0, 1.0, 0.0]]
    with pytest.raises(ValueError, match=r"class weights have shape \(3, 2\), .* and the losses \(3,\)"):
        TrainingLoss(own, CLASSES)(torch.rand(3, 3, 2), torch.zeros(3, 2, dtype=torch.long))


@pytest.mark.parametrize(
    ("output", "target", "message"),
    [
        (torch.rand(2, 3), torch.tensor([0, 3]), "class_weight has 3 classes, and targets go from 0 to 3"),
        (torch.rand(2, 3), torch.tensor([-1, 1]), "class_weight has 3 classes, and targets go from -1 to 1"),
        (
            torch.rand(2, 3),
            torch.rand(2),
            r"but targets of torch.float32 \(2,\) have no classes for outputs \(2, 3\)",
        ),
        (torch.rand(2, 4), torch.rand(2, 4), r"targets of torch.float32 \(2, 4\) have no classes"),
    ],
)
def test_targets_without_these_classes_are_errors(output, target, message):
    with pytest.raises(ValueError, match=message):
        class_weights(WEIGHTS, output, target, -100)


@pytest.mark.parametrize(
    "given_weights", [[1, 2.0], (1, 2), np.array([1, 2], np.float32), torch.tensor([1, 2]), {1: 2, 0: 1}]
)
def test_class_weights_can_be_sequences_arrays_and_dicts(given_weights):
    assert check_class_weight(given_weights) == (1, 2)
    assert check_class_weight(None) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({0: 1, 2: 1}, "give a weight to each class, from 0 to the last one"),
        ({"cat": 1, "dog": 2}, "give a weight to each class"),
        ([1], "to each of two or more classes"),
        (3.0, "to each of two or more classes"),
        ([[1, 2]], "to each of two or more classes"),
        ([1, -1], "a finite number of at least 0"),
        ([1, float("nan")], "a finite number of at least 0"),
        ([0, 0], "not 0 to all"),
        ("balanced", "give one number for each class"),
        (["a", "b"], "give one number for each class"),
    ],
    ids=named,
)
def test_invalid_class_weights_are_errors(wrong, message):
    with pytest.raises(ValueError, match=rf"class_weight=.*{message}"):
        check_class_weight(wrong)
