"""Losses of single samples: those of a batch with one sample each, whatever the loss."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from compss_train.model.losses import LOSSES
from compss_train.model.training_loss import TrainingLoss, elementwise
from tests.helpers.models import named

CASES = [
    (LOSSES["mse"], torch.randn(6, 3, 4), torch.randn(6, 3, 4)),
    (nn.L1Loss(), torch.randn(6, 2), torch.randn(6, 2)),
    (functional.smooth_l1_loss, torch.randn(6), torch.randn(6)),
    (LOSSES["ce"], torch.randn(6, 3), torch.tensor([0, 2, 1, 1, 0, 2])),
    (LOSSES["bce"], torch.rand(6, 1), torch.randint(0, 2, (6, 1)).float()),
    (nn.CrossEntropyLoss(), torch.randn(6, 3, 4, 5), torch.randint(0, 3, (6, 4, 5))),
    (nn.CrossEntropyLoss(ignore_index=1), torch.randn(6, 3, 4, 5), torch.randint(0, 3, (6, 4, 5))),
    (
        LOSSES["ce"],
        torch.randn(6, 3, 7),
        torch.randint(0, 3, (6, 7)).masked_fill(torch.rand(6, 7) < 0.4, -100),
    ),
]


@pytest.mark.parametrize(("loss", "output", "target"), CASES, ids=named)
def test_each_is_the_loss_of_its_sample_alone(loss, output, target):
    ours = TrainingLoss(loss).by_sample(output, target)
    alone = torch.stack([loss(output[n : n + 1], target[n : n + 1]) for n in range(len(output))])
    torch.testing.assert_close(ours, alone)


def test_a_sample_in_which_all_is_ignored_has_no_loss():
    target = torch.tensor([[0, -100], [-100, -100]])
    losses = TrainingLoss(nn.CrossEntropyLoss()).by_sample(torch.randn(2, 3, 2), target)
    assert losses.isfinite().tolist() == [True, False]


def test_weights_of_classes_do_not_count_and_half_precision_is_summed_in_single():
    output = torch.randn(5, 3)
    target = torch.tensor([0, 1, 2, 2, 1])
    weighted = TrainingLoss(LOSSES["ce"], (1.0, 100.0, 3.0))
    assert torch.equal(
        weighted.by_sample(output, target), TrainingLoss(LOSSES["ce"]).by_sample(output, target)
    )
    ones = torch.ones(2, 70_000, dtype=torch.float16)
    assert TrainingLoss(nn.MSELoss()).by_sample(ones, 0 * ones).tolist() == [1.0, 1.0]


def mean_only(output, target):
    return (output - target).mean()


def test_a_loss_without_one_is_an_error(raises):
    elementwise(nn.MSELoss())
    with raises(
        ValueError,
        "the loss mean_only returns one number for a batch, and weights and samplers of inputs",
    ):
        elementwise(mean_only)
    whole = lambda output, target, reduction="mean": mean_only(output, target)  # noqa: E731
    with raises(ValueError, "a tensor of shape () for 6 samples"):
        TrainingLoss(whole).by_sample(torch.randn(6, 2), torch.randn(6, 2))
