"""Columns of Arrow's tables, in files and data sets, as arrays of numbers."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.imports import import_optional
from compss_train.data.block import Block
from compss_train.data.classes import quote_values
from compss_train.data.conversions import check_complete
from compss_train.data.layout import FileContentError
from compss_train.data.ragged import Ragged
from compss_train.data.values import shared_tensor


def import_pyarrow(module: str = "pyarrow") -> Any:
    """Return pyarrow or one of its modules; an error says how to install it."""
    return import_optional(
        module, extra="arrow", needed_by="tables (Parquet, Arrow, CSV)", package="pyarrow"
    )


@cache  # of a few types, asked for each of many columns
def is_text(kind: Any) -> bool:
    """Return whether columns of an Arrow type hold strings, or categories of strings or numbers."""
    types = import_pyarrow().types
    if types.is_dictionary(kind):
        return is_text(kind.value_type) or _is_number(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_number(kind: Any) -> bool:
    """Return whether columns of this Arrow type hold numbers, and not lists of them."""
    dtype, sizes = number_type(kind)
    return dtype is not None and not sizes


@cache
def number_type(kind: Any) -> tuple[np.dtype[Any] | None, tuple[int | None, ...]]:
    """Return the dtype of the numbers in an Arrow column, and the sizes of lists that hold them.

    The dtype is ``None`` for anything but numbers; a size is ``None`` for lists that may differ in
    length.
    """
    types = import_pyarrow().types
    sizes = []
    if is_tensor(kind):
        if not _has_one_meaning(_permutation(kind)):
            return None, ()
        sizes = [kind.shape[dimension] for dimension in _permutation(kind)]
        kind = kind.value_type
    kind = _storage_type(kind)
    while _is_list(kind):
        sizes.append(getattr(kind, "list_size", None))
        kind = _storage_type(kind.value_type)
    is_number = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return np.dtype(kind.to_pandas_dtype()) if is_number else None, tuple(sizes)


def is_tensor(kind: Any) -> bool:
    """Return whether columns of this Arrow type hold tensors of one shape."""
    return isinstance(kind, import_pyarrow().FixedShapeTensorType)


def type_name(kind: Any) -> str:
    """Return the name of an Arrow type that holds no numbers, for messages."""
    if is_tensor(kind):
        return f"tensors with permutation={_permutation(kind)}"
    return str(kind)


def _has_one_meaning(permutation: Sequence[int]) -> bool:
    """Return whether a permutation is its own inverse.

    Otherwise pyarrow writes the inverse of what Arrow's specification says, and reads neither.
    """
    return all(permutation[place] == number for number, place in enumerate(permutation))


def _permutation(kind: Any) -> list[int]:
    """Return which stored dimension of a tensor's Arrow type is the first, second, ... one."""
    return [*range(len(kind.shape))] if kind.permutation is None else list(kind.permutation)


def _storage_type(kind: Any) -> Any:
    """Return the type by which an extension type is stored, and other types unchanged."""
    return getattr(kind, "storage_type", kind)


def _is_list(kind: Any) -> bool:
    types = import_pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def check_coded(name: str, kind: Any, classes: Sequence[Any]) -> None:
    """Raise ``FileContentError`` if a column of this Arrow type cannot hold these classes."""
    value_kind = kind.value_type if import_pyarrow().types.is_dictionary(kind) else kind
    can_hold = is_text if isinstance(classes[0], str) else _is_number
    if not can_hold(value_kind):
        raise FileContentError(
            f"holds {kind} in {name!r}, whose classes are {quote_values(classes)}: convert the "
            f"column, or give classes={{{name!r}: [...]}} of its type"
        )


def check_no_nulls(name: str, column: Any, first: int = 0) -> None:
    """Raise ``FileContentError`` for missing values in an Arrow column.

    ``first`` is the number of its first row.
    """
    # A dictionary itself may hold a missing value.
    if is_text(column.type) and hasattr(column.type, "value_type"):
        column = column.cast(column.type.value_type)
    if column.null_count:
        check_complete(name, np.asarray(column.is_null()), first)


def number_blocks(name: str, chunks: Sequence[Any]) -> list[Block]:
    """Return chunks of an Arrow column as arrays, without a copy where numpy stores numbers alike.

    Lists that differ in length are ``Ragged``, in all chunks. Raises ``FileContentError`` for lists
    within lists that differ in length, and for missing values in lists.
    """
    flattened = [_flattened(name, chunk) for chunk in chunks]
    sizes: Any = number_type(chunks[0].type)[1]
    if None in sizes:
        lengths_by_level = zip(*(lengths for _, lengths in flattened), strict=True)
        sizes = [_common_length(np.concatenate(lengths)) for lengths in lengths_by_level]
    if None in sizes[1:]:
        raise FileContentError(
            f"holds lists of different lengths within those of {name!r}: pad them"
        )
    blocks: list[Block] = []
    for chunk, (values, lengths) in zip(chunks, flattened, strict=True):
        array = values.to_numpy(zero_copy_only=False)
        if None in sizes:
            items = shared_tensor(array).reshape(-1, *sizes[1:])
            offsets = torch.from_numpy(np.append(0, lengths[0]).cumsum())
            blocks.append(Ragged.of(items, offsets))
        else:
            blocks.append(_shaped(array, chunk, sizes))
    return blocks


def _shaped(array: NDArray[Any], chunk: Any, sizes: Sequence[int]) -> NDArray[Any]:
    """Return the numbers of a column in their shape; permuted tensors are copied."""
    kind = chunk.type
    if is_tensor(kind):
        stored = array.reshape(len(chunk), *kind.shape)
        axes = [1 + dimension for dimension in _permutation(kind)]
        return np.ascontiguousarray(stored.transpose(0, *axes))
    return array.reshape(len(chunk), *sizes)


def _flattened(name: str, values: Any) -> tuple[Any, list[NDArray[Any]]]:
    """Return the values in Arrow's lists and the lengths of the lists, outermost first.

    Raises ``FileContentError`` for missing values within lists; fixed-size lists would silently
    drop them.
    """
    lengths = []
    values = _storage(values)
    while _is_list(values.type):
        size = getattr(values.type, "list_size", None)
        lengths.append(
            np.diff(values.offsets.to_numpy()) if size is None else np.full(len(values), size)
        )
        values = values.flatten()
        if values.null_count:
            raise FileContentError(
                f"lacks values within lists of {name!r}: fill them in, or leave the column out"
            )
        values = _storage(values)
    return values, lengths


def _storage(values: Any) -> Any:
    """Return the values by which those of an extension type are stored, and others unchanged."""
    return getattr(values, "storage", values)


def _common_length(lengths: NDArray[Any]) -> int | None:
    """Return the length of all lists, or ``None`` if lengths differ."""
    first = int(lengths[0]) if len(lengths) else 0
    return first if (lengths == first).all() else None
