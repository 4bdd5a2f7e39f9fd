"""Broadcasting of outputs (n, 1) and targets (n,), which compares each sample with all others.

It gives n² differences, silently. The losses of torch and of this package check shapes; a user's
own functions are watched while they run.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import permutations
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from compss_train._utils.nested import leaves

ELEMENTWISE_FUNCTIONS = (
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.huber_loss,
    functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
)
"""Losses of torch that compare elements."""


class _Comparison(TorchFunctionMode):
    """Raises ``ValueError`` where outputs and targets, whose shapes differ, are broadcast.

    Pairs of outputs, or of targets, may be broadcast.
    """

    def __init__(self, output: Tensor, target: Tensor, broadcast: torch.Size) -> None:
        super().__init__()
        self._output = output
        self._target = target
        self._broadcast = broadcast

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = _tensors(args, kwargs)
        compares = len(tensors) == 2 and self._are_compared(*tensors)
        if not compares:
            return func(*args, **kwargs)
        if func not in ELEMENTWISE_FUNCTIONS:
            result = func(*args, **kwargs)
            if not isinstance(result, Tensor) or result.shape != self._broadcast:
                return result
        raise ValueError(mismatch(self._output, self._target, func.__name__.strip("_")))

    def _are_compared(self, first: Tensor, second: Tensor) -> bool:
        """Return whether one tensor is of the outputs, and the other of the targets."""
        shapes = (first.shape, second.shape)
        if shapes not in permutations((self._output.shape, self._target.shape)):
            return False
        if first.requires_grad != second.requires_grad:
            return True
        return _memory(first, second) == _memory(self._output, self._target)


class ComparingStep(TorchFunctionMode):
    """Raises ``ValueError`` where a step broadcasts outputs (n, 1) and targets (n,).

    The losses of torch never do that on purpose; arithmetic is looked at if it is of y, or what was
    made of y.
    """

    def __init__(self, y: Any) -> None:
        super().__init__()
        self._targets = [leaf for leaf in leaves(y) if isinstance(leaf, Tensor)]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = _tensors(args, kwargs)
        of_y = [any(tensor is target for target in self._targets) for tensor in tensors]
        broadcast = None
        if len(tensors) == 2 and tensors[0].dim() != tensors[1].dim():
            broadcast = broadcast_shape(*tensors)
        if broadcast is not None and func in ELEMENTWISE_FUNCTIONS:
            raise ValueError(mismatch(tensors[0], tensors[1], func.__name__))
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            if broadcast is not None and result.shape == broadcast and sum(of_y) == 1:
                target, output = tensors if of_y[0] else reversed(tensors)
                if output.requires_grad:
                    raise ValueError(mismatch(output, target, func.__name__.strip("_")))
            if any(of_y) and not result.requires_grad:
                self._targets.append(result)
        return result


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors among the arguments of a function."""
    return [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]


def _memory(*tensors: Tensor) -> set[int]:
    """Return the addresses of the tensors' memory."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def broadcast_shape(first: Tensor, second: Tensor) -> torch.Size | None:
    """Return the shape that tensors of as many numbers are broadcast to, if it has more."""
    if first.shape == second.shape or first.numel() != second.numel():
        return None
    if first.dim() < 1 or second.dim() < 1:
        return None
    with suppress(RuntimeError):  # shapes that are not broadcast
        shape: torch.Size = torch.broadcast_shapes(first.shape, second.shape)  # type: ignore[no-untyped-call]
        return shape if shape.numel() > first.numel() else None
    return None


def comparing(output: Any, target: Any) -> AbstractContextManager[object]:
    """Return the context of a user's loss or metric: broadcasting both raises ``ValueError``."""
    if not (isinstance(output, Tensor) and isinstance(target, Tensor)):
        return nullcontext()
    broadcast = broadcast_shape(output, target)
    return nullcontext() if broadcast is None else _Comparison(output, target, broadcast)


def mismatch(output: Tensor, target: Tensor, name: str) -> str:
    """Return the message on a loss that compares outputs and targets of different shapes."""
    like = "y[:, 0]"
    if output.dim() > target.dim():
        like = f"y[{':, ' * target.dim()}None] for a single output"
    return (
        f"outputs have shape {tuple(output.shape)} and targets {tuple(target.shape)}, and {name} "
        f"compares them element by element: give targets of the outputs' shape, such as {like}"
    )
