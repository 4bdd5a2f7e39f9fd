"""The structure of a sample: tuples and dicts, nested as they like, around tensors and arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from compss_train.data.block import check_dtype


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
    """Iterate over what is in the tuples and dicts of ``value``; a dict's order does not matter."""
    if isinstance(value, tuple | dict):
        for name in _names(value):
            yield from leaves(value[name])
    else:
        yield value


def _names(container: Any) -> Sequence[Any]:
    return sorted(container, key=repr) if isinstance(container, dict) else range(len(container))


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Return ``value`` with every leaf replaced by what ``function`` makes of it, in the order of ``leaves``."""
    if not isinstance(value, tuple | dict):
        return function(value)
    made = {name: map_leaves(function, value[name]) for name in _names(value)}
    if isinstance(value, dict):
        return {name: made[name] for name in value}
    return type(value)(*made.values()) if hasattr(value, "_fields") else tuple(made.values())


def same(value: Any, other: Any) -> bool:
    """Tell whether two structures are of the same types, with equal leaves."""
    if type(value) is not type(other):
        return False
    if not isinstance(value, tuple | dict):
        return bool(value == other)
    return list(_names(value)) == list(_names(other)) and all(same(value[n], other[n]) for n in _names(value))


def first(batch: Any) -> Any:
    """Return the first sample of a batch; arrays of one element stay arrays."""
    return map_leaves(lambda rows: rows[0] if isinstance(rows, list) else rows[0, ...], batch)


def as_dense(value: Any) -> Any:
    """Return ``value`` if it consists of tensors and arrays, with numbers beside them made such; else ``None``."""
    parts = list(leaves(value))
    dense = [_is_dense(part) for part in parts]
    if all(dense) and parts:
        return value
    if any(dense) and all(known or isinstance(part, _NUMBERS) for known, part in zip(dense, parts, strict=True)):
        return map_leaves(_from_number, value)
    return None


_NUMBERS = (bool, int, float, complex, np.number, np.bool_)


def _from_number(leaf: Any) -> Any:
    if isinstance(leaf, np.generic):
        return np.asarray(leaf)
    return torch.tensor(leaf) if isinstance(leaf, _NUMBERS) else leaf


def _is_dense(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        strided = leaf.layout is torch.strided and not leaf.is_nested
        return strided and not leaf.is_quantized and leaf.device.type != "meta"
    # Other subclasses of arrays know more than their numbers: masks, units.
    return type(leaf) in (np.ndarray, np.memmap) and _torch_holds(leaf.dtype)


def _torch_holds(dtype: np.dtype[Any]) -> bool:
    try:
        check_dtype(dtype)
    except TypeError:
        return False
    return True
