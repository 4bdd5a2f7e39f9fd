"""Class weights: what ``build(class_weight=...)`` takes, and the weights of targets by class."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

ClassWeight: TypeAlias = (
    Sequence[float] | NDArray[Any] | Tensor | Mapping[int, float] | Mapping[str, float]
)
"""A weight for each class, by its index or name."""

CheckedWeight: TypeAlias = tuple[float, ...] | dict[str, float] | None
"""A weight for each class, in the order of their indices, or by names that data will explain."""


def check_class_weight(class_weight: ClassWeight | None) -> CheckedWeight:
    """Return one weight for each class; raise ``ValueError`` for other values."""
    if class_weight is None:
        return None
    values: Any = class_weight
    if isinstance(values, Mapping) and values and all(isinstance(name, str) for name in values):
        numbers = check_class_weight([*values.values()])
        return dict(zip(values, numbers or (), strict=True))
    if isinstance(values, Mapping):
        values = [values.get(index) for index in range(len(values))]
    try:
        weights = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        weights = torch.empty(0)
    if weights.dim() != 1 or len(weights) < 2 or not are_weights(weights) or not weights.any():
        raise ValueError(
            f"class_weight={class_weight!r}: give a finite number of at least 0 to each of two "
            "or more classes, from 0 to the last one, and not 0 to all of them"
        )
    return tuple(weights.tolist())


def weights_in_order(
    by_name: Mapping[str, float], classes: Sequence[Any] | None
) -> tuple[float, ...]:
    """Return the weights of classes in the order of their indices, of weights by name.

    ``classes`` are those that data have, or ``None`` for data without names. Raises ``ValueError``
    unless each class has a weight, and each weight a class.
    """
    given = f"class_weight={dict(by_name)!r}"
    if classes is None:
        raise ValueError(
            f"{given} is by names of classes, and y has none: give y as a column of categories or "
            "files with classes, or a weight for each class index"
        )
    names = [str(name) for name in classes]
    if sorted(names) != sorted(by_name):
        raise ValueError(f"{given}: the classes of y are {', '.join(names)}; give each a weight")
    return tuple(by_name[name] for name in names)


def are_weights(numbers: Tensor) -> bool:
    """Return whether all numbers are finite and not negative."""
    return bool(((numbers >= 0) & numbers.isfinite()).all())


def class_weights(
    weights: Tensor, output: object, target: Tensor, *, ignore_index: int | None = None
) -> Tensor:
    """Return the weight of the class of each target, in the shape of class indices (N, ...).

    Targets are class indices; one-hot or soft targets (N, C, ...) in the shape of the outputs,
    which get the mean weight of their classes; or, for two classes, probabilities of the second
    class. Ignored targets get an arbitrary weight. Raises ``ValueError`` for other targets.
    """
    shape = output.shape if isinstance(output, Tensor) else None
    if target.shape == shape and target.dim() > 1 and target.shape[1] == len(weights):
        mixed: Tensor = torch.tensordot(target.to(weights.dtype), weights, dims=([1], [0]))
        return mixed
    if not target.is_floating_point():
        return _weights_of_indices(weights, shape, target, ignore_index=ignore_index)
    if len(weights) == 2 and shape is not None and shape.numel() == target.numel():
        return torch.lerp(weights[0], weights[1], target.to(weights.dtype))
    raise ValueError(
        f"class_weight has {len(weights)} classes, but targets of {target.dtype} "
        f"{tuple(target.shape)} have no classes for outputs "
        f"{None if shape is None else tuple(shape)}; give class indices, or one-hot targets"
    )


def _weights_of_indices(
    weights: Tensor, output_shape: torch.Size | None, target: Tensor, *, ignore_index: int | None
) -> Tensor:
    """Return the weights of class indices; raise ``ValueError`` for other numbers of classes."""
    indices = target.long()
    if ignore_index is not None:
        indices = indices.masked_fill(indices == ignore_index, 0)
    first, last = map(int, indices.aminmax()) if indices.numel() else (0, 0)
    if first < 0 or last >= len(weights):
        raise ValueError(
            f"class_weight has {len(weights)} classes, and targets go from {first} to {last}"
        )
    # An output for each target is the probability of the second class.
    if output_shape is not None and output_shape.numel() != target.numel():
        has_classes = len(output_shape) == target.dim() + 1
        if has_classes and len(weights) not in output_shape[1:]:
            raise ValueError(
                f"class_weight has {len(weights)} classes, and the network outputs "
                f"of {tuple(output_shape)}"
            )
    selected: Tensor = weights[indices]
    return selected
