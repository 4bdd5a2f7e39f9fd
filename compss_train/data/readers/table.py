"""Readers of tables (Parquet, Arrow, JSON lines, CSV), whose columns are arrays; need the extra
``arrow``.
"""

import codecs
import json
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from compss_train.data import layout as layouts
from compss_train.data import tables
from compss_train.data.layout import Description, Field, FileContentError, Layout, quote_names
from compss_train.data.locations import is_remote, open_binary, openable, suffix_of
from compss_train.data.ragged import Ragged
from compss_train.data.readers.base import Arrays, Reader, select_keys


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
    an error (``tables.no_number``).

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
        tables.check_classes(classes)
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
        dtypes = {key: str(tables.float_dtype(dtype, floats)) for key, dtype in numbers.items()}
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
                    and tables.is_text(table.schema.field(name).type)
                ):
                    column = table.rows(0, total, [name])[name]
                    tables.check_no_nulls(name, column)
                    values = column.unique().to_pylist()
                    if (
                        len(values) > tables.MAX_CLASSES
                        and (wrong := tables.no_number(values)) is not None
                    ):
                        raise self._no_number_error(name, column, wrong)
                    classes[name] = tables.find_classes(name, values)
            grouped = self._columns(key for key in chosen if key in self.groups)
            types = {name: tables.number_type(table.schema.field(name).type)[0] for name in grouped}
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
                str(dtype if isinstance(dtype, str) else tables.float_dtype(dtype, self.floats)),
                shape,
            )
        for name, (dtype, shape) in columns.items():
            tables.check_numbers(name, dtype)
            if shape:
                raise FileContentError(
                    f"holds lists in {name!r}, which cannot be beside other columns: give "
                    f"{name!r} alone"
                )
        texts = (name for name in columns if tables.is_text(table.schema.field(name).type))
        dtype = self._dtype_of_group({name: dtype for name, (dtype, _) in columns.items()}, *texts)
        return Field(str(dtype), (len(columns),))

    def _dtype_of_group(self, dtypes: Mapping[str, Any], *texts: str) -> np.dtype[Any]:
        """Return the dtype of columns that form one array: as in torch, integers do not widen
        floats.
        """
        floats = [dtype for dtype in dtypes.values() if dtype.kind == "f"]
        widest = () if dtypes.keys() <= {*self.dtypes, *self.classes, *texts} else self.widest
        return tables.float_dtype(
            np.result_type(*widest, *(floats or dtypes.values())), self.floats
        )

    def _column(self, table: OpenTable, name: str) -> tuple[np.dtype[Any] | str, tuple[int, ...]]:
        """Return the dtype and shape of a column from the schema, or Arrow's name of its type."""
        kind = table.schema.field(name).type
        if name in self.classes:
            tables.check_coded(name, kind, self.classes[name])
            return np.dtype(np.int64), ()
        if tables.is_text(kind):
            return np.dtype(np.int64) if name in self.used else str(kind), ()
        dtype, sizes = tables.number_type(kind)
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
        dtype = tables.float_dtype(columns[0].dtype, self.floats)
        as_it_is = dtype == columns[0].dtype and columns[0].flags.writeable
        return columns[0] if as_it_is else columns[0].astype(dtype)

    def _values(self, column: Any, name: str, first: int) -> NDArray[Any]:
        """Return a column; raise ``FileContentError`` for missing values and for values that are
        not numbers.
        """
        tables.check_no_nulls(name, column, first)
        if name in self.classes:
            tables.check_coded(name, column.type, self.classes[name])
            coded = column if hasattr(column, "indices") else column.dictionary_encode()
            places = coded.indices.to_numpy(zero_copy_only=False)
            return tables.class_codes(
                name, coded.dictionary.to_pylist(), places, self.classes[name], first
            )
        if tables.number_type(column.type)[0] is None:
            tables.check_numbers(name, str(column.type))
        block = tables.number_blocks(name, [column])[0]
        if isinstance(block, Ragged):
            lengths = block.lengths.tolist()
            row = next(row for row, length in enumerate(lengths) if length != lengths[0])
            raise FileContentError(
                f"holds lists of different lengths in {name!r}, {lengths[0]} and {lengths[row]} "
                f"in row {row}: pad them"
            )
        return np.asarray(block)


class ParquetReader(TableReader):
    """Reads Parquet files: the requested columns of the row groups that hold the requested rows.

    Each row group is a block. Checksums of pages are verified where a file has them.
    """

    @contextmanager
    def open(self, path: str, columns: Collection[str] | None) -> Iterator[OpenTable]:
        """Open a file and read its footer."""
        parquet = tables.import_pyarrow("pyarrow.parquet")
        remote = is_remote(path)
        options = {"page_checksum_verification": True, "memory_map": True, "pre_buffer": remote}
        with openable(path) as source, parquet.ParquetFile(source, **options) as file:
            metadata = file.metadata
            yield OpenTable(
                file.schema_arrow,
                tuple(
                    metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)
                ),
                lambda numbers, names: file.read_row_groups(
                    numbers, columns=names, use_threads=False
                ),
            )


class ArrowReader(TableReader):
    """Reads record batches of Arrow files, memory-mapped: Arrow's file format (Feather), and its
    stream format.

    Each record batch is a block.
    """

    @contextmanager
    def open(self, path: str, columns: Collection[str] | None) -> Iterator[OpenTable]:
        """Map a file into memory; a remote one is read where it is needed."""
        pyarrow = tables.import_pyarrow()
        with openable(path) as opened:
            mapped = (
                pyarrow.PythonFile(opened, mode="r")
                if is_remote(path)
                else pyarrow.memory_map(path)
            )
            with mapped as source:
                magic = source.read(len(_MAGIC))
                if magic.startswith(b"FEA1"):
                    raise FileContentError(
                        "is a file of Feather's version 1: write it anew with "
                        "pyarrow.feather.write_feather"
                    )
                is_file = magic == _MAGIC
                source.seek(0)
                yield _batch_file(source) if is_file else _batch_stream(source)


_MAGIC = b"ARROW1"


def _batch_file(source: Any) -> OpenTable:
    """Return a table in Arrow's file format, which allows reading single batches and columns.

    ``pyarrow.dataset`` also reads this format, but only from the first batch onwards.
    """
    pyarrow = tables.import_pyarrow()
    ipc = tables.import_pyarrow("pyarrow.ipc")

    def opened(columns: list[int]) -> Any:
        return ipc.open_file(
            source, options=ipc.IpcReadOptions(included_fields=columns, use_threads=False)
        )

    def read(numbers: list[int], names: list[str]) -> Any:
        file = opened([schema.get_field_index(name) for name in names])
        return pyarrow.Table.from_batches(
            [file.get_batch(number) for number in numbers], file.schema
        )

    file = ipc.open_file(source)
    schema = file.schema
    widths = [
        field.type.bit_width if pyarrow.types.is_primitive(field.type) else 2**31
        for field in schema
    ]
    # Rows are counted in the narrowest column, because compressed columns must be read to be
    # counted.
    narrow = opened([int(np.argmin(widths))]) if widths else file
    rows = tuple(narrow.get_batch(number).num_rows for number in range(file.num_record_batches))
    return OpenTable(schema, rows, read)


def _batch_stream(source: Any) -> OpenTable:
    """Return a table in Arrow's stream format: finding a batch requires scanning all batches before
    it.
    """
    pyarrow = tables.import_pyarrow()
    with tables.import_pyarrow("pyarrow.ipc").open_stream(source) as stream:
        schema = stream.schema
        batches = list(stream)

    def read(numbers: list[int], names: list[str]) -> Any:
        return pyarrow.Table.from_batches([batches[number] for number in numbers], schema).select(
            names
        )

    return OpenTable(schema, tuple(batch.num_rows for batch in batches), read)


class CsvReader(TableReader):
    """Reads CSV files with a header line; a file is one block and is parsed whole.

    Parameters
    ----------
    delimiter:
        The separator of values; by default a tab in ``.tsv`` files and a comma in others.
    dtypes:
        The dtypes of columns by name, as numpy calls them (``{"id": "int32"}``); other dtypes are
        inferred from the values: integers, floats or strings. Columns that form one array become
        floats, unless all of them are classes or have dtypes here, or it is one of several inputs
        or targets and all files have integers there.
    names:
        Names of the columns, for files without a header line.
    decimal:
        The character before the decimals of numbers, ``","`` in many countries' files.
    encoding:
        The encoding of the text, such as ``"latin-1"``.

    A column is classes if it holds strings in any file of a data set: then its numbers are strings,
    too. Empty cells, NA, NaN, null and the like are missing, unless they are among the classes that
    are given.
    """

    widest = (np.float64,)
    is_typed = False
    number_advice = " (CsvReader(decimal=',') reads decimal commas)"

    def __init__(
        self,
        delimiter: str | None = None,
        dtypes: Mapping[str, str] | None = None,
        names: Sequence[str] | None = None,
        decimal: str = ".",
        encoding: str = "utf-8",
    ) -> None:
        super().__init__()
        self.delimiter = delimiter
        self.dtypes = dict(dtypes or {})
        self.names = names
        self.decimal = decimal
        self.encoding = encoding

    @contextmanager
    def open(self, path: str, columns: Collection[str] | None) -> Iterator[OpenTable]:
        """Read a file; only these columns are converted."""
        pyarrow = tables.import_pyarrow()
        csv = tables.import_pyarrow("pyarrow.csv")
        delimiter = self.delimiter or ("\t" if suffix_of(path) == ".tsv" else ",")
        types = dict.fromkeys(self.texts, pyarrow.string())
        for name, classes in self.classes.items():
            types[name] = pyarrow.array(list(classes)).type
        types |= {
            name: pyarrow.from_numpy_dtype(np.dtype(dtype)) for name, dtype in self.dtypes.items()
        }
        options = {
            "read_options": csv.ReadOptions(
                use_threads=False, column_names=self.names, encoding=self.encoding
            ),
            "parse_options": csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            "convert_options": csv.ConvertOptions(
                column_types=types,
                strings_can_be_null=True,
                decimal_point=self.decimal,
                null_values=sorted(
                    {*csv.ConvertOptions().null_values} - {*chain(*self.classes.values())}
                ),
            ),
        }
        with open_binary(path) as source:
            if (
                source.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
                and "16" not in self.encoding
            ):
                raise FileContentError("is text in UTF-16: give CsvReader(encoding='utf-16')")
            source.seek(0)
            if columns is not None:
                names = csv.open_csv(source, **options).schema.names
                if missing := [name for name in columns if name not in names]:
                    raise FileContentError(
                        f"has no column {quote_names(missing)}; it has {quote_names(names)}"
                    )
                options["convert_options"].include_columns = list(columns)
                source.seek(0)
            table = csv.read_csv(source, **options)
            if not len(table):
                raise FileContentError("holds no samples")
            for name, rows in _large(table, {*self.dtypes, *self.classes}):
                source.seek(0)
                options["convert_options"].include_columns, column_types = (
                    [name],
                    {name: pyarrow.string()},
                )
                options["convert_options"].column_types = column_types
                texts = csv.read_csv(source, **options)[name].to_pylist()
                if (
                    row := next((row for row in rows if texts[row].strip(" +-").isdecimal()), None)
                ) is not None:
                    raise _rounding_error(
                        name, row, texts[row], (f"CsvReader(dtypes={{{name!r}: 'float64'}})")
                    )
            if other := [
                field.name for field in table.schema if pyarrow.types.is_binary(field.type)
            ]:
                raise FileContentError(
                    f"is no text in UTF-8, in {quote_names(other)}: give "
                    "CsvReader(encoding='latin-1'), or the encoding that it has"
                )
            yield OpenTable(table.schema, (len(table),), lambda _, names: table.select(names))


def _large(table: Any, names: Collection[str]) -> Iterator[tuple[str, list[int]]]:
    """Iterate over the columns, except these, that were inferred as floats, and their rows with
    2**63 and more.
    """
    for number, field in enumerate(table.schema):
        if field.name not in names and tables.import_pyarrow().types.is_floating(field.type):
            values = table.column(number).to_numpy()
            if len(rows := np.flatnonzero((values >= 2.0**63) | (values < -(2.0**63)))):
                yield field.name, rows.tolist()


def _rounding_error(name: str, row: int, text: str, advice: str) -> FileContentError:
    return FileContentError(
        f"holds {text} in {name!r}, in row {row}, and the largest integer of a tensor is 2**63 - "
        f"1: give {advice}, if it may be rounded to a float"
    )


def _objects(text: str) -> Iterator[Any]:
    """Iterate over the values in a text of JSON."""
    decoder = json.JSONDecoder()
    place = 0
    while found := re.compile(r"\S").search(text, place):
        value, place = decoder.raw_decode(text, found.start())
        yield value


class JsonReader(TableReader):
    """Reads JSON lines: an object a row, whose items are columns; a file is one block and is parsed
    whole.
    """

    @contextmanager
    def open(self, path: str, columns: Collection[str] | None) -> Iterator[OpenTable]:
        """Read a file."""
        reader = tables.import_pyarrow("pyarrow.json")
        with open_binary(path) as source:
            # In one block: types are inferred block by block, and a line may not be longer than a
            # block.
            size = min(2**31 - 1, source.seek(0, os.SEEK_END) + 1)
            source.seek(0)
            table = reader.read_json(source, reader.ReadOptions(use_threads=False, block_size=size))
            for name, rows in _large(table, ()):
                source.seek(0)
                values = [each.get(name) for each in _objects(source.read().decode("utf-8-sig"))]
                if (
                    row := next((row for row in rows if isinstance(values[row], int)), None)
                ) is not None:
                    raise _rounding_error(name, row, str(values[row]), "a number with an exponent")
            yield OpenTable(table.schema, (len(table),), lambda _, names: table.select(names))
