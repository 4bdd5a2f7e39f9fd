"""Which values a tensor can hold: one check for all ways in, arrays, files, data sets, sequences and senders."""

from collections.abc import Collection, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.validation import check_dense

_Array = TypeVar("_Array")


def check_values(name: str, value: object) -> None:
    """Raise ``TypeError`` for arrays and tensors that are masked or sparse, and for iterators.

    ``name`` is the subject of the message, such as ``"a block"``. Items of lists are not looked at.
    """
    if isinstance(value, torch.Tensor):
        check_dense(name, value)
    elif hasattr(value, "nnz") and hasattr(value, "toarray"):
        raise TypeError(f"{name} is a {type(value).__name__}, which is sparse; give array.toarray()")
    elif np.ma.is_masked(value):
        raise TypeError(
            f"{name} is a masked array, whose masked values would be trained on; give array.filled(value), or "
            "leave these samples out, or give them a sample_weight of 0"
        )
    elif isinstance(value, Iterator):
        raise TypeError(
            f"{name} is a {type(value).__name__}, which can be read only once; give a list or an array of its "
            "items, or a torch.utils.data.IterableDataset"
        )


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise ``TypeError`` for a dtype that torch does not support."""
    try:
        torch.from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError) as error:
        labels = "np.unique(labels, return_inverse=True)[1] of labels"
        hint = f"; a tokenizer makes integers of text, and {labels}" if dtype.kind in "USO" else ""
        raise TypeError(
            f"torch cannot hold arrays of dtype {dtype}; convert them to numbers or booleans in native byte "
            f"order{hint}"
        ) from error


_SIGNED = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}
"""Dtypes whose rows torch cannot select, and those that hold their values."""


def signed(array: _Array) -> _Array:
    """Return arrays and tensors of unsigned integers of 16 and more bits as signed ones, and others unchanged.

    Raises ``ValueError`` for integers of 2**63 and more, which would become negative.
    """
    own: Any = array
    name = str(own.dtype).removeprefix("torch.")
    if name not in _SIGNED:
        return array
    wider: Any = own.astype(_SIGNED[name]) if isinstance(own, np.ndarray) else own.to(getattr(torch, _SIGNED[name]))
    if name == "uint64" and (wider < 0).any():
        largest = int(wider[wider < 0].max()) + 2**64
        raise ValueError(f"holds {largest}, and the largest integer of a tensor is 2**63 - 1: make them floats")
    return wider  # type: ignore[no-any-return]


class _Writable:
    """Lets torch, which knows no read-only tensors, share the memory of a read-only array."""

    def __init__(self, array: NDArray[Any]) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self.array = array


def shared_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the memory of an array; nobody may write to it if the array is read-only."""
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))


def tensor_of(value: Any) -> torch.Tensor:
    """Return an array, a tensor or a list of numbers as a tensor; raise ``ValueError`` for what none can hold.

    It shares memory that it must not be written through.
    """
    try:
        is_read_only = isinstance(value, np.ndarray) and not value.flags.writeable
        return torch.as_tensor(np.asarray(_Writable(value)) if is_read_only else value)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"no tensor can hold this {type(value).__name__}: {error}; give numbers, and integers below 2**63"
        ) from error


def check_parts(name: str, values: Collection[Any]) -> None:
    """Check each item of a list as ``check_values`` does, and its dtype."""
    for value in values:
        check_values(name, value)
        if isinstance(value, np.ndarray | np.generic):
            check_dtype(value.dtype)
