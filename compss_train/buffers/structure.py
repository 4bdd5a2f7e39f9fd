"""The structure of a sample: tuples and dicts, nested as they like, around tensors and arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Leaf:
    """What all samples have in common at one place of their structure."""

    is_array: bool
    """A numpy array, given back as one; else a tensor."""
    dtype: torch.dtype
    shape: tuple[int, ...]

    def __repr__(self) -> str:
        kind = "array" if self.is_array else "tensor"
        return f"{kind} of {str(self.dtype).removeprefix('torch.')} {self.shape}"


def leaves(value: object) -> Iterator[Any]:
    """Iterate over what is in the tuples and dicts of ``value``, from the left."""
    if isinstance(value, tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    else:
        yield value


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Return ``value`` with every leaf replaced by what ``function`` makes of it."""
    if isinstance(value, dict):
        return {name: map_leaves(function, part) for name, part in value.items()}
    if isinstance(value, tuple):
        parts = [map_leaves(function, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return function(value)


def is_dense(value: object) -> bool:
    """Tell whether ``value`` consists of tensors and arrays of numbers, which can be stored as rows."""
    parts = list(leaves(value))
    return bool(parts) and all(map(_is_numbers, parts))


def _is_numbers(leaf: object) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.layout is torch.strided and not leaf.is_quantized
    return isinstance(leaf, np.ndarray) and _torch_holds(leaf.dtype)


def _torch_holds(dtype: np.dtype[Any]) -> bool:
    try:
        torch.from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError):
        return False
    return True
