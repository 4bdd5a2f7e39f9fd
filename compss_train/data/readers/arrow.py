"""Readers of the tables that pyarrow reads: Parquet, Arrow (Feather) and CSV; needs pyarrow (extra ``arrow``)."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from compss_train.data.layout import FileContentError, quote_names
from compss_train.data.locations import is_remote, open_binary, suffix_of
from compss_train.data.readers.table import Table, TableReader, import_pyarrow, rows_of
from compss_train.data.tables import float_dtype


class ParquetReader(TableReader):
    """Reads row groups of Parquet files: those that have the requested rows, and of them the requested columns.

    Each row group is a block. Checksums of pages are verified where a file has them.
    """

    stored_name = "parquet"

    @contextmanager
    def open(self, path: str, columns: Collection[str] | None) -> Iterator[Table]:
        """Open a file and read its footer."""
        with ExitStack() as opened:
            options = {"memory_map": True} if not is_remote(path) else {"pre_buffer": True}
            source = opened.enter_context(open_binary(path)) if is_remote(path) else path
            file = import_pyarrow("pyarrow.parquet").ParquetFile(source, page_checksum_verification=True, **options)
            yield _ParquetTable(opened.enter_context(file))


class _ParquetTable:
    def __init__(self, file: Any) -> None:
        self._file = file
        self.schema = file.schema_arrow
        metadata = file.metadata
        self.blocks = tuple(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))

    def rows(self, start: int, stop: int, names: Sequence[str]) -> Any:
        first, numbers = _blocks_with(self.blocks, start, stop)
        table = self._file.read_row_groups(numbers, columns=list(names), use_threads=False)
        return rows_of(table, start - first, stop - first)


class ArrowReader(TableReader):
    """Reads record batches of Arrow files, memory-mapped: Arrow's file format (Feather), and its stream format.

    Each record batch is a block.
    """

    stored_name = "arrow"

    @contextmanager
    def open(self, path: str, columns: Collection[str] | None) -> Iterator[Table]:
        """Map a file into memory; a remote one is read where it is needed."""
        pyarrow = import_pyarrow()
        with ExitStack() as opened:
            source: Any = opened.enter_context(open_binary(path) if is_remote(path) else pyarrow.memory_map(path))
            if is_remote(path):
                source = opened.enter_context(pyarrow.PythonFile(source, mode="r"))
            is_file = source.read(len(_MAGIC)) == _MAGIC
            source.seek(0)
            yield _BatchFile(source) if is_file else _BatchStream(source)


_MAGIC = b"ARROW1"


class _BatchFile:
    """Arrow's file format, of which single batches and columns are read."""

    def __init__(self, source: Any) -> None:
        self._source = source
        file = import_pyarrow("pyarrow.ipc").open_file(source)
        self.schema = file.schema
        narrow = self._file([_narrowest(file.schema)]) if len(file.schema) else file
        self.blocks = tuple(narrow.get_batch(number).num_rows for number in range(file.num_record_batches))

    def _file(self, columns: list[int]) -> Any:
        ipc = import_pyarrow("pyarrow.ipc")
        return ipc.open_file(self._source, options=ipc.IpcReadOptions(included_fields=columns, use_threads=False))

    def rows(self, start: int, stop: int, names: Sequence[str]) -> Any:
        first, numbers = _blocks_with(self.blocks, start, stop)
        file = self._file([self.schema.get_field_index(name) for name in names])
        table = import_pyarrow().Table.from_batches([file.get_batch(number) for number in numbers], file.schema)
        return rows_of(table, start - first, stop - first)


class _BatchStream:
    """Arrow's stream format: batches are found by going through all that come before."""

    def __init__(self, source: Any) -> None:
        with import_pyarrow("pyarrow.ipc").open_stream(source) as stream:
            self.schema = stream.schema
            self._batches = list(stream)
        self.blocks = tuple(batch.num_rows for batch in self._batches)

    def rows(self, start: int, stop: int, names: Sequence[str]) -> Any:
        first, numbers = _blocks_with(self.blocks, start, stop)
        batches = [self._batches[number] for number in numbers]
        table = import_pyarrow().Table.from_batches(batches, self.schema).select(list(names))
        return rows_of(table, start - first, stop - first)


def _narrowest(schema: Any) -> int:
    """Return the column that is read to count rows: what is compressed has to be read for that."""
    widths = [
        field.type.bit_width if import_pyarrow().types.is_primitive(field.type) else 2**31 for field in schema
    ]
    return int(np.argmin(widths))


def _blocks_with(blocks: Sequence[int], start: int, stop: int) -> tuple[int, list[int]]:
    """Return the first row of the first block with some of these rows, and the numbers of all of them."""
    bounds = list(pairwise(accumulate(blocks, initial=0)))
    numbers = [number for number, (first, end) in enumerate(bounds) if first < stop and start < end]
    return bounds[numbers[0]][0] if numbers else start, numbers


class CsvReader(TableReader):
    """Reads CSV files with a line of names; a file is a block, which is parsed whole.

    Parameters
    ----------
    delimiter:
        What stands between values; by default a tab in ``.tsv`` files and a comma in others.
    dtypes:
        The dtypes of columns by name, as numpy calls them (``{"id": "int32"}``); the others' are those of their
        values: integers, numbers or strings. Columns that are one array become numbers with a fraction.
    names:
        Names of the columns, for files whose first line has values.
    """

    stored_name = "csv"

    def __init__(
        self,
        delimiter: str | None = None,
        dtypes: Mapping[str, str] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.delimiter, self.dtypes, self.names = delimiter, dict(dtypes or {}), names

    @contextmanager
    def open(self, path: str, columns: Collection[str] | None) -> Iterator[Table]:
        """Read a file, of which other columns are not converted."""
        csv = import_pyarrow("pyarrow.csv")
        delimiter = self.delimiter or ("\t" if suffix_of(path) == ".tsv" else ",")
        types = {name: import_pyarrow().from_numpy_dtype(np.dtype(dtype)) for name, dtype in self.dtypes.items()}
        options = {
            "read_options": csv.ReadOptions(use_threads=False, column_names=self.names),
            "parse_options": csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            "convert_options": csv.ConvertOptions(column_types=types, strings_can_be_null=True),
        }
        with open_binary(path) as source:
            if columns is not None:
                names = csv.open_csv(source, **options).schema.names
                if missing := [name for name in columns if name not in names]:
                    raise FileContentError(f"has no column {quote_names(missing)}; it has {quote_names(names)}")
                options["convert_options"].include_columns = list(columns)
                source.seek(0)
            yield _CsvTable(csv.read_csv(source, **options))

    def _dtype_of_group(self, dtypes: Any) -> np.dtype[Any]:
        return float_dtype(np.result_type(np.float64, *dtypes), self.floats)


class _CsvTable:
    def __init__(self, table: Any) -> None:
        self._table = table
        self.schema = table.schema
        self.blocks: tuple[int, ...] = (len(table),)

    def rows(self, start: int, stop: int, names: Sequence[str]) -> Any:
        return rows_of(self._table.select(list(names)), start, stop)
