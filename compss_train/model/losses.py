"""Losses by EDDL's names: each takes a batch's outputs and targets and returns the mean over its samples.

As with torch's own, ``reduction="none"`` gives the losses that the mean is of, and class indices that are
``ignore_index`` do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from compss_train._utils.validation import suggestion

BatchFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]

IGNORED = -100
"""The class index that torch's losses leave out."""
_SMALLEST = 1e-7  # keeps log() finite; EDDL's own epsilon for probabilities is of this size
_LARGEST = 1.01  # of a probability, however it was rounded


def mean_squared_error(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Mean of (output - target)² over all elements; the target takes the output's shape and dtype."""
    output = full_precision(output)
    return functional.mse_loss(output, like(output, target), reduction=reduction)


def cross_entropy(output: Tensor, target: Tensor, reduction: str = "mean", ignore_index: int = IGNORED) -> Tensor:
    """Cross entropy of logits (N, C, ...) with class indices (N, ...) or (N, 1), or one-hot or soft targets."""
    output = full_precision(output)
    if output.dim() < 2 or output.shape[1] < 2:
        raise ValueError(
            f"cross entropy needs one output a class, these have shape {tuple(output.shape)}; for a single output "
            "use binary_cross_entropy after a sigmoid"
        )
    return functional.cross_entropy(
        output, class_targets(output, target), reduction=reduction, ignore_index=ignore_index
    )


def categorical_cross_entropy(
    output: Tensor, target: Tensor, reduction: str = "mean", ignore_index: int = IGNORED
) -> Tensor:
    """Cross entropy of probabilities (N, C), as a softmax layer gives them, with indices or soft targets.

    Raises ``ValueError`` for outputs that are no probabilities, whose loss would mean nothing.
    """
    output = full_precision(output)
    low, high = output.detach().aminmax() if output.numel() else (0.0, 1.0)
    if low < 0 or high > _LARGEST:
        raise ValueError(
            f"outputs from {float(low):.3g} to {float(high):.3g} are no probabilities; end the network in a "
            "softmax, or take the loss cross_entropy, which is for logits"
        )
    target = class_targets(output, target)
    log = output.clamp(min=_SMALLEST).log()
    if target.shape == output.shape:
        return _reduced(-(target * log).sum(dim=1), reduction)
    return functional.nll_loss(log, target, reduction=reduction, ignore_index=ignore_index)


def binary_cross_entropy(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Binary cross entropy of probabilities, as a sigmoid layer gives them, with targets of 0 and 1."""
    # Autocast refuses the functional form, whose backward is unsafe in half precision.
    with torch.autocast(output.device.type, enabled=False):
        target = like(output, target).float()
        return functional.binary_cross_entropy(output.float(), target, reduction=reduction)


def dice(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Dice loss 1 - 2 Σ(p·t) / (Σp + Σt) of each sample, averaged: for overlaps of masks of any shape (N, ...)."""
    output = full_precision(output)
    output, target = output.flatten(1), like(output, target).flatten(1)
    overlap = 2 * (output * target).sum(dim=1)
    return 1 - _reduced((overlap + _SMALLEST) / ((output + target).sum(dim=1) + _SMALLEST), reduction)


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    return losses.mean() if reduction == "mean" else losses


def class_targets(output: Tensor, target: Tensor) -> Tensor:
    """Return class indices as int64 without a last dimension of 1; targets of the output's shape in its dtype.

    Raises ``ValueError`` for targets that are neither.
    """
    if target.shape == output.shape:
        return target.to(output.dtype)
    if target.dim() == output.dim() and target.shape[1] == 1:
        target = target.squeeze(1)
    if target.shape != (output.shape[0], *output.shape[2:]) or target.is_floating_point():
        raise ValueError(
            f"targets of {target.dtype} {tuple(target.shape)} do not go with outputs {tuple(output.shape)}; "
            "give integer class indices, one a sample, or one-hot targets of the outputs' shape"
        )
    return target.long()


def full_precision(output: Tensor) -> Tensor:
    """Return half-precision outputs in float32: targets in so few digits would lose what they say."""
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output


def like(output: Tensor, target: Tensor) -> Tensor:
    """Return the target in the output's shape and dtype; raise ``ValueError`` where it has other elements."""
    if target.numel() != output.numel():
        raise ValueError(
            f"targets have shape {tuple(target.shape)} and outputs {tuple(output.shape)}; they must agree"
        )
    return target.reshape(output.shape).to(output.dtype)


LOSSES: dict[str, BatchFunction] = {
    "mean_squared_error": mean_squared_error,
    "mse": mean_squared_error,
    "soft_cross_entropy": categorical_cross_entropy,
    "sce": categorical_cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "bce": binary_cross_entropy,
    "categorical_cross_entropy": categorical_cross_entropy,
    "cce": categorical_cross_entropy,
    "cross_entropy": cross_entropy,
    "ce": cross_entropy,
    "softmax_cross_entropy": cross_entropy,
    "dice": dice,
}


def resolve_loss(loss: str | BatchFunction) -> BatchFunction:
    """Return the loss of that name, an instance of a loss class that was given, or the callable itself.

    Raises ``ValueError`` for an unknown name, listing the known ones.
    """
    return resolve("loss", loss, LOSSES)


Function = TypeVar("Function", bound=Callable[..., Any])


def resolve(kind: str, given: str | Function, known: Mapping[str, Function]) -> Function:
    """Return the function called ``given``, or ``given`` where it is one.

    A class of ``nn.Module`` (``torch.nn.MSELoss``, as dislib takes it) is instantiated without arguments.

    Raises ``ValueError`` with the known names and a suggestion for an unknown name, ``TypeError`` for anything
    else.
    """
    if isinstance(given, str):
        if given not in known:
            hint = suggestion(given, known)
            raise ValueError(f"unknown {kind} {given!r}; choose one of {', '.join(known)} or pass a callable{hint}")
        return known[given]
    if isinstance(given, type) and issubclass(given, nn.Module):
        try:
            return given()  # type: ignore[return-value]
        except TypeError as error:
            raise TypeError(f"{kind}={given.__name__} is a class that needs arguments; call it: {error}") from error
    if callable(given):
        return given
    raise TypeError(f"{kind}={given!r} is neither a name nor a callable; names are {', '.join(known)}")
