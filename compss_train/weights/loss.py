"""The loss that is trained on, in which samples and classes may have weights.

A weighted loss is Σ wᵢ·lᵢ / Σ wᵢ over the batch, as torch has it for weights of classes: how large the weights are
does not matter, only how they compare. Where a sample has several losses, one a pixel say, the weight of the sample
holds for each of them, and that of its own class.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from compss_train.losses import BatchFunction
from compss_train.weights.classes import are_weights, class_weights
from compss_train.weights.reduction import elementwise, option


class TrainingLoss:
    """A loss as it is where nothing has a weight, else the weighted mean."""

    def __init__(
        self, loss: BatchFunction, class_weight: Sequence[float] | None = None, device: str = "cpu"
    ) -> None:
        self._loss = loss
        self._class_weight = None
        if class_weight is not None:
            self._class_weight = torch.tensor(class_weight, dtype=torch.float64, device=device)

    def __call__(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the loss of a batch of N samples, whose weights have shape (N,) or (N, 1)."""
        if weight is None and self._class_weight is None:
            return self._loss(output, target)
        weights = [] if weight is None else [_checked(weight, len(target))]
        if self._class_weight is not None:
            weights.append(class_weights(self._class_weight, output, target, self._ignored))
        if self._elementwise is None:
            of_samples = _product(weights, output, torch.Size([len(target)]))
            return self._loss(output, target, weight=of_samples)  # type: ignore[call-arg]
        losses = self._elementwise(output, target)
        if losses.dim() == 0 or len(losses) != len(target):
            raise ValueError(
                f"the loss with reduction='none' has shape {tuple(losses.shape)} for {len(target)} samples; to be "
                "weighted it must have one or more values for each"
            )
        product = _product(weights, output, losses.shape)
        return _mean(losses, product if self._ignored is None else product * _counts(target, losses, self._ignored))

    @cached_property
    def _elementwise(self) -> BatchFunction | None:
        return elementwise(self._loss)

    @cached_property
    def _ignored(self) -> int | None:
        index = option(self._loss, "ignore_index")
        return index if isinstance(index, int) else None


def _checked(weight: Tensor, samples: int) -> Tensor:
    if weight.numel() != samples or len(weight) != samples:
        raise ValueError(
            f"the weights of {samples} samples have shape {tuple(weight.shape)}; give one number a sample"
        )
    if not are_weights(weight):
        raise ValueError("a sample's weight is negative, NaN or infinite; give finite numbers of at least 0")
    return weight


def _product(weights: Sequence[Tensor], output: object, shape: torch.Size) -> Tensor:
    """Return the product of weights in the shape of the losses; each has one number a sample, or one a loss."""
    precision = output.dtype if isinstance(output, Tensor) else torch.float32
    product = torch.ones(shape, dtype=torch.promote_types(precision, torch.float32), device=weights[0].device)
    for weight in weights:
        if weight.numel() not in (shape[0], shape.numel()):
            raise ValueError(
                f"the weights of classes have shape {tuple(weight.shape)}, as the targets have it, and the losses "
                f"{tuple(shape)}; they must be one a sample or one a loss"
            )
        of_losses = weight.numel() == shape.numel()
        product *= weight.reshape(shape if of_losses else (-1, *[1] * (len(shape) - 1)))
    return product


def _counts(target: Tensor, losses: Tensor, ignored: int) -> Tensor:
    """Return 0 for losses of targets that are ignored, 1 for others."""
    if target.is_floating_point() or target.numel() != losses.numel():
        return torch.ones_like(losses)
    return (target.reshape(losses.shape) != ignored).to(losses.dtype)


def _mean(losses: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean; 0 where all weights are."""
    total = weights.sum()
    return (losses * weights).sum() / torch.where(total > 0, total, torch.ones_like(total))
