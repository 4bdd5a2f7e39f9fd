"""Weights of classes, and those that samples have by their targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

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
