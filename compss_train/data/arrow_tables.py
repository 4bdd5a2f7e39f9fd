"""Tables of Arrow that are blocks of a data set: what their columns hold, and x and y of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from compss_train._utils.nested import leaves, places, template_of
from compss_train.data.arrow_columns import (
    check_no_nulls,
    is_tensor,
    is_text,
    number_blocks,
    number_type,
    type_name,
)
from compss_train.data.block import Block, DType, as_tensor
from compss_train.data.classes import quote_values
from compss_train.data.coding import Coding, columns_key
from compss_train.data.conversions import conversion_note, float_dtype
from compss_train.data.layout import FileContentError
from compss_train.data.ragged import Ragged
from compss_train.data.sample_roles import Roles
from compss_train.data.values import signed

SEVERAL = -1
"""The size of a dimension in which samples differ."""


@dataclass(frozen=True)
class Kind:
    """What a column holds."""

    dtype: str
    shape: tuple[int, ...] = ()
    """The shape of a sample, which begins with ``SEVERAL`` for sequences."""

    @classmethod
    def of(cls, block: Block) -> Self:
        """Return what a block holds."""
        return cls(str(block.dtype).removeprefix("torch."), tuple(block.shape[1:]))

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}" if self.shape else self.dtype

    def common(self, other: "Kind") -> "Kind | None":
        """Return what holds samples of both, ``None`` if nothing does.

        Lists of other lengths are sequences.
        """
        if self == other:
            return self
        are_lists = self.dtype == other.dtype and len(self.shape) == len(other.shape) > 0
        if not are_lists or self.shape[1:] != other.shape[1:]:
            return None
        return replace(self, shape=(SEVERAL, *self.shape[1:]))


def kinds_of_columns(table: Any, names: Sequence[str]) -> dict[str, Kind]:
    """Return what columns of a table hold; raise ``FileContentError`` if they hold no numbers."""
    return {name: Kind.of(_array(table, name)) for name in names if len(table)}


def common_kinds(kinds_of_blocks: Sequence[Mapping[str, Kind]]) -> dict[str, Kind]:
    """Return what columns hold in all blocks; raise ``FileContentError`` if blocks differ."""
    kinds = dict(kinds_of_blocks[0])
    for number, kinds_of_block in enumerate(kinds_of_blocks):
        for name, kind in kinds_of_block.items():
            common = kinds[name].common(kind)
            if common is None:
                raise FileContentError(
                    f"holds {kind} in column {name!r} of block {number}, and {kinds[name]} "
                    "before: convert them to one dtype and shape, as by map_batches"
                )
            kinds[name] = common
    return kinds


@dataclass(frozen=True)
class Column:
    """A column of x or y: one of a table, or several of them as an array of shape (rows, n)."""

    names: tuple[str, ...]
    kind: Kind
    is_array: bool = False
    """Whether it is an array of several columns, or of one."""

    @property
    def is_ragged(self) -> bool:
        """Whether samples are sequences of different lengths."""
        return self.kind.shape[:1] == (SEVERAL,)

    @property
    def dtype(self) -> DType:
        """The dtype of its blocks."""
        if self.is_ragged:
            dtype: torch.dtype = getattr(torch, self.kind.dtype)
            return dtype
        return np.dtype(self.kind.dtype)

    def block(self, table: Any) -> Block:
        """Return the rows of a table."""
        arrays = [_array(table, name) for name in self.names]
        if self.is_array:
            columns: Any = arrays
            return np.stack(columns, axis=1, dtype=np.dtype(self.kind.dtype))
        (array,) = arrays
        tensor = array if isinstance(array, Ragged) else as_tensor(array)
        tensor = tensor.to(getattr(torch, self.kind.dtype))
        if isinstance(tensor, Ragged):
            return tensor
        if not self.is_ragged:
            return np.ascontiguousarray(tensor.numpy())
        lengths = torch.full((len(tensor),), tensor.shape[1])
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        return Ragged.of(tensor.flatten(0, 1), offsets)


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """How x and y consist of the columns of tables."""

    columns: dict[str, Column]
    """The columns of x, then of y, by their names in messages, such as ``x['user']``."""
    x: Any
    """The dict of x, with ``None`` for each column."""
    y: Any
    """That of y; ``None`` without targets, too."""
    notes: tuple[str, ...]
    """Conversions that users should be warned of."""
    remarks: tuple[str, ...]
    """Conversions that most users want."""
    coding: Coding

    @classmethod
    def of(cls, kinds: Mapping[str, Kind], roles: Roles, floats: str | None) -> Self:
        """Return the layout of tables with columns of these kinds.

        Columns of numbers that ``roles`` does not name are one array, as those of a frame;
        floating-point numbers become ``floats``.
        """
        x, y = roles.split({name: name for name in kinds})
        names_of_x = leaves(x)
        is_array = (
            roles.x is None and x != "x" and not any(kinds[name].shape for name in names_of_x)
        )
        columns = {}
        coding: Coding = {}
        remarks: tuple[str, ...] = ()
        if is_array:
            x = None
            columns["x"] = _joined(names_of_x, kinds, floats)
            coding[columns_key("x")] = tuple(names_of_x)
            remarks = _remarks("x", columns["x"], kinds)
        else:
            columns |= _columns_at(x, "x", kinds, floats)
        if y is not None:
            columns |= _columns_at(y, "y", kinds, floats)
        dtypes = [
            (column, kinds[name].dtype) for column in columns.values() for name in column.names
        ]
        changed = [
            conversion_note(dtype, column.kind.dtype)
            for column, dtype in dtypes
            if np.dtype(dtype).kind == "f" and dtype != column.kind.dtype
        ]
        return cls(
            columns=columns,
            x=template_of(x),
            y=template_of(y),
            notes=tuple(changed[:1]),
            remarks=remarks,
            coding=coding,
        )


def names_of_parts(names: Sequence[str], roles: Roles) -> list[str]:
    """Return the names of the columns that are x and y, of these names of all columns."""
    parts = leaves(roles.split({name: name for name in names}))
    return [*dict.fromkeys(name for name in parts if name is not None)]


def _columns_at(
    names: Any, place: str, kinds: Mapping[str, Kind], floats: str | None
) -> dict[str, Column]:
    """Return the columns of x or y, each one of the table, by their places."""
    columns = {}
    for key, name in zip(places(names, place), leaves(names), strict=True):
        kind = kinds[name]
        dtype = str(float_dtype(np.dtype(kind.dtype), floats))
        columns[key] = Column((name,), replace(kind, dtype=dtype))
    return columns


def _joined(names: Sequence[str], kinds: Mapping[str, Kind], floats: str | None) -> Column:
    """Return an array of several columns of numbers."""
    dtype = np.result_type(*[np.dtype(kinds[name].dtype) for name in names])
    kind = Kind(str(float_dtype(dtype, floats)), (len(names),))
    return Column(tuple(names), kind, is_array=True)


def _remarks(place: str, column: Column, kinds: Mapping[str, Kind]) -> tuple[str, ...]:
    """Return what there is to say of integers that become floats."""
    dtype = np.dtype(column.kind.dtype)
    integers = [name for name in column.names if np.dtype(kinds[name].dtype).kind in "iu"]
    if dtype.kind != "f" or not integers:
        return ()
    return (
        f"the integers of {quote_values(integers)} in {place} become {dtype}, like the numbers "
        "beside them; if they are codes, name the columns: Samples(dataset, x=[...], y=...) makes "
        "each an input of its own",
    )


def _array(table: Any, name: str) -> Block:
    """Return a column of a table as a block; raise ``FileContentError`` if it holds no numbers."""
    column = table.column(name)
    check_no_nulls(name, column)
    kind = column.type
    chunk = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if hasattr(kind, "ndim"):  # Ray's tensors of several shapes
        if kind.ndim > 1:
            raise FileContentError(f"holds tensors of several shapes in {name!r}: pad them")
        chunk = chunk.storage.flatten()[0]
        kind = chunk.type
    if hasattr(kind, "shape") and not is_tensor(kind):  # Ray's tensors
        array: Block = chunk.to_numpy_ndarray()
        return signed(array)
    if number_type(kind)[0] is None:
        advice = "encode it as integers" if is_text(kind) else "convert it"
        raise FileContentError(
            f"holds {type_name(kind)} in {name!r}, which are no numbers: {advice}, as by "
            "map_batches, or leave it out by drop_columns"
        )
    (block,) = number_blocks(name, [chunk])
    return signed(block)
