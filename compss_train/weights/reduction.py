"""What a loss can do beside a batch's mean: the losses that it is a mean of, or a mean with weights."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from compss_train.losses import BatchFunction


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
