"""``ParquetReader``: reads tables in Parquet files."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from compss_train.data.arrow_columns import import_pyarrow
from compss_train.data.locations import is_remote, openable
from compss_train.data.readers.table import OpenTable, TableReader


class ParquetReader(TableReader):
    """Reads Parquet files: the requested columns of the row groups that hold the requested rows.

    Each row group is a block. Checksums of pages are verified where a file has them.
    """

    @contextmanager
    def open(self, path: str, columns: Collection[str] | None) -> Iterator[OpenTable]:
        """Open a file and read its footer."""
        parquet = import_pyarrow("pyarrow.parquet")
        remote = is_remote(path)
        options = {"page_checksum_verification": True, "memory_map": True, "pre_buffer": remote}
        with openable(path) as source, parquet.ParquetFile(source, **options) as file:

            def read(numbers: list[int], names: list[str]) -> Any:
                return file.read_row_groups(numbers, columns=names, use_threads=False)

            metadata = file.metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            rows = tuple(group.num_rows for group in groups)
            yield OpenTable(file.schema_arrow, rows, read)
