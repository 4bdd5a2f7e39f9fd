"""Metrics by EDDL's names: each takes a batch's outputs and targets and returns the mean over its samples."""

from __future__ import annotations

import torch
from torch import Tensor

from compss_train.model.losses import BatchFunction, class_targets, like, mean_squared_error


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Share of samples whose largest output is the target's class; targets are indices, one-hot or soft."""
    target = class_targets(output, target)
    if output.dim() < 2 or output.shape[1] < 2:
        raise ValueError(
            f"accuracy needs one output a class, these have shape {tuple(output.shape)}; "
            "pass a callable metric for a single output"
        )
    if target.shape == output.shape:
        target = target.argmax(dim=1)
    return (output.argmax(dim=1) == target).to(torch.float32).mean()


def mean_absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """Mean of |output - target|."""
    return (output - like(output, target)).abs().mean()


def mean_relative_error(output: Tensor, target: Tensor) -> Tensor:
    """Mean of |output - target| / |target|; targets of 0 count by their absolute error."""
    target = like(output, target)
    scale = torch.where(target == 0, torch.ones_like(output), target.abs())
    return ((output - target).abs() / scale).mean()


METRICS: dict[str, BatchFunction] = {
    "mse": mean_squared_error,
    "mean_squared_error": mean_squared_error,
    "categorical_accuracy": accuracy,
    "accuracy": accuracy,
    "mae": mean_absolute_error,
    "mean_absolute_error": mean_absolute_error,
    "mre": mean_relative_error,
    "mean_relative_error": mean_relative_error,
}
