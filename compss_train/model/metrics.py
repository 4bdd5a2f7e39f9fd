"""Metrics by EDDL's names: functions of a batch's outputs and targets, means over its samples."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from compss_train.model.losses import (
    IGNORE_INDEX,
    BatchFunction,
    binary_cross_entropy,
    class_targets,
    match_output,
    mean_squared_error,
)
from compss_train.model.training_loss import ignore_index_of


def accuracy(
    output: Tensor, target: Tensor, reduction: str = "mean", ignore_index: int = IGNORE_INDEX
) -> Tensor:
    """Return the fraction of targets whose class has the largest output.

    Targets are class indices, one-hot or soft. With ``reduction="none"`` it is 1 for each target
    that is met, and 0 for others and for those that are ignored.
    """
    target = class_targets(output, target, least=2)
    if target.shape == output.shape:
        target = target.argmax(dim=1)
    is_met = output.argmax(dim=1) == target
    if reduction == "none":
        return is_met.to(torch.float32)
    return is_met.sum(dtype=torch.float32) / (target != ignore_index).sum()


def accuracy_of_logits(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of logits with the sign that their targets ask for, which are 0 or 1."""
    return _binary_accuracy(output > 0, match_output(output, target))


def accuracy_of_probabilities(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of probabilities that round to their targets, which are 0 or 1."""
    return _binary_accuracy(output > 0.5, match_output(output, target))


def _binary_accuracy(predicted: Tensor, target: Tensor) -> Tensor:
    return (predicted == (target > 0.5)).to(torch.float32).mean()


def accuracy_for(loss: BatchFunction | None) -> BatchFunction:
    """Return the function that "accuracy" stands for with this loss.

    It compares the class of each target that the loss does not ignore, or with a binary cross
    entropy each output.
    """
    function: object = loss.func if isinstance(loss, partial) else loss
    if isinstance(function, nn.BCEWithLogitsLoss):
        return accuracy_of_logits
    if isinstance(function, nn.BCELoss):
        return accuracy_of_probabilities
    if function is functional.binary_cross_entropy_with_logits:
        return accuracy_of_logits
    if function in (binary_cross_entropy, functional.binary_cross_entropy):
        return accuracy_of_probabilities
    ignored = None if loss is None else ignore_index_of(loss)
    if ignored in (None, IGNORE_INDEX):
        return accuracy
    return partial(accuracy, ignore_index=ignored)


def mean_absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean of |output - target|."""
    return (output - match_output(output, target)).abs().mean()


def mean_relative_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean of |output - target| / |target|; where a target is 0, of |output|."""
    target = match_output(output, target)
    scale = torch.where(target == 0, torch.ones_like(output), target.abs())
    return ((output - target).abs() / scale).mean()


METRICS: dict[str, BatchFunction] = {
    **dict.fromkeys(("mse", "mean_squared_error"), mean_squared_error),
    **dict.fromkeys(("categorical_accuracy", "accuracy"), accuracy),
    **dict.fromkeys(("mae", "mean_absolute_error"), mean_absolute_error),
    **dict.fromkeys(("mre", "mean_relative_error"), mean_relative_error),
}
"""Metrics by EDDL's names."""
