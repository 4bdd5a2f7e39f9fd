"""The loss that is trained on, in which samples and classes may have weights.

A weighted loss is Σ wᵢ·lᵢ / Σ wᵢ over the batch, as torch has it for weights of classes: how large the weights are
does not matter, only how they compare. Where a sample has several losses, one a pixel say, the weight of the sample
holds for each of them, and that of its own class.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compss_train.model.losses import BatchFunction


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


ClassWeight: TypeAlias = "Sequence[float] | NDArray[Any] | Tensor | Mapping[int, float]"
"""A weight for each class, by its index."""


def check_class_weight(class_weight: ClassWeight | None) -> tuple[float, ...] | None:
    """Return one weight a class; raise ``ValueError`` for what is none."""
    if class_weight is None:
        return None
    given: Any = class_weight
    if isinstance(given, Mapping):
        if set(given) != set(range(len(given))):
            raise ValueError(f"class_weight={class_weight!r}: give a weight to each class, from 0 to the last one")
        given = [given[index] for index in range(len(given))]
    try:
        weights = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"class_weight={class_weight!r}: give one number a class ({error})") from error
    if weights.dim() != 1 or len(weights) < 2 or not are_weights(weights) or not weights.any():
        raise ValueError(
            f"class_weight={class_weight!r}: give a finite number of at least 0 to each of two or more classes, "
            "and not 0 to all of them"
        )
    return tuple(weights.tolist())


def are_weights(numbers: Tensor) -> bool:
    """Tell whether all are finite and not negative."""
    return bool(((numbers >= 0) & numbers.isfinite()).all())


def class_weights(weights: Tensor, output: object, target: Tensor, ignored: int | None = None) -> Tensor:
    """Return the weight of each target's class, shape (N, ...) as the targets have it without classes.

    Targets are class indices; one-hot or soft ones (N, C, ...) in the outputs' shape, which get the mean of the
    classes' weights in that mixture; or, of two classes, probabilities of the second one. What is ``ignored`` has
    any weight. Raises ``ValueError`` for others.
    """
    shape = output.shape if isinstance(output, Tensor) else None
    if target.shape == shape and target.dim() > 1 and target.shape[1] == len(weights):
        mixed: Tensor = torch.tensordot(target.to(weights.dtype), weights, dims=([1], [0]))
        return mixed
    if not target.is_floating_point():
        of_targets: Tensor = weights[_indices(target, len(weights), ignored)]
        return of_targets
    if len(weights) == 2 and shape is not None and shape.numel() == target.numel():
        return torch.lerp(weights[0], weights[1], target.to(weights.dtype))
    raise ValueError(
        f"class_weight has {len(weights)} classes, which targets of {target.dtype} {tuple(target.shape)} do not "
        f"tell for outputs {None if shape is None else tuple(shape)}; give class indices, or one-hot targets"
    )


def _indices(target: Tensor, classes: int, ignored: int | None) -> Tensor:
    indices = target.long()
    if ignored is not None:
        indices = indices.masked_fill(indices == ignored, 0)
    if indices.numel():
        first, last = (int(bound) for bound in indices.aminmax())
        if first < 0 or last >= classes:
            raise ValueError(f"class_weight has {classes} classes, and targets go from {first} to {last}")
    return indices


def elementwise(loss: BatchFunction) -> BatchFunction | None:
    """Return what gives the losses of samples or elements, by torch's convention ``reduction="none"``, if any."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        own: Any = copy.copy(loss)
        own.reduction = "none"
        return own  # type: ignore[no-any-return]
    function: Any = loss
    return partial(function, reduction="none") if "reduction" in _parameters(loss) else None


def option(loss: BatchFunction, name: str) -> Any:
    """Return a module's attribute, or what a function takes for an argument that is not given; else ``None``."""
    if isinstance(loss, nn.Module):
        return getattr(loss, name, None)
    parameter = _parameters(loss).get(name)
    return None if parameter is None else parameter.default


def check_weightable(loss: BatchFunction) -> None:
    """Raise ``ValueError`` for a loss that weights cannot be given to."""
    name = getattr(loss, "__name__", type(loss).__name__)
    if elementwise(loss) is None:
        if "weight" not in _parameters(loss):
            raise ValueError(
                f"the loss {name} gives one number a batch, in which samples have no weights; take one of EDDL's "
                "names or of torch's losses, or write a callable of (output, target, weight), or one of (output, "
                "target, reduction='mean') that gives one number a sample with reduction='none'"
            )
        return
    if (reduction := option(loss, "reduction")) != "mean":
        raise ValueError(f"the loss {name} has reduction={reduction!r}; to be weighted it must have 'mean'")
    if isinstance(option(loss, "weight"), Tensor):
        raise ValueError(
            f"the loss {name} has weights of its own, which the mean would not be divided by; leave them out, and "
            "give those of classes as build(..., class_weight=...)"
        )


def _parameters(loss: BatchFunction) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters
    except (TypeError, ValueError):  # of a callable that is not written in Python
        return {}
