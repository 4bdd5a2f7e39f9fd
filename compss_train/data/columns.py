"""Columns: x and y as a flat list of tensors with a row for each sample, and their structure.

Columns are first those of x, then those of y and of the weights. Sources, batches and engines see
only columns; a batch gets its structure when it is assembled from them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from compss_train._utils.nested import leaves, rebuilt
from compss_train.data.block import as_block
from compss_train.data.frames import is_frame
from compss_train.data.ragged import Ragged, is_ragged
from compss_train.data.values import check_values


@dataclass(frozen=True, slots=True)
class ColumnStructure:
    """The tuples, lists and dicts of x and y, with ``None`` for each column.

    A single column is ``None`` itself.
    """

    x: Any = None
    y: Any = None
    """The structure of y; without columns for y, x is its own target."""
    ragged: bool = False
    """Whether some columns have sequences of different lengths."""
    weighted: bool = False
    """Whether the last column holds the samples' weights."""

    def parts(self, columns: Iterable[torch.Tensor]) -> tuple[Any, Any, torch.Tensor | None]:
        """Return x, y and weights of these columns, as the network and the loss receive them."""
        tensors = list(columns)
        weight = tensors.pop() if self.weighted else None
        if self.x is None and self.y is None:  # as in most fits
            y = tensors[1] if len(tensors) > 1 else None
            return tensors[0], y, weight
        remaining = iter(tensors)
        x = rebuilt(self.x, remaining)
        y = rebuilt(self.y, remaining) if len(tensors) > len(leaves(x)) else None
        return x, y, weight


SINGLE = ColumnStructure()
"""One column for x, and perhaps one for y."""


def columns_of(value: Any, name: str) -> tuple[Any, dict[str, Any]]:
    """Return the tuples, lists and dicts of data, with ``None`` for each column, and the columns.

    Columns are arrays, frames and blocked tensors; their keys are names for messages, such as
    ``x['user']``.

    Dicts are several columns, and so are tuples and lists of arrays, frames or blocked tensors. But
    a list of arrays of one dtype and shape is one array with a sample for each, as in numpy, and a
    list of sequences that differ in length is ``Ragged``. Raises ``ValueError`` for empty data.
    """
    if isinstance(value, PackedSequence):  # which is a tuple
        check_values(name, value)
    if isinstance(value, list) and all(map(is_frame, value)) and len({*map(len, value)}) > 1:
        value = [frame.to_numpy() for frame in value]  # sequences, as of a groupby
    if isinstance(value, Mapping):
        parts = {key: columns_of(item, f"{name}[{key!r}]") for key, item in value.items()}
    elif isinstance(value, tuple | list) and _are_columns(value):
        parts = {key: columns_of(item, f"{name}[{key!r}]") for key, item in enumerate(value)}
    elif isinstance(value, tuple | list):
        return None, {name: Ragged(value) if is_ragged(value) else as_block(value)}
    else:
        return None, {name: value}
    if not parts:
        raise ValueError(f"an empty {type(value).__name__} has no samples")
    columns: dict[str, Any] = {}
    for _, part_columns in parts.values():
        columns |= part_columns
    structure: Any = {key: part_structure for key, (part_structure, _) in parts.items()}
    if not isinstance(value, Mapping):
        is_tuple = isinstance(value, tuple) or any(map(is_frame, value))
        structure = tuple(structure.values()) if is_tuple else list(structure.values())
    return structure, columns


def _are_columns(items: Sequence[Any]) -> bool:
    if not items or not all(map(_is_column, items)):
        return False
    arrays = [item for item in items if isinstance(item, np.ndarray | torch.Tensor)]
    if isinstance(items, tuple) or len(arrays) < len(items):
        return True
    lengths = {len(array) for array in arrays}
    kinds = {(str(array.dtype), array.shape) for array in arrays}
    return len(lengths) == 1 and len(kinds) > 1


def _is_column(item: Any) -> bool:
    if isinstance(item, np.ndarray | torch.Tensor):
        return item.ndim > 0
    if isinstance(item, tuple | list):
        return _are_columns(item)
    return isinstance(item, Mapping | Ragged) or hasattr(item, "tensors") or is_frame(item)


def column_groups(role: str, names: Any) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """Return the names of the arrays of x or y, in their dicts, tuples and lists, and the groups.

    A list of names is one array of several columns, a group, which is called by its place, such as
    ``x['codes']``. Raises ``TypeError`` for other values, ``ValueError`` if there are none, or a
    column of an array is named twice.
    """
    if isinstance(names, str):
        return names, {}
    if not isinstance(names, Mapping | list | tuple):
        raise TypeError(
            f"{role}={names!r}: give the name of an array, or a list of names of columns; for "
            "several inputs or targets a dict or a tuple of these"
        )
    columns = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    if not names or len({*columns}) < len(columns):
        raise ValueError(f"{role}={names!r}: name at least one column, and each once")
    if len(columns) == len(names):
        return role, {role: tuple(columns)}
    keys = [*names] if isinstance(names, Mapping) else range(len(names))
    arrays: dict[Any, Any] = {}
    groups: dict[str, tuple[str, ...]] = {}
    for key in keys:
        arrays[key], groups_of_part = column_groups(f"{role}[{key!r}]", names[key])
        groups |= groups_of_part
    return arrays if isinstance(names, Mapping) else type(names)(arrays.values()), groups
