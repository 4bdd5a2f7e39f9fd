"""``ArrowReader``: reads tables in Arrow's file format (Feather), and its stream format."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from compss_train.data.arrow_columns import import_pyarrow
from compss_train.data.layout import FileContentError
from compss_train.data.locations import is_remote, openable
from compss_train.data.readers.table import OpenTable, TableReader

_MAGIC = b"ARROW1"


class ArrowReader(TableReader):
    """Reads record batches of Arrow files, which are memory-mapped; each batch is a block."""

    @contextmanager
    def open(self, path: str, columns: Collection[str] | None) -> Iterator[OpenTable]:
        """Map a file into memory; a remote one is read where it is needed."""
        pyarrow = import_pyarrow()
        with openable(path) as file:
            remote = is_remote(path)
            mapped = pyarrow.PythonFile(file, mode="r") if remote else pyarrow.memory_map(path)
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


def _batch_file(source: Any) -> OpenTable:
    """Return a table in Arrow's file format, which allows reading single batches and columns.

    ``pyarrow.dataset`` also reads this format, but only from the first batch onwards.
    """
    pyarrow = import_pyarrow()
    ipc = import_pyarrow("pyarrow.ipc")

    def open_columns(columns: list[int]) -> Any:
        options = ipc.IpcReadOptions(included_fields=columns, use_threads=False)
        return ipc.open_file(source, options=options)

    def read(numbers: list[int], names: list[str]) -> Any:
        file = open_columns([schema.get_field_index(name) for name in names])
        batches = [file.get_batch(number) for number in numbers]
        return pyarrow.Table.from_batches(batches, file.schema)

    file = ipc.open_file(source)
    schema = file.schema
    widths = [
        field.type.bit_width if pyarrow.types.is_primitive(field.type) else 2**31
        for field in schema
    ]
    # Compressed columns must be read to be counted: count rows in the narrowest one.
    narrowest = open_columns([int(np.argmin(widths))]) if widths else file
    rows = tuple(narrowest.get_batch(number).num_rows for number in range(file.num_record_batches))
    return OpenTable(schema, rows, read)


def _batch_stream(source: Any) -> OpenTable:
    """Return a table in Arrow's stream format, where batches are found one after another."""
    pyarrow = import_pyarrow()
    with import_pyarrow("pyarrow.ipc").open_stream(source) as stream:
        schema = stream.schema
        batches = list(stream)

    def read(numbers: list[int], names: list[str]) -> Any:
        table = pyarrow.Table.from_batches([batches[number] for number in numbers], schema)
        return table.select(names)

    return OpenTable(schema, tuple(batch.num_rows for batch in batches), read)
