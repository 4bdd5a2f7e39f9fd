"""The values that samples may hold: the checks and conversions for all ways in.

Arrays, files, data sets, sequences and senders pass ``check_values`` and ``check_dtype``. Torch is
imported where tensors are made: senders of arrays make none.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.validation import check_dense

if TYPE_CHECKING:
    import torch

_Array = TypeVar("_Array")


def check_values(name: str, value: object) -> None:
    """Raise ``TypeError`` for arrays and tensors that are masked or sparse, and for iterators.

    ``name`` is the subject of the message, such as ``"a block"``. Items of lists are not looked at.
    """
    if type(value) is np.ndarray:  # which may come by the thousand a second
        return
    # Before a program imports torch, it has no tensors.
    if isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ())):
        check_dense(name, value)
    elif hasattr(value, "nnz") and hasattr(value, "toarray"):
        raise TypeError(
            f"{name} is a {type(value).__name__}, which is sparse; give array.toarray()"
        )
    elif np.ma.is_masked(value):
        raise TypeError(
            f"{name} is a masked array, whose masked values would be trained on; give "
            "array.filled(value), or leave these samples out, or give them a sample_weight of 0"
        )
    elif is_grouped(value):
        raise TypeError(
            f"{name} is a {type(value).__name__}, which holds groups of rows: give the frame "
            "itself, a row for each group, as of groups.mean(), or sequences, [group[columns] "
            "for _, group in groups]"
        )
    elif hasattr(value, "lazy") and callable(getattr(value, "collect", None)):
        raise TypeError(
            f"{name} is a {type(value).__name__}, whose rows are not read yet: give "
            "frame.collect(), or files larger than memory as FileDataset('data.parquet', x=..., "
            "y=...)"
        )
    elif type(value).__name__ == "PackedSequence":
        raise TypeError(
            f"{name} is a PackedSequence, whose rows are steps of several samples: give "
            "Ragged(torch.nn.utils.rnn.unpack_sequence(packed)), or the list of sequences "
            "itself, and pack batches in build(collate=) or in the network"
        )
    elif isinstance(value, Iterator):
        raise TypeError(
            f"{name} is a {type(value).__name__}, which can be read only once; give a list or an "
            "array of its items, or a torch.utils.data.IterableDataset"
        )


def is_grouped(value: object) -> bool:
    """Return whether a value is what ``groupby`` of pandas or polars returns; imports neither."""
    return type(value).__name__.endswith("GroupBy") and hasattr(value, "agg")


def check_parts(name: str, values: Collection[Any]) -> None:
    """Check each item of a list as ``check_values`` does, and its dtype."""
    for value in values:
        check_values(name, value)
        if isinstance(value, np.ndarray | np.generic):
            check_dtype(value.dtype)


_DTYPES = frozenset(
    np.dtype(name)
    for name in (
        *("float16", "float32", "float64", "complex64", "complex128", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
)
"""The dtypes of numpy that torch has, too."""


@cache
def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise ``TypeError`` for a dtype that torch does not support."""
    if dtype in _DTYPES:
        return
    text = (
        "; a tokenizer makes integers of text, FileDataset(names) reads files, "
        "np.unique(labels, return_inverse=True)[1] of labels, and array.astype(float) converts "
        "numbers that are Python objects"
    )
    hint = text if dtype.kind in "USO" else ""
    raise TypeError(f"torch cannot hold dtype {dtype}; make it numbers in native byte order{hint}")


_SIGNED: dict[Any, str] = {
    np.dtype(np.uint16): "int32",
    np.dtype(np.uint32): "int64",
    np.dtype(np.uint64): "int64",
    "torch.uint16": "int32",
    "torch.uint32": "int64",
    "torch.uint64": "int64",
}
"""Dtypes whose rows torch cannot select, its own by name, and those that hold their values."""


def signed(array: _Array) -> _Array:
    """Return an array or tensor of unsigned integers of 16 and more bits as one of signed integers.

    Those of other dtypes are returned unchanged. Raises ``ValueError`` for integers of 2**63 and
    more, which would become negative.
    """
    unsigned: Any = array
    is_array = isinstance(unsigned, np.ndarray)
    signed_dtype = _SIGNED.get(unsigned.dtype if is_array else str(unsigned.dtype))
    if signed_dtype is None:
        return array
    integers: Any
    if is_array:
        integers = unsigned.astype(signed_dtype)
    else:
        import torch

        integers = unsigned.to(getattr(torch, signed_dtype))
    if unsigned.dtype.itemsize == 8 and (integers < 0).any():
        largest = int(integers[integers < 0].max()) + 2**64
        raise ValueError(
            f"holds {largest}, and the largest integer of a tensor is 2**63 - 1: make them floats"
        )
    return integers  # type: ignore[no-any-return]


class _Writable:
    """Lets torch, which knows no read-only tensors, share the memory of a read-only array."""

    def __init__(self, array: NDArray[Any]) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self.array = array


def shared_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the memory of an array.

    Nobody may write to it if the array is read-only.
    """
    import torch

    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))


def tensor_of(value: Any) -> torch.Tensor:
    """Return an array, a tensor or a list of numbers as a tensor.

    It may share memory, so that nobody may write to it. Raises ``ValueError`` for values that no
    tensor can hold.
    """
    import torch

    try:
        is_read_only = isinstance(value, np.ndarray) and not value.flags.writeable
        return torch.as_tensor(np.asarray(_Writable(value)) if is_read_only else value)
    except (TypeError, ValueError, RuntimeError) as error:  # of text, for example
        raise ValueError(
            f"no tensor can hold this {type(value).__name__}: {error}; give numbers, and "
            "integers below 2**63"
        ) from error


def holds_numbers(values: Sequence[Any]) -> bool:
    """Return whether a sequence holds numbers, or lists of numbers."""
    return all(
        isinstance(value, Number) or (isinstance(value, list) and holds_numbers(value))
        for value in values
    )


def holds_arrays(value: object) -> bool:
    """Return whether a value is a list or tuple with arrays or tensors, not with numbers alone."""
    return isinstance(value, list | tuple) and any(getattr(item, "ndim", 0) for item in value)


def check_sample(source: str, sample: object) -> None:
    """Raise ``TypeError`` for what is no sample, or may be more than one.

    ``source`` is what the message begins with, such as ``"the simulation yielded"``.
    """
    if isinstance(sample, list) and holds_arrays(sample):
        raise TypeError(
            f"{source} a list of arrays, which may be x and y or x alone; a sample is a tuple "
            "(x, y), or one array, as np.stack(list) is"
        )
    parts = sample if isinstance(sample, tuple) else (sample,)
    if any(part is None for part in parts):
        raise TypeError(
            f"{source} {'None' if sample is None else 'a tuple with None'}; a sample is (x, y), or "
            "x alone where there is no y"
        )
