"""Tables of the tests, in each format, and how they are read."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = 20
ROWS_OF_BLOCK = 6


def write_parquet(path, table):
    parquet.write_table(table, path, row_group_size=ROWS_OF_BLOCK)


def write_arrow(path, table):
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=ROWS_OF_BLOCK)


def write_compressed(path, table):
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(path, table.schema, options=options) as file:
        file.write_table(table, max_chunksize=ROWS_OF_BLOCK)


def write_stream(path, table):
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=ROWS_OF_BLOCK)


def write_csv(path, table):
    csv.write_csv(table, path)


def write_json(path, table):
    with open(path, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in table.to_pylist())


@dataclass(frozen=True)
class TableFormat:
    suffix: str
    write: Callable[..., Any]
    blocks: tuple[int, ...] = (6, 6, 6, 2)
    typed: bool = True
    """Whether it holds the dtypes of columns."""

    def saved(self, folder, name="f", **columns):
        path = str(folder / f"{name}{self.suffix}")
        self.write(path, pa.table(columns))
        return path


TABLES = {
    "parquet": TableFormat(".parquet", write_parquet),
    "arrow": TableFormat(".arrow", write_arrow),
    "feather, compressed": TableFormat(".feather", write_compressed),
    "arrow stream": TableFormat(".arrow", write_stream),
    "json lines": TableFormat(".jsonl", write_json, (ROWS,), typed=False),
    "csv": TableFormat(".csv", write_csv, (ROWS,), typed=False),
}
TYPED = {name: form for name, form in TABLES.items() if form.typed}


def columns(seed=0, rows=ROWS):
    """Return columns of numbers and of strings."""
    random = np.random.default_rng(seed)
    return {
        "a": random.normal(size=rows),
        "b": random.integers(-5, 5, rows),
        "kind": np.array(["cat", "dog", "eel"], object)[np.arange(rows) % 3],
        "target": random.normal(size=rows),
    }


def lists(array, size=None):
    """Return an array as a column of lists of a fixed size."""
    flat = pa.array(array.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, size or int(np.prod(array.shape[1:])))
