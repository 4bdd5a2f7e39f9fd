"""``CsvReader``: reads tables in CSV files."""

import codecs
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np

from compss_train.data.arrow_columns import import_pyarrow
from compss_train.data.layout import FileContentError, quote_names
from compss_train.data.locations import open_binary, suffix_of
from compss_train.data.readers.rounded_integers import large_floats, rounding_error
from compss_train.data.readers.table import OpenTable, TableReader, check_columns


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

    least_dtypes = (np.float64,)
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
        csv = import_pyarrow("pyarrow.csv")
        delimiter = self.delimiter or ("\t" if suffix_of(path) == ".tsv" else ",")
        convert_options = self._convert_options()
        options = {
            "read_options": csv.ReadOptions(
                use_threads=False, column_names=self.names, encoding=self.encoding
            ),
            "parse_options": csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            "convert_options": convert_options,
        }
        with open_binary(path) as source:
            is_utf_16 = source.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            if is_utf_16 and "16" not in self.encoding:
                raise FileContentError("is text in UTF-16: give CsvReader(encoding='utf-16')")
            source.seek(0)
            if columns is not None:
                check_columns(columns, csv.open_csv(source, **options).schema.names)
                convert_options.include_columns = list(columns)
                source.seek(0)
            table = csv.read_csv(source, **options)
            if not len(table):
                raise FileContentError("holds no samples")
            for name, rows in large_floats(table, {*self.dtypes, *self.classes}):
                source.seek(0)
                _check_not_rounded(source, name, rows, options=options)
            _check_utf_8(table.schema)
            yield OpenTable(table.schema, (len(table),), lambda _, names: table.select(names))

    def _convert_options(self) -> Any:
        pyarrow = import_pyarrow()
        csv = import_pyarrow("pyarrow.csv")
        types = dict.fromkeys(self.texts, pyarrow.string())
        for name, classes in self.classes.items():
            types[name] = pyarrow.array(list(classes)).type
        for name, dtype in self.dtypes.items():
            types[name] = pyarrow.from_numpy_dtype(np.dtype(dtype))
        nulls = {*csv.ConvertOptions().null_values} - {*chain(*self.classes.values())}
        return csv.ConvertOptions(
            column_types=types,
            strings_can_be_null=True,
            decimal_point=self.decimal,
            null_values=sorted(nulls),
        )


def _check_not_rounded(source: Any, name: str, rows: list[int], options: dict[str, Any]) -> None:
    """Raise ``FileContentError`` if one of these rows of a column of floats is an integer."""
    options["convert_options"].include_columns = [name]
    options["convert_options"].column_types = {name: import_pyarrow().string()}
    texts = import_pyarrow("pyarrow.csv").read_csv(source, **options)[name].to_pylist()
    for row in rows:
        if texts[row].strip(" +-").isdecimal():
            advice = f"CsvReader(dtypes={{{name!r}: 'float64'}})"
            raise rounding_error(name, row, texts[row], advice=advice)


def _check_utf_8(schema: Any) -> None:
    is_binary = import_pyarrow().types.is_binary
    names = [field.name for field in schema if is_binary(field.type)]
    if names:
        raise FileContentError(
            f"is no text in UTF-8, in {quote_names(names)}: give "
            "CsvReader(encoding='latin-1'), or the encoding that it has"
        )
