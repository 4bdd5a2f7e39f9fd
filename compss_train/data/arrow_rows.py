"""``ArrowRows``: reads a ``datasets.Dataset`` of Hugging Face, which Arrow maps into memory."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, map_leaves
from compss_train._utils.private_names import row_numbers
from compss_train.data.arrow_columns import check_no_nulls, number_blocks, number_type
from compss_train.data.block import Block
from compss_train.data.block_bytes import checksum, gather
from compss_train.data.collating import Collate, collate_batch
from compss_train.data.conversions import conversion_note, float_dtype
from compss_train.data.layout import FileContentError
from compss_train.data.ragged import Ragged
from compss_train.data.sample_reading import ReadBatch, Reseed, Rows, SampleReader
from compss_train.data.sample_roles import Roles
from compss_train.data.values import signed


class ArrowRows(SampleReader):
    """Reads columns of numbers, and of lists of numbers, from files that each process maps.

    Lists that differ in length are sequences. Floating-point numbers are converted to ``floats``.

    Raises ``ValueError`` for missing values, also in rows that were left out by ``select`` or
    ``filter``.
    """

    def __init__(self, dataset: Any, roles: Roles, floats: str | None) -> None:
        self._dataset = dataset
        self._floats = floats
        shown = [name for name in dataset.column_names if name in dataset.format["columns"]]
        self._x, self._y = roles.split({name: name for name in shown})

    @property
    def dtypes(self) -> dict[str, np.dtype[Any] | None]:
        """The dtypes of the columns that are read; ``None`` for columns without numbers."""
        schema = self._dataset.data.table.schema
        names = [name for name in leaves((self._x, self._y)) if name is not None]
        return {name: number_type(schema.field(name).type)[0] for name in names}

    @property
    def notes(self) -> tuple[str, ...]:
        """What users should know about conversions."""
        for dtype in self.dtypes.values():
            if dtype is not None and float_dtype(dtype, self._floats) != dtype:
                return (conversion_note(str(dtype), str(self._floats)),)
        return ()

    def read(
        self, numbers: Rows, epoch: int, position: int, reseed: Reseed, collate: Collate | None
    ) -> ReadBatch:
        """Return the batch."""
        rows = numbers if self._indices is None else self._indices[numbers]
        x = map_leaves(lambda name: self._rows(name, rows), self._x)
        y = None
        if self._y is not None:
            y = map_leaves(lambda name: self._rows(name, rows), self._y)
        if collate is not None:
            x, y = collate_batch(collate, x, y, samples=len(rows))
        return ReadBatch(x, y, len(rows))

    def _rows(self, name: str, rows: NDArray[np.int64]) -> Ragged | torch.Tensor:
        blocks, starts = self._columns[name]
        needed = np.unique(starts.searchsorted(rows, side="right") - 1)
        needed_blocks = [blocks[number] for number in needed]
        samples: Ragged | torch.Tensor = gather(rows, starts[needed].tolist(), needed_blocks)
        if not isinstance(samples, Ragged):
            samples = signed(samples)
        if self._floats is not None and samples.dtype.is_floating_point:
            return samples.to(getattr(torch, self._floats))
        return samples

    def fingerprint(self, starts: Sequence[int], stops: Sequence[int]) -> int | None:
        """Return a checksum of the samples at the ends of blocks."""
        ends = np.array([*starts, *(stop - 1 for stop in stops)])
        batch = self.read(ends, 0, 0, reseed=lambda _: 0, collate=None)
        parts = (part for part in leaves((batch.x, batch.y)) if part is not None)
        return checksum(part.values if isinstance(part, Ragged) else part for part in parts)

    @cached_property
    def _columns(self) -> dict[str, tuple[list[Block], NDArray[np.int64]]]:
        """The columns in consecutive blocks, with the number of the first row of each block."""
        columns = {}
        try:
            for name in self.dtypes:
                column = self._dataset.data.table.column(name)
                check_no_nulls(name, column)
                blocks = number_blocks(name, [chunk for chunk in column.chunks if len(chunk)])
                columns[name] = blocks, np.cumsum([0, *map(len, blocks[:-1])])
        except FileContentError as error:
            hint = "; if these rows were left out, give dataset.flatten_indices()"
            advice = "" if self._indices is None else hint
            raise ValueError(f"the data set {error}{advice}") from None
        return columns

    @cached_property
    def _indices(self) -> NDArray[np.int64] | None:
        """The numbers of the table's rows in the order of a data set that was shuffled or selected.

        ``None`` for other data sets.
        """
        indices = row_numbers(self._dataset)
        return None if indices is None else indices.column(0).to_numpy().astype(np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("_dataset", "_floats", "_x", "_y")}


def arrow_rows(dataset: Any, roles: Roles, floats: str | None) -> ArrowRows | None:
    """Return a reader of a data set, or ``None`` if only the data set itself can make samples.

    That is so for images, text and transforms.
    """
    if dataset.format["type"] == "custom":
        return None
    rows = ArrowRows(dataset, roles, floats)
    return None if any(dtype is None for dtype in rows.dtypes.values()) else rows
