"""Broadcasting: outputs (n, 1) and targets (n,) give n² differences, each sample's with all others,
silently.

The losses of torch and of this package check shapes; a user's own functions are watched while they
run.
"""

from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import permutations
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from compss_train._utils.nested import leaves

ELEMENTWISE_FUNCTIONS = (
    *(functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss),
    *(functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits),
)
"""Losses of torch that compare elements."""


class _Comparison(TorchFunctionMode):
    """Raises ``ValueError`` where outputs and targets, whose shapes differ, are compared each with
    all others.

    Pairs of outputs, or of targets, may be compared.
    """

    def __init__(self, output: Tensor, target: Tensor, wide: torch.Size) -> None:
        super().__init__()
        self._output = output
        self._target = target
        self._wide = wide

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [each for each in (*args, *(kwargs or {}).values()) if isinstance(each, Tensor)]
        compares = len(tensors) == 2 and self._are_compared(*tensors)
        if not (compares and func in ELEMENTWISE_FUNCTIONS):
            result = func(*args, **(kwargs or {}))
            if not (compares and isinstance(result, Tensor) and result.shape == self._wide):
                return result
        raise ValueError(mismatch(self._output, self._target, func.__name__.strip("_")))

    def _are_compared(self, one: Tensor, other: Tensor) -> bool:
        if (one.shape, other.shape) not in permutations((self._output.shape, self._target.shape)):
            return False
        parts = {each.untyped_storage().data_ptr() for each in (self._output, self._target)}
        return one.requires_grad != other.requires_grad or parts == {
            each.untyped_storage().data_ptr() for each in (one, other)
        }


class ComparingStep(TorchFunctionMode):
    """Raises ``ValueError`` where a step compares outputs (n, 1) with targets (n,), each with all
    others.

    The losses of torch never do that on purpose; arithmetic is looked at if it is of y, or what was
    made of y.
    """

    def __init__(self, y: Any) -> None:
        super().__init__()
        self._targets = [each for each in leaves(y) if isinstance(each, Tensor)]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [each for each in (*args, *(kwargs or {}).values()) if isinstance(each, Tensor)]
        own = [any(each is target for target in self._targets) for each in tensors]
        wide = (
            widened(*tensors)
            if len(tensors) == 2 and tensors[0].dim() != tensors[1].dim()
            else None
        )
        if wide is not None and func in ELEMENTWISE_FUNCTIONS:
            raise ValueError(mismatch(tensors[0], tensors[1], func.__name__))
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            if wide is not None and result.shape == wide and sum(own) == 1:
                target, output = tensors if own[0] else reversed(tensors)
                if output.requires_grad:
                    raise ValueError(mismatch(output, target, func.__name__.strip("_")))
            if any(own) and not result.requires_grad:
                self._targets.append(result)
        return result


def widened(one: Tensor, other: Tensor) -> torch.Size | None:
    """Return the shape that tensors of as many numbers are broadcast to, if it has more."""
    if one.shape == other.shape or one.numel() != other.numel() or min(one.dim(), other.dim()) < 1:
        return None
    with suppress(RuntimeError):  # shapes that are not broadcast
        wide: torch.Size = torch.broadcast_shapes(one.shape, other.shape)  # type: ignore[no-untyped-call]
        return wide if wide.numel() > one.numel() else None
    return None


def comparing(output: Any, target: Any) -> AbstractContextManager[object]:
    """Return the context of a user's loss or metric, which raises where it broadcasts outputs and
    targets.
    """
    if not (isinstance(output, Tensor) and isinstance(target, Tensor)):
        return nullcontext()
    wide = widened(output, target)
    return nullcontext() if wide is None else _Comparison(output, target, wide)


def mismatch(output: Tensor, target: Tensor, name: str) -> str:
    """Return the message on a loss that compares outputs and targets of different shapes."""
    like = (
        f"y[{':, ' * target.dim()}None] for a single output"
        if output.dim() > target.dim()
        else ("y[:, 0]")
    )
    return (
        f"outputs have shape {tuple(output.shape)} and targets {tuple(target.shape)}, and {name} "
        f"compares them element by element: give targets of the outputs' shape, such as {like}"
    )
