"""What a parameter server holds under one key."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from compss_train.data.block import Block, as_tensor
from compss_train.model.optimizers import OptimizerFactory

Kinds: TypeAlias = "list[tuple[torch.dtype, tuple[int, ...]]]"
"""The dtype and shape of each array of a key."""


def check_arrays(key: str, kinds: Kinds, name: str, arrays: Sequence[Block]) -> None:
    """Raise ``ValueError`` unless these are as many arrays, of such dtypes and shapes, as the key holds."""
    checked(name, arrays)
    check_kinds(key, kinds, name, [(dtype_of(array), tuple(array.shape)) for array in arrays])


def check_kinds(key: str, kinds: Kinds, name: str, given: Kinds) -> None:
    """Raise ``ValueError`` unless arrays of these kinds are like those that the key holds."""
    if not given or (len(kinds) > 1 and len(given) != len(kinds)):
        raise ValueError(f"{key!r} holds {len(kinds)} arrays, but {name} are {len(given)}")
    for number, (dtype, shape) in enumerate(given):
        if (dtype, shape) != (held := kinds[number if len(kinds) > 1 else 0]):
            raise ValueError(
                f"{key!r} holds an array of {held[0]} {held[1]}, but {name}[{number}] is of {_plain(dtype)} "
                f"{shape}; dtypes and shapes must agree"
            )


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Entry:
    """A key's arrays, and the optimizer that updates them, if any. One thread at a time."""

    def __init__(self, key: str, value: Sequence[Block], optimizer: OptimizerFactory | None) -> None:
        self._key = key
        self._values: list[torch.Tensor] = [own_tensor(block) for block in checked("value", value)]
        self.kinds: Kinds = [(value.dtype, tuple(value.shape)) for value in self._values]
        """What the arrays are."""
        self._are_arrays = [isinstance(block, np.ndarray) for block in value]
        self._optimizer: torch.optim.Optimizer | None = None
        if optimizer is not None:
            parameters = [nn.Parameter(value) for value in self._values]
            self._values, self._optimizer = list(parameters), optimizer(parameters)

    @property
    def values(self) -> Sequence[torch.Tensor]:
        """The arrays themselves, which the next update changes."""
        return [value.detach() for value in self._values]

    def check(self, name: str, arrays: Sequence[Block]) -> None:
        """Raise ``ValueError`` unless these arrays are like those that the key holds."""
        check_arrays(self._key, self.kinds, name, arrays)

    @torch.no_grad()
    def update(self, grads: Sequence[torch.Tensor]) -> None:
        """Take a step of the optimizer along the gradients, or add them."""
        sums = self._summed(grads)
        if self._optimizer is None:
            for value, grad in zip(self._values, sums, strict=True):
                _add(value, grad)
            return
        for value, grad in zip(self._values, sums, strict=True):
            value.grad = grad
        self._optimizer.step()
        for value in self._values:
            value.grad = None

    def _summed(self, grads: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return a gradient for each array; of one array they come from several devices."""
        if len(self._values) > 1 or len(grads) == 1:
            return grads
        total = grads[0].clone()
        for grad in grads[1:]:
            total += grad
        return [total]

    def copy_into(self, weights: Sequence[Block]) -> None:
        """Copy the arrays into others, in place."""
        copy_values(self._values, weights)

    def copies(self) -> list[Block]:
        """Return copies of the arrays, of the kinds that they were given in."""
        own = [value.detach().clone() for value in self._values]
        return [
            tensor.numpy() if is_array else tensor for tensor, is_array in zip(own, self._are_arrays, strict=True)
        ]


def _add(value: torch.Tensor, grad: torch.Tensor) -> None:
    """Add in this thread alone: torch shares it among threads, which wait for one another on busy machines."""
    if value.dtype == torch.bfloat16:  # which numpy does not know
        value += grad
    else:
        array = value.numpy()
        np.add(array, grad.numpy(), out=array)


class Entries:
    """A server's entries by key. They may be added from several threads."""

    def __init__(self, optimizer: OptimizerFactory | None) -> None:
        self._optimizer = optimizer
        self._entries: dict[str, Entry] = {}
        self._adding = threading.Lock()

    def add(self, key: str, value: Sequence[Block]) -> None:
        """Make an entry; raise ``ValueError`` where there is one already."""
        entry = Entry(key, value, self._optimizer)
        with self._adding:
            if key in self._entries:
                raise ValueError(f"{key!r} is there already; push to it, or take another name")
            self._entries[key] = entry

    def __getitem__(self, key: str) -> Entry:
        """Return an entry; raise ``ValueError`` where there is none."""
        try:
            return self._entries[key]
        except KeyError:
            known = ", ".join(map(repr, list(self._entries)[:10])) or "no keys"
            raise ValueError(f"{key!r} is not there, init it first; there are {known}") from None


@torch.no_grad()
def copy_values(values: Sequence[torch.Tensor], weights: Sequence[Block]) -> None:
    """Copy values into arrays, in place; a single value into each of them."""
    for number, weight in enumerate(weights):
        value = values[number if len(values) > 1 else 0].detach()
        if value.numel() and as_tensor(weight).data_ptr() == value.data_ptr():
            continue  # it is there already
        if isinstance(weight, torch.Tensor):
            weight.copy_(value)
        else:
            np.copyto(weight, value.numpy())


def checked(name: str, arrays: Sequence[Block]) -> Sequence[Block]:
    """Return a sequence of at least one array; raise ``TypeError`` or ``ValueError`` for anything else."""
    if not isinstance(arrays, list | tuple) or not all(isinstance(a, np.ndarray | torch.Tensor) for a in arrays):
        raise TypeError(f"{name} must be a list of arrays or tensors, not {type(arrays).__name__}; give [array]")
    if not arrays:
        raise ValueError(f"{name}=[]: give at least one array")
    return arrays


def own_tensor(block: Block) -> torch.Tensor:
    """Return a copy on the CPU."""
    if isinstance(block, torch.Tensor):
        return block.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return torch.from_numpy(np.array(block, order="C"))


def dtype_of(array: Block) -> torch.dtype:
    """Return torch's dtype of an array or tensor."""
    return array.dtype if isinstance(array, torch.Tensor) else _dtype_of_arrays(array.dtype)


@functools.cache
def _dtype_of_arrays(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
