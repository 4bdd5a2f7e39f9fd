"""``TableReader``: what readers of tables have in common; they need the extra ``arrow``."""

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
    type_name,
)
from compss_train.data.classes import MAX_CLASSES, check_classes, class_codes, find_classes
from compss_train.data.conversions import check_numbers, float_dtype
from compss_train.data.layout import Description, Field, FileContentError, Layout, quote_names
from compss_train.data.ragged import Ragged
from compss_train.data.readers.base import Arrays, Reader, select_keys
from compss_train.data.text_columns import text_among_numbers


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


def check_columns(columns: Collection[str], names: Collection[str]) -> None:
    """Raise ``FileContentError`` unless a table with columns of these names has ``columns``."""
    missing_columns = [name for name in columns if name not in names]
    if missing_columns:
        raise FileContentError(
            f"has no column {quote_names(missing_columns)}; it has {quote_names(names)}"
        )


def _is_integer(kind: Any) -> bool:
    """Return whether columns of this Arrow type hold integers, or lists of them."""
    dtype, _ = number_type(kind)
    return dtype is not None and dtype.kind in "iu"


class TableReader(Reader):
    """Reads columns of numbers, of lists of numbers, and of strings, which become class indices.

    Tables are files of Parquet, Arrow, JSON lines or CSV. What a column is, is the same in all
    files of a data set. Columns with ``classes`` are classes in all of them. A column of strings in
    which most distinct values are numbers, but not all, is an error (``text_among_numbers``).

    A column is an array of the same name, and several columns can form one array
    (``with_columns``). Lists must have one length: Arrow's fixed-size lists, its fixed-shape
    tensors, or other lists whose lengths agree.
    """

    least_dtypes: ClassVar[tuple[type[np.generic], ...]] = ()
    """Minimum dtypes of columns that form one array."""
    is_typed: ClassVar[bool] = True
    """Whether files say of each column whether it holds strings; else values tell."""
    number_advice: ClassVar[str] = ""
    """How numbers that are written as strings may be read."""

    def __init__(self) -> None:
        self.groups: Mapping[str, tuple[str, ...]] = {}
        """Columns that form one array, by the array's name."""
        self.class_columns: Collection[str] = ()
        """String columns that are classes; other string columns are not read."""
        self.classes: Mapping[str, Sequence[Any]] = {}
        """The classes of columns: of strings, of Arrow's dictionaries, or of numbers."""
        self.texts: Collection[str] = ()
        """Columns that are strings in some file, and therefore in all files."""
        self.dtypes: Mapping[str, str] = {}
        """The dtypes of columns that the user has given."""
        self.floats: str | None = None
        """The dtype that floating-point columns are converted to; ``None`` keeps the file's."""

    @abstractmethod
    def open(self, path: str, columns: Collection[str] | None) -> AbstractContextManager[OpenTable]:
        """Open a file to read these columns, all by default."""

    def with_columns(
        self,
        groups: Mapping[str, tuple[str, ...]],
        class_columns: Collection[str],
        classes: Mapping[str, Sequence[Any]],
    ) -> Self:
        """Return a reader whose ``groups`` of columns are arrays of shape (rows, columns)."""
        check_classes(classes)
        return self._with(
            groups={**self.groups, **groups},
            class_columns=tuple(dict.fromkeys([*self.class_columns, *class_columns])),
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
        if converted == layout:
            return self, layout
        return self._with(floats=floats), converted

    def with_integers(self, layout: Layout, names: Collection[str]) -> tuple[Self, Layout]:
        """Return a reader that keeps the integers of these columns, and its layout.

        That is in arrays of no other columns that are one of several inputs or targets. What is x
        or y as a whole, such as pixels in CSV files, becomes floats.
        """
        parts = [key for key in self.groups if key in layout and key not in ("x", "y")]
        of_integers = [key for key in parts if {*self.groups[key]} <= {*names}]
        kept = [key for key in of_integers if np.dtype(layout[key].dtype).kind == "f"]
        dtypes = {name: "int64" for name in self._columns(kept) if name not in self.classes}
        kept_layout = {key: replace(layout[key], dtype="int64") for key in kept}
        return self._with(dtypes={**dtypes, **self.dtypes}), {**layout, **kept_layout}

    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return the layout of the table, its rows by block, and the classes of columns."""
        with self.open(path, None if keys is None else self._columns(keys)) as table:
            chosen = self._chosen(keys, table.schema.names)
            layout = {key: self._field(table, key) for key in chosen}
            rows = layouts.common_length(dict.fromkeys(layout, sum(table.blocks)))
            classes = {
                name: self._find_classes(table, name)
                for name in self._columns(chosen)
                if name in self.class_columns
                and name not in self.classes
                and is_text(table.schema.field(name).type)
            }
            grouped = self._columns(key for key in chosen if key in self.groups)
            integers = [
                name
                for name in grouped
                if name not in self.classes and _is_integer(table.schema.field(name).type)
            ]
        return Description(
            rows=rows,
            layout=layout,
            blocks=tuple(filter(None, table.blocks)),
            classes=classes,
            integers=tuple(integers),
        )

    def _find_classes(self, table: OpenTable, name: str) -> tuple[Any, ...]:
        column = table.rows(0, sum(table.blocks), [name])[name]
        check_no_nulls(name, column)
        values = column.unique().to_pylist()
        if len(values) > MAX_CLASSES:
            misfit = text_among_numbers(values)
            if misfit is not None:
                raise self._text_among_numbers_error(name, column, misfit)
        return find_classes(name, values)

    def with_texts(self, names: Collection[str]) -> Self:
        """Return a reader that reads these columns as strings, even if they look like numbers."""
        return self._with(texts=tuple(dict.fromkeys([*self.texts, *names])))

    def text_among_numbers_error(self, path: str, name: str, value: str) -> FileContentError:
        """Return the error for a value of a column of strings where most values are numbers."""
        with self.open(path, [name]) as table:
            column = table.rows(0, sum(table.blocks), [name])[name]
            return self._text_among_numbers_error(name, column, value)

    def _text_among_numbers_error(self, name: str, column: Any, value: str) -> FileContentError:
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
        ungrouped = [name for name in columns if name not in grouped]
        chosen = select_keys(keys, [*self.groups, *ungrouped])
        chosen_columns = self._columns(chosen)
        check_columns(chosen_columns, columns)
        ambiguous = [name for name in chosen_columns if columns.count(name) > 1]
        if ambiguous:
            raise FileContentError(
                f"has several columns {quote_names(ambiguous)}; give each a name of its own"
            )
        return chosen

    def _field(self, table: OpenTable, key: str) -> Field:
        """Return the dtype and shape of an array of the table."""
        columns = {name: self._column(table, name) for name in self._columns([key])}
        if key not in self.groups:
            dtype, shape = columns[key]
            if not isinstance(dtype, str):
                dtype = float_dtype(dtype, self.floats)
            return Field(str(dtype), shape)
        for name, (dtype, shape) in columns.items():
            check_numbers(name, dtype)
            if shape:
                raise FileContentError(
                    f"holds lists in {name!r}, which cannot be beside other columns: give "
                    f"{name!r} alone"
                )
        texts = [name for name in columns if is_text(table.schema.field(name).type)]
        dtypes = {name: dtype for name, (dtype, _) in columns.items()}
        return Field(str(self._dtype_of_group(dtypes, texts)), (len(columns),))

    def _dtype_of_group(
        self, dtypes: Mapping[str, Any], texts: Collection[str] = ()
    ) -> np.dtype[Any]:
        """Return the dtype of columns that form one array.

        As in torch, integers do not widen floats. ``texts`` are the columns of strings.
        """
        floats = [dtype for dtype in dtypes.values() if dtype.kind == "f"]
        is_given = dtypes.keys() <= {*self.dtypes, *self.classes, *texts}
        least_dtypes = () if is_given else self.least_dtypes
        return float_dtype(np.result_type(*least_dtypes, *(floats or dtypes.values())), self.floats)

    def _column(self, table: OpenTable, name: str) -> tuple[np.dtype[Any] | str, tuple[int, ...]]:
        """Return the dtype and shape of a column from the schema, or Arrow's name of its type."""
        kind = table.schema.field(name).type
        if name in self.classes:
            check_coded(name, kind, self.classes[name])
            return np.dtype(np.int64), ()
        if is_text(kind):
            return np.dtype(np.int64) if name in self.class_columns else str(kind), ()
        dtype, sizes = number_type(kind)
        if dtype is None:
            return type_name(kind), ()
        if None not in sizes:
            return dtype, sizes  # type: ignore[return-value]
        values = table.rows(0, 1, [name])[name].to_pylist()
        shape = []
        for _ in sizes:  # lists are as long as the first one, which is checked when they are read
            values = (values[0] if values else None) or ()
            shape.append(len(values))
        return dtype, tuple(shape)

    def _array(self, rows: Any, key: str, first: int) -> NDArray[Any]:
        columns = {
            name: self._values(rows[name].combine_chunks(), name, first)
            for name in self._columns([key])
        }
        if key in self.groups:
            dtypes = {name: values.dtype for name, values in columns.items()}
            return np.stack([*columns.values()], axis=1, dtype=self._dtype_of_group(dtypes))
        values = columns[key]
        dtype = float_dtype(values.dtype, self.floats)
        is_usable = dtype == values.dtype and values.flags.writeable
        return values if is_usable else values.astype(dtype)

    def _values(self, column: Any, name: str, first: int) -> NDArray[Any]:
        """Return a column; raise ``FileContentError`` for missing values and other than numbers."""
        check_no_nulls(name, column, first)
        if name in self.classes:
            check_coded(name, column.type, self.classes[name])
            coded = column if hasattr(column, "indices") else column.dictionary_encode()
            places = coded.indices.to_numpy(zero_copy_only=False)
            values = coded.dictionary.to_pylist()
            return class_codes(name, values, places, classes=self.classes[name], first=first)
        if number_type(column.type)[0] is None:
            check_numbers(name, type_name(column.type))
        block = number_blocks(name, [column])[0]
        if isinstance(block, Ragged):
            lengths = block.lengths.tolist()
            row = next(row for row, length in enumerate(lengths) if length != lengths[0])
            raise FileContentError(
                f"holds lists of different lengths in {name!r}, {lengths[0]} and {lengths[row]} "
                f"in row {row}: pad them"
            )
        return np.asarray(block)
