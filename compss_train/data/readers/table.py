"""``TableReader``: arrays from the columns of tables, as Arrow holds them."""

import copy
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.imports import import_optional
from compss_train.data.layout import (
    Description,
    Field,
    FileContentError,
    Layout,
    common_length,
    is_supported,
    quote_names,
)
from compss_train.data.readers.base import Arrays, Reader, select_keys
from compss_train.data.tables import (
    as_matrix,
    check_complete,
    check_numbers,
    class_codes,
    common_dtype,
    find_classes,
    float_dtype,
)


class Table(Protocol):
    """An open file that holds a table."""

    schema: Any
    """Arrow's schema: names and types of the columns."""
    blocks: tuple[int, ...]
    """The rows of each part that can be read for itself."""

    def rows(self, start: int, stop: int, names: Sequence[str]) -> Any:
        """Return rows of these columns as Arrow's table."""


@dataclass(frozen=True, slots=True)
class _Column:
    """What is known about a column without reading it."""

    dtype: np.dtype[Any] | str
    """The dtype of its numbers, or Arrow's name of what else it holds."""
    shape: tuple[int, ...] = ()


class TableReader(Reader):
    """Reads columns of numbers, of lists of numbers, and of strings, which become numbers of classes.

    A column is an array of its name, and several columns can be one array (``with_columns``). Lists must be of one
    length: Arrow's lists of a fixed size, its tensors of a fixed shape, or others whose lengths agree.
    """

    def __init__(self) -> None:
        self.groups: Mapping[str, tuple[str, ...]] = {}
        """Columns that are one array, by its name."""
        self.used: Collection[str] = ()
        """Columns of which strings are classes; others with strings are not read."""
        self.classes: Mapping[str, Sequence[Any]] = {}
        """The classes of columns of strings, and of dictionaries of Arrow."""
        self.floats: str | None = None
        """The dtype that numbers with a fraction become; ``None`` keeps that of the file."""

    @abstractmethod
    def open(self, path: str, columns: Collection[str] | None) -> AbstractContextManager[Table]:
        """Open a file, of which these columns are read, all by default."""

    def with_columns(
        self, groups: Mapping[str, tuple[str, ...]], used: Collection[str], classes: Mapping[str, Sequence[Any]]
    ) -> Self:
        """Return a reader whose ``groups`` of columns are arrays of shape (rows, columns)."""
        return self._with(
            groups={**self.groups, **groups},
            used=tuple(dict.fromkeys([*self.used, *used])),
            classes={**self.classes, **classes},
        )

    def with_classes(self, classes: Mapping[str, Sequence[Any]]) -> Self:
        """Return a reader with these classes beside those that it has."""
        return self._with(classes={**classes, **self.classes})

    def with_floats(self, layout: Layout, floats: str) -> tuple[Reader, Layout]:
        """Return a reader, and its layout, whose numbers with a fraction are of this dtype."""
        numbers = {key: np.dtype(field.dtype) for key, field in layout.items() if is_supported(field)}
        dtypes = {key: str(float_dtype(dtype, floats)) for key, dtype in numbers.items()}
        converted = {key: replace(field, dtype=dtypes.get(key, field.dtype)) for key, field in layout.items()}
        return (self, layout) if converted == layout else (self._with(floats=floats), converted)

    def _with(self, **changes: Any) -> Self:
        changed = copy.copy(self)
        vars(changed).update(changes)
        return changed

    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return the layout of the table, its rows by block, and the classes of columns of strings."""
        with self.open(path, None if keys is None else self._columns(keys)) as table:
            chosen = select_keys(keys, self._arrays(table.schema.names))
            layout = {key: self._field(table, key) for key in chosen}
            rows = common_length(dict.fromkeys(layout, sum(table.blocks)))
            found = [name for name in self._columns(chosen) if name in self.used and name not in self.classes]
            classes = {name: _classes_in(table, name) for name in found if is_text(table.schema.field(name).type)}
        return Description(rows, layout, tuple(filter(None, table.blocks)), classes)

    def read(self, path: str, start: int, stop: int, keys: Collection[str] | None = None) -> tuple[Arrays, int]:
        """Return rows of these arrays; of other columns, and of other blocks, nothing is read."""
        with self.open(path, None if keys is None else self._columns(keys)) as table:
            chosen = select_keys(keys, self._arrays(table.schema.names))
            self._check_columns(chosen, table.schema.names)
            columns = table.rows(start, stop, self._columns(chosen))
            return {key: self._array(columns, key, start) for key in chosen}, sum(table.blocks)

    def _arrays(self, columns: Sequence[str]) -> list[str]:
        """Return the names of the arrays in a table: groups, and the columns that are in none."""
        grouped = {name for group in self.groups.values() for name in group}
        return [*self.groups, *(name for name in columns if name not in grouped and name not in self.groups)]

    def _columns(self, keys: Iterable[str]) -> list[str]:
        return list(dict.fromkeys(name for key in keys for name in self.groups.get(key, (key,))))

    def _check_columns(self, keys: Iterable[str], columns: Sequence[str]) -> None:
        if missing := [name for name in self._columns(keys) if name not in columns]:
            raise FileContentError(f"has no column {quote_names(missing)}; it has {quote_names(columns)}")

    def _field(self, table: Table, key: str) -> Field:
        """Return the dtype and shape of an array of the table."""
        self._check_columns([key], table.schema.names)
        columns = [self._column(table, name) for name in self.groups.get(key, (key,))]
        if key not in self.groups:
            dtype = columns[0].dtype
            return Field(
                str(dtype if isinstance(dtype, str) else float_dtype(dtype, self.floats)), columns[0].shape
            )
        for name, column in zip(self.groups[key], columns, strict=True):
            check_numbers(name, column.dtype)
            if column.shape:
                raise FileContentError(
                    f"holds lists in {name!r}, which cannot be beside other columns: give {name!r} alone"
                )
        return Field(str(self._dtype_of_group([np.dtype(column.dtype) for column in columns])), (len(columns),))

    def _dtype_of_group(self, dtypes: Iterable[np.dtype[Any]]) -> np.dtype[Any]:
        return float_dtype(common_dtype(dtypes), self.floats)

    def _column(self, table: Table, name: str) -> _Column:
        kind = table.schema.field(name).type
        if is_text(kind):
            return _Column(np.dtype(np.int64) if name in self.used else str(kind))
        numbers, shape = _unnested(kind)
        if _is_list_of_any_length(kind):  # as long as the first one, which is checked when they are read
            numbers, shape = kind.value_type, (len(table.rows(0, 1, [name])[name][0].as_py() or ()),)
        return _Column(np.dtype(numbers.to_pandas_dtype()), shape) if _is_number(numbers) else _Column(str(kind))

    def _array(self, table: Any, key: str, first: int) -> NDArray[Any]:
        columns = {name: self._values(table, name, first) for name in self.groups.get(key, (key,))}
        if key in self.groups:
            return as_matrix(list(columns.values()), self._dtype_of_group(c.dtype for c in columns.values()))
        values = columns[key]
        dtype = float_dtype(values.dtype, self.floats)
        return values.astype(dtype) if dtype != values.dtype or not values.flags.writeable else values

    def _values(self, table: Any, name: str, first: int) -> NDArray[Any]:
        """Return a column; raise ``FileContentError`` for missing values, and for what are no numbers."""
        column = table[name].combine_chunks()
        _check_complete(name, column, first)
        if is_text(column.type):
            return self._codes(name, column, first)
        values, shape = _flat(name, column)
        if not _is_number(values.type):
            check_numbers(name, str(column.type))
        if values.null_count:
            raise FileContentError(f"lacks values within lists of {name!r}: fill them in, or leave the column out")
        numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
        return numbers.reshape(len(column), *shape) if shape else numbers

    def _codes(self, name: str, column: Any, first: int) -> NDArray[np.int64]:
        if name not in self.classes:
            check_numbers(name, str(column.type))
        coded = column if hasattr(column, "indices") else column.dictionary_encode()
        places = coded.indices.to_numpy(zero_copy_only=False)
        return class_codes(name, coded.dictionary.to_pylist(), places, self.classes[name], first)


def import_pyarrow(module: str = "pyarrow") -> Any:
    """Return pyarrow or one of its modules; raise ``ModuleNotFoundError`` that says how to install it."""
    return import_optional(module, extra="arrow", needed_by="tables (Parquet, Arrow, CSV)", package="pyarrow")


@cache  # of a few types, asked for each of many columns
def is_text(kind: Any) -> bool:
    """Return whether columns of this type are strings, or categories, whatever their values are."""
    types = import_pyarrow().types
    accepted = (types.is_string, types.is_large_string, types.is_string_view, types.is_dictionary)
    return any(is_kind(kind) for is_kind in accepted)


@cache
def _is_number(kind: Any) -> bool:
    types = import_pyarrow().types
    return any(is_kind(kind) for is_kind in (types.is_boolean, types.is_integer, types.is_floating))


def _check_complete(name: str, column: Any, first: int) -> None:
    if column.null_count:
        check_complete(name, np.asarray(column.is_null()), first)


def _classes_in(table: Table, name: str) -> tuple[Any, ...]:
    column = table.rows(0, sum(table.blocks), [name])[name]
    _check_complete(name, column, 0)
    return find_classes(name, column.unique().to_pylist())


@cache
def _is_list_of_any_length(kind: Any) -> bool:
    types = import_pyarrow().types
    return any(is_kind(kind) for is_kind in (types.is_list, types.is_large_list))


@cache
def _unnested(kind: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the type of the values in lists of a fixed size, and the shape that these lists have."""
    types, shape = import_pyarrow().types, []
    if isinstance(kind, import_pyarrow().FixedShapeTensorType):
        return kind.value_type, tuple(kind.shape)
    while types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    return kind, tuple(shape)


def _flat(name: str, column: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the values of a column of lists one after the other, and the shape of a list."""
    if _is_list_of_any_length(column.type):
        lengths = np.diff(column.offsets.to_numpy())
        if len(lengths) and (lengths != lengths[0]).any():
            row = int(np.flatnonzero(lengths != lengths[0])[0])
            raise FileContentError(
                f"holds lists of different lengths in {name!r}, {lengths[0]} and {lengths[row]} in row {row}: pad "
                "them"
            )
        return column.flatten(), (int(lengths[0]) if len(lengths) else 0,)
    values = getattr(column, "storage", column)
    while import_pyarrow().types.is_fixed_size_list(values.type):
        values = values.flatten()
    return values, _unnested(column.type)[1]


def rows_of(table: Any, start: int, stop: int) -> Any:
    """Return rows of Arrow's table, without a copy."""
    return table.slice(start, max(0, stop - start))
