"""Losses by EDDL's names, and the targets that losses take.

Losses are functions of a batch's outputs and targets, and return the mean over its samples. As with
torch's losses, ``reduction="none"`` returns the losses before the mean, and class indices equal to
``ignore_index`` do not count.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from compss_train.model.broadcasting import ELEMENTWISE_FUNCTIONS, mismatch

BatchFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A function of a batch's outputs and targets that returns the mean over its samples."""

IGNORE_INDEX = -100
"""The class index that torch's losses ignore by default."""

_EPSILON = 1e-7  # keeps log() finite; EDDL uses an epsilon of this size for probabilities
_MAX_PROBABILITY = 1.01  # allows for rounding


def mean_squared_error(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean of (output - target)² over all elements.

    The target takes the output's shape and dtype.
    """
    output = full_precision(output)
    return functional.mse_loss(output, match_output(output, target), reduction=reduction)


def cross_entropy(
    output: Tensor,
    target: Tensor,
    reduction: str = "mean",
    ignore_index: int = IGNORE_INDEX,
    weight: Tensor | None = None,
) -> Tensor:
    """Return the cross entropy of logits (N, C, ...), with a ``weight`` for each class or none.

    Targets are class indices (N, ...) or (N, 1), or one-hot or soft targets (N, C, ...).
    """
    output = full_precision(output)
    target = class_targets(output, target, least=2)
    return functional.cross_entropy(
        output, target, weight, reduction=reduction, ignore_index=ignore_index
    )


def categorical_cross_entropy(
    output: Tensor, target: Tensor, reduction: str = "mean", ignore_index: int = IGNORE_INDEX
) -> Tensor:
    """Return the cross entropy of probabilities (N, C), such as the outputs of a softmax layer.

    Targets are class indices, or one-hot or soft targets. Raises ``ValueError`` for outputs that
    are not probabilities, for which the loss has no meaning.
    """
    output = full_precision(output)
    low, high = output.detach().aminmax() if output.numel() else (0.0, 1.0)
    if low < 0 or high > _MAX_PROBABILITY:
        raise ValueError(
            f"outputs from {float(low):.3g} to {float(high):.3g} are not probabilities; end the "
            "network with a softmax, or use the loss torch.nn.CrossEntropyLoss(), which takes "
            "logits"
        )
    target = class_targets(output, target)
    logarithms = output.clamp(min=_EPSILON).log()
    if target.shape == output.shape:
        return _reduce(-(target * logarithms).sum(dim=1), reduction)
    return functional.nll_loss(logarithms, target, reduction=reduction, ignore_index=ignore_index)


def binary_cross_entropy(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the binary cross entropy of probabilities, such as the outputs of a sigmoid layer.

    Targets are 0 or 1.
    """
    # Autocast rejects the functional form, whose backward pass is unsafe in half precision.
    with torch.autocast(output.device.type, enabled=False):
        target = match_output(output, target).float()
        return functional.binary_cross_entropy(output.float(), target, reduction=reduction)


def dice(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean over samples of the Dice loss 1 - 2 Σ(p·t) / (Σp + Σt).

    Outputs p and targets t are masks of any shape (N, ...).
    """
    output = full_precision(output)
    target = match_output(output, target).flatten(1)
    output = output.flatten(1)
    overlap = 2 * (output * target).sum(dim=1)
    area = (output + target).sum(dim=1)
    return 1 - _reduce((overlap + _EPSILON) / (area + _EPSILON), reduction)


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    return losses.mean() if reduction == "mean" else losses


LOSSES: dict[str, BatchFunction] = {
    **dict.fromkeys(("mean_squared_error", "mse"), mean_squared_error),
    **dict.fromkeys(("soft_cross_entropy", "sce"), categorical_cross_entropy),
    **dict.fromkeys(("binary_cross_entropy", "bce"), binary_cross_entropy),
    **dict.fromkeys(("categorical_cross_entropy", "cce"), categorical_cross_entropy),
    **dict.fromkeys(("cross_entropy", "ce", "softmax_cross_entropy"), cross_entropy),
    "dice": dice,
}
"""Losses by EDDL's names."""


def class_targets(output: Tensor, target: Tensor, least: int = 1) -> Tensor:
    """Return the classes of targets as int64, or targets of the output's shape in its dtype.

    Class indices (N, 1) become (N,). Raises ``ValueError`` for other targets, and for outputs of
    fewer than ``least`` classes.
    """
    if output.dim() < 2 or output.shape[1] < least:
        raise ValueError(
            f"outputs have shape {tuple(output.shape)}; give one output for each class, or build "
            "for a single output with loss=torch.nn.BCEWithLogitsLoss(), which 'accuracy' knows; "
            "with a loss of your own give a metric of torchmetrics, or a function of (output, "
            "target)"
        )
    if target.shape == output.shape:
        return target.to(output.dtype)
    if target.dim() == output.dim() and target.shape[1] == 1:
        target = target.squeeze(1)
    if target.shape != (output.shape[0], *output.shape[2:]) or target.is_floating_point():
        hint = last_axis_hint(output, target)
        raise ValueError(
            f"targets of {target.dtype} {tuple(target.shape)} do not match outputs "
            f"{tuple(output.shape)}; give an integer class index for each sample, such as "
            f"y.long(), or one-hot targets of the outputs' shape{hint and f'. {hint}'}"
        )
    return target.long()


def last_axis_hint(output: Tensor, target: Tensor) -> str:
    """Return what to do with outputs whose classes are on the last of several axes; or "".

    Networks for sequences often return such outputs.
    """
    if output.dim() < 3 or output.shape[:-1] != target.shape or target.is_floating_point():
        return ""
    return "The classes of outputs belong on axis 1: return output.movedim(-1, 1)"


def is_from_library(loss: object) -> bool:
    """Return whether a loss or metric is torch's or this package's, not a user's own.

    Those take a tensor as output, and check the shape of the target.
    """
    function = loss.func if isinstance(loss, partial) else loss
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] in ("torch", "compss_train")


_ELEMENTWISE = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
)
"""Classes of losses that compare elements, as ``ELEMENTWISE_FUNCTIONS`` do."""


def suitable_target(loss: object, output: Tensor, target: Any) -> Any:
    """Return the target in a dtype that a loss of torch takes; other losses get it as it is.

    Where elements are compared, integers become floating-point numbers. Bytes become class
    indices, which torch itself takes only for a single class a sample. Raises ``ValueError`` for
    targets that torch would broadcast, comparing each sample with all others.
    """
    if not isinstance(target, Tensor):
        return target
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) and target.dtype == torch.uint8:
        return target.long()
    compares_elements = isinstance(loss, _ELEMENTWISE) or loss in ELEMENTWISE_FUNCTIONS
    if not compares_elements or not isinstance(output, Tensor):
        return target
    if output.shape != target.shape:
        raise ValueError(mismatch(output, target, getattr(loss, "__name__", type(loss).__name__)))
    return target.to(torch.promote_types(target.dtype, torch.float32))


def full_precision(output: Tensor) -> Tensor:
    """Return half-precision outputs in float32, as targets would lose digits in half precision."""
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output


def match_output(output: Tensor, target: Tensor) -> Tensor:
    """Return the target in the output's shape and dtype.

    Raises ``ValueError`` if their shapes differ in more than axes of size 1.
    """
    if target.shape == output.shape:
        return target.to(output.dtype)
    if _without_ones(target.shape) != _without_ones(output.shape):
        raise ValueError(
            f"targets have shape {tuple(target.shape)} and outputs {tuple(output.shape)}; their "
            "shapes must match, and only dimensions of 1 may differ: reshape or permute the "
            "targets, or end the network with a Flatten"
        )
    return target.reshape(output.shape).to(output.dtype)


def _without_ones(shape: torch.Size) -> tuple[int, ...]:
    """Return the number of samples and the other dimensions, without those of size 1."""
    return *shape[:1], *(size for size in shape[1:] if size != 1)
