"""``JsonReader``: reads tables in JSON lines."""

import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from compss_train.data.arrow_columns import import_pyarrow
from compss_train.data.locations import open_binary
from compss_train.data.readers.rounded_integers import large_floats, rounding_error
from compss_train.data.readers.table import OpenTable, TableReader


class JsonReader(TableReader):
    """Reads JSON lines: an object a row, whose items are columns.

    A file is one block and is parsed whole.
    """

    @contextmanager
    def open(self, path: str, columns: Collection[str] | None) -> Iterator[OpenTable]:
        """Read a file."""
        reader = import_pyarrow("pyarrow.json")
        with open_binary(path) as source:
            # Types are inferred block by block, and a block holds whole lines: read one block.
            size = min(2**31 - 1, source.seek(0, os.SEEK_END) + 1)
            source.seek(0)
            table = reader.read_json(source, reader.ReadOptions(use_threads=False, block_size=size))
            for name, rows in large_floats(table, ()):
                source.seek(0)
                text = source.read().decode("utf-8-sig")
                values = [row_object.get(name) for row_object in _objects(text)]
                for row in rows:
                    if isinstance(values[row], int):
                        advice = "a number with an exponent"
                        raise rounding_error(name, row, str(values[row]), advice=advice)
            yield OpenTable(table.schema, (len(table),), lambda _, names: table.select(names))


def _objects(text: str) -> Iterator[Any]:
    """Iterate over the values in a text of JSON."""
    decoder = json.JSONDecoder()
    not_space = re.compile(r"\S")
    start = not_space.search(text)
    while start is not None:
        value, end = decoder.raw_decode(text, start.start())
        yield value
        start = not_space.search(text, end)
