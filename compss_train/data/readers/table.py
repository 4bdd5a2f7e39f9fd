"""Readers of tables (Parquet, Arrow, JSON lines, CSV), whose columns are arrays; need the extra
``arrow``.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from compss_train.data import layout as layouts
from compss_train.data.arrow_columns import (
    check_coded,
    check_no_nulls,
    is_text,
    number_blocks,
    number_type,
)
from compss_train.data.classes import MAX_CLASSES, check_classes, class_codes, find_classes
from compss_train.data.conversions import check_numbers, float_dtype
from compss_train.data.layout import Description, Field, FileContentError, Layout, quote_names
from compss_train.data.ragged import Ragged
from compss_train.data.readers.base import Arrays, Reader, select_keys
from compss_train.data.text_columns import no_number


@dataclass(frozen=True)
class OpenTable:
    """An open file that holds a table."""

    schema: Any
    """Arrow's schema: names and types of the columns."""
    blocks: tuple[int, ...]
    """Number of rows of each separately readable part."""
    read: Callable[[list[int], list[str]], Any]
    """Returns blocks by number, of these columns, as Arrow's table."""

    def rows(self, start: int, stop: int, names: Sequence[str]) -> Any:
        """Return rows of these columns as Arrow's table; other blocks are not read."""
        bounds = list(pairwise(accumulate(self.blocks, initial=0)))
        numbers = [
            number for number, (first, end) in enumerate(bounds) if first < stop and start < end
        ]
        first = bounds[numbers[0]][0] if numbers else 0
        return self.read(numbers, list(names)).slice(start - first, max(0, stop - start))


class TableReader(Reader):
    """Reads columns of numbers, of lists of numbers, and of strings, which become class indices.

    What a column is, is the same in all files of a data set. Columns with ``classes`` are classes
    in all of them. A column of strings in which most distinct values are numbers, but not all, is
    an error (``no_number``).

    A column is an array of the same name, and several columns can form one array
    (``with_columns``). Lists must have one length: Arrow's fixed-size lists, its fixed-shape
    tensors, or other lists whose lengths agree.
    """

    widest: ClassVar[tuple[type[np.generic], ...]] = ()
    """Minimum dtypes of columns that form one array."""
    is_typed: ClassVar[bool] = True
    """Whether files say of each column whether it holds strings; other readers infer it from the
    values.
    """
    number_advice: ClassVar[str] = ""
    """How numbers that are written as strings may be read."""

    def __init__(self) -> None:
        self.groups: Mapping[str, tuple[str, ...]] = {}
        """Columns that form one array, by the array's name."""
        self.used: Collection[str] = ()
        """String columns that are classes; other string columns are not read."""
        self.classes: Mapping[str, Sequence[Any]] = {}
        """The classes of columns: of strings, of Arrow's dictionaries, or of numbers."""
        self.texts: Collection[str] = ()
        """Columns that are strings in some file, and therefore in all files."""
        self.dtypes: Mapping[str, str] = {}
        """The dtypes of columns that the user has given."""
        self.floats: str | None = None
        """The dtype that floating-point columns are converted to; ``None`` keeps the file's
        dtype.
        """

    @abstractmethod
    def open(self, path: str, columns: Collection[str] | None) -> AbstractContextManager[OpenTable]:
        """Open a file to read these columns, all by default."""

    def with_columns(
        self,
        groups: Mapping[str, tuple[str, ...]],
        used: Collection[str],
        classes: Mapping[str, Sequence[Any]],
    ) -> Self:
        """Return a reader whose ``groups`` of columns are arrays of shape (rows, columns)."""
        check_classes(classes)
        return self._with(
            groups={**self.groups, **groups},
            used=tuple(dict.fromkeys([*self.used, *used])),
            classes={**self.classes, **classes},
        )

    def with_floats(self, layout: Layout, floats: str) -> tuple[Reader, Layout]:
        """Return a reader that converts floating-point columns to this dtype, and its layout."""
        numbers = {
            key: np.dtype(field.dtype)
            for key, field in layout.items()
            if layouts.is_supported(field)
        }
        dtypes = {key: str(float_dtype(dtype, floats)) for key, dtype in numbers.items()}
        converted = {
            key: replace(field, dtype=dtypes.get(key, field.dtype)) for key, field in layout.items()
        }
        return (self, layout) if converted == layout else (self._with(floats=floats), converted)

    def with_integers(self, layout: Layout, names: Collection[str]) -> tuple[Self, Layout]:
        """Return a reader that keeps the integers of these columns, and its layout.

        That is in arrays of no other columns that are one of several inputs or targets. What is x
        or y as a whole, such as pixels in CSV files, becomes floats.
        """
        parts = [key for key in self.groups if key in layout and key not in ("x", "y")]
        whole = [key for key in parts if {*self.groups[key]} <= {*names}]
        kept = [key for key in whole if np.dtype(layout[key].dtype).kind == "f"]
        dtypes = {name: "int64" for name in self._columns(kept) if name not in self.classes}
        own = {key: replace(layout[key], dtype="int64") for key in kept}
        return self._with(dtypes={**dtypes, **self.dtypes}), {**layout, **own}

    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return the layout of the table, its rows by block, and the classes of columns of
        strings.
        """
        with self.open(path, None if keys is None else self._columns(keys)) as table:
            chosen = self._chosen(keys, table.schema.names)
            total = sum(table.blocks)
            layout = {key: self._field(table, key) for key in chosen}
            rows = layouts.common_length(dict.fromkeys(layout, total))
            classes = {}
            for name in self._columns(chosen):
                if (
                    name in self.used
                    and name not in self.classes
                    and is_text(table.schema.field(name).type)
                ):
                    column = table.rows(0, total, [name])[name]
                    check_no_nulls(name, column)
                    values = column.unique().to_pylist()
                    if len(values) > MAX_CLASSES and (wrong := no_number(values)) is not None:
                        raise self._no_number_error(name, column, wrong)
                    classes[name] = find_classes(name, values)
            grouped = self._columns(key for key in chosen if key in self.groups)
            types = {name: number_type(table.schema.field(name).type)[0] for name in grouped}
            integers = tuple(
                name
                for name, dtype in types.items()
                if dtype is not None and dtype.kind in "iu" and name not in self.classes
            )
        return Description(
            rows, layout, tuple(filter(None, table.blocks)), classes, integers=integers
        )

    def with_texts(self, names: Collection[str]) -> Self:
        """Return a reader that reads these columns as strings, also where they look like
        numbers.
        """
        return self._with(texts=tuple(dict.fromkeys([*self.texts, *names])))

    def no_number_error(self, path: str, name: str, value: str) -> FileContentError:
        """Return the error for a value of a column of strings where most values are numbers."""
        with self.open(path, [name]) as table:
            return self._no_number_error(
                name, table.rows(0, sum(table.blocks), [name])[name], value
            )

    def _no_number_error(self, name: str, column: Any, value: str) -> FileContentError:
        row = column.to_pylist().index(value)
        return FileContentError(
            f"holds {value!r} in {name!r}, in row {row}, where most values are numbers: convert "
            f"it{self.number_advice}, or give classes={{{name!r}: [...]}} if all values are "
            "names of classes"
        )

    def read(
        self, path: str, start: int, stop: int, keys: Collection[str] | None = None
    ) -> tuple[Arrays, int]:
        """Return rows of these arrays without reading other columns or other blocks."""
        with self.open(path, None if keys is None else self._columns(keys)) as table:
            chosen = self._chosen(keys, table.schema.names)
            rows = table.rows(start, stop, self._columns(chosen))
            return {key: self._array(rows, key, start) for key in chosen}, sum(table.blocks)

    def _columns(self, keys: Iterable[str]) -> list[str]:
        """Return the columns that these arrays consist of."""
        return list(dict.fromkeys(name for key in keys for name in self.groups.get(key, (key,))))

    def _chosen(self, keys: Collection[str] | None, columns: Sequence[str]) -> list[str]:
        """Return the arrays to read: by default the groups, and the columns that are in none."""
        grouped = {*self.groups, *self._columns(self.groups)}
        chosen = select_keys(
            keys, [*self.groups, *(name for name in columns if name not in grouped)]
        )
        if missing := [name for name in self._columns(chosen) if name not in columns]:
            raise FileContentError(
                f"has no column {quote_names(missing)}; it has {quote_names(columns)}"
            )
        if several := [name for name in self._columns(chosen) if columns.count(name) > 1]:
            raise FileContentError(
                f"has several columns {quote_names(several)}; give each a name of its own"
            )
        return chosen

    def _field(self, table: OpenTable, key: str) -> Field:
        """Return the dtype and shape of an array of the table."""
        columns = {name: self._column(table, name) for name in self._columns([key])}
        if key not in self.groups:
            dtype, shape = columns[key]
            return Field(
                str(dtype if isinstance(dtype, str) else float_dtype(dtype, self.floats)),
                shape,
            )
        for name, (dtype, shape) in columns.items():
            check_numbers(name, dtype)
            if shape:
                raise FileContentError(
                    f"holds lists in {name!r}, which cannot be beside other columns: give "
                    f"{name!r} alone"
                )
        texts = (name for name in columns if is_text(table.schema.field(name).type))
        dtype = self._dtype_of_group({name: dtype for name, (dtype, _) in columns.items()}, *texts)
        return Field(str(dtype), (len(columns),))

    def _dtype_of_group(self, dtypes: Mapping[str, Any], *texts: str) -> np.dtype[Any]:
        """Return the dtype of columns that form one array: as in torch, integers do not widen
        floats.
        """
        floats = [dtype for dtype in dtypes.values() if dtype.kind == "f"]
        widest = () if dtypes.keys() <= {*self.dtypes, *self.classes, *texts} else self.widest
        return float_dtype(np.result_type(*widest, *(floats or dtypes.values())), self.floats)

    def _column(self, table: OpenTable, name: str) -> tuple[np.dtype[Any] | str, tuple[int, ...]]:
        """Return the dtype and shape of a column from the schema, or Arrow's name of its type."""
        kind = table.schema.field(name).type
        if name in self.classes:
            check_coded(name, kind, self.classes[name])
            return np.dtype(np.int64), ()
        if is_text(kind):
            return np.dtype(np.int64) if name in self.used else str(kind), ()
        dtype, sizes = number_type(kind)
        if dtype is None:
            return str(kind), ()
        if None not in sizes:
            return dtype, sizes  # type: ignore[return-value]
        values = table.rows(0, 1, [name])[name].to_pylist()
        shape = []
        for _ in sizes:  # lists are as long as the first one, which is checked when they are read
            values = (values[0] if values else None) or ()
            shape.append(len(values))
        return dtype, tuple(shape)

    def _array(self, rows: Any, key: str, first: int) -> NDArray[Any]:
        columns = [
            self._values(rows[name].combine_chunks(), name, first) for name in self._columns([key])
        ]
        if key in self.groups:
            dtypes = {
                name: column.dtype for name, column in zip(self.groups[key], columns, strict=True)
            }
            return np.stack(columns, axis=1, dtype=self._dtype_of_group(dtypes))
        dtype = float_dtype(columns[0].dtype, self.floats)
        as_it_is = dtype == columns[0].dtype and columns[0].flags.writeable
        return columns[0] if as_it_is else columns[0].astype(dtype)

    def _values(self, column: Any, name: str, first: int) -> NDArray[Any]:
        """Return a column; raise ``FileContentError`` for missing values and for values that are
        not numbers.
        """
        check_no_nulls(name, column, first)
        if name in self.classes:
            check_coded(name, column.type, self.classes[name])
            coded = column if hasattr(column, "indices") else column.dictionary_encode()
            places = coded.indices.to_numpy(zero_copy_only=False)
            return class_codes(
                name, coded.dictionary.to_pylist(), places, self.classes[name], first
            )
        if number_type(column.type)[0] is None:
            check_numbers(name, str(column.type))
        block = number_blocks(name, [column])[0]
        if isinstance(block, Ragged):
            lengths = block.lengths.tolist()
            row = next(row for row, length in enumerate(lengths) if length != lengths[0])
            raise FileContentError(
                f"holds lists of different lengths in {name!r}, {lengths[0]} and {lengths[row]} "
                f"in row {row}: pad them"
            )
        return np.asarray(block)
