"""``ArrowRows``: reads columns of a ``datasets.Dataset`` of Hugging Face, which Arrow maps into memory."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, map_leaves
from compss_train.data.block import as_tensor, gather, rows_of_bytes
from compss_train.data.block_passes import Place
from compss_train.data.collation import Roles, collate_pairs
from compss_train.data.layout import FileContentError
from compss_train.data.ragged import Ragged
from compss_train.data.sample_reading import Collate, ReadBatch, Reseed, SampleReader
from compss_train.data.tables import check_complete, conversion_note, float_dtype


class ArrowRows(SampleReader):
    """Reads columns of numbers, and of lists of numbers, from the files of a data set, which each process maps.

    Lists that differ in length are sequences. Numbers with a fraction become ``floats``.

    Raises ``ValueError`` for values that are missing.
    """

    def __init__(self, dataset: Any, roles: Roles, floats: str | None) -> None:
        self._dataset, self._floats = dataset, floats
        shown = [name for name in dataset.column_names if name in dataset.format["columns"]]
        self._x, self._y = roles.split({name: name for name in shown})

    @property
    def names(self) -> list[str]:
        """The names of the columns that are read."""
        return [name for name in leaves((self._x, self._y)) if name is not None]

    @property
    def notes(self) -> tuple[str, ...]:
        """What users should know about conversions."""
        changed = [name for name, column in self._columns.items() if column.becomes != column.dtype]
        return (
            (conversion_note(changed, str(self._columns[changed[0]].dtype), str(self._floats)),) if changed else ()
        )

    def read(self, numbers: NDArray[np.int64], place: Place, reseed: Reseed, collate: Collate | None) -> ReadBatch:
        """Return the batch."""
        rows = numbers if self._indices is None else self._indices[numbers]
        x, y = (None if names is None else self._rows(names, rows) for names in (self._x, self._y))
        if collate is not None:
            x, y = collate_pairs(collate, [(_sample(x, k), _sample(y, k)) for k in range(len(rows))])
        return ReadBatch(x, y, len(rows))

    def is_readable(self) -> bool:
        """Return whether the columns can be read, in all rows of the table."""
        try:
            return bool(self._columns)
        except ValueError:
            return False

    def _rows(self, names: Any, rows: NDArray[np.int64]) -> Any:
        return map_leaves(lambda name: self._columns[name].rows(rows), names)

    def fingerprint(self, starts: Sequence[int], stops: Sequence[int]) -> int | None:
        """Return a checksum of the samples at the ends of blocks."""
        batch = self.read(np.array([*starts, *(stop - 1 for stop in stops)]), Place(0, 0, 0), lambda _: 0, None)
        checksum = 0
        for part in leaves((batch.x, batch.y)):
            if part is not None:
                checksum = zlib.crc32(
                    rows_of_bytes(part.values if isinstance(part, Ragged) else part).data, checksum
                )
        return checksum

    @cached_property
    def _columns(self) -> dict[str, _Arrays | _Sequences]:
        try:
            table = self._dataset.data.table
            return {name: _column(name, table.column(name), self._indices, self._floats) for name in self.names}
        except FileContentError as error:
            raise ValueError(f"the data set {error}") from None

    @cached_property
    def _indices(self) -> NDArray[np.int64] | None:
        """The rows of the table in the order of a data set that was shuffled, or selected from."""
        indices = self._dataset._indices
        return None if indices is None else indices.column(0).to_numpy().astype(np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("_dataset", "_floats", "_x", "_y")}


def is_hugging_face(value: Any) -> bool:
    """Return whether a value is a data set of Hugging Face, or a dict of them, without importing that package."""
    return type(value).__module__.partition(".")[0] == "datasets" and hasattr(value, "column_names")


def arrow_rows(dataset: Any, roles: Roles, floats: str | None) -> ArrowRows | None:
    """Return a reader of a data set; ``None`` if that has to make the samples: images, texts, transforms."""
    if dataset.format["type"] == "custom":
        return None
    rows, table = ArrowRows(dataset, roles, floats), dataset.data.table
    if not all(_is_numeric(table.schema.field(name).type) for name in rows.names):
        return None
    if dataset._indices is not None and not rows.is_readable():  # the unreadable values may be in rows left out
        used = dataset.select_columns(list(dict.fromkeys(rows.names)))
        return ArrowRows(used.flatten_indices(), roles, floats)
    return rows


def _is_numeric(kind: Any) -> bool:
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)
    while _is_list(kind):
        kind = kind.value_type
    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind))


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _column(name: str, column: Any, used: NDArray[np.int64] | None, floats: str | None) -> _Arrays | _Sequences:
    """Return a column of Arrow as numbers, without a copy where Arrow has them as numpy has.

    Only the lists in the rows that are ``used``, all by default, decide whether their lengths differ.
    """
    if column.null_count:
        check_complete(name, np.asarray(column.is_null()))
    blocks, lengths = zip(*(_opened(name, chunk) for chunk in column.chunks if len(chunk)), strict=True)
    levels = [np.concatenate(level) for level in zip(*lengths, strict=True)]
    inner = [np.unique(level) for level in levels[1:]]
    if any(len(each) > 1 for each in inner):
        raise FileContentError(f"holds lists of different lengths within those of {name!r}: pad them")
    shape = [int(each[0]) for each in inner]
    if levels and len(np.unique(levels[0])) > 1:
        alike = used is not None and len(np.unique(levels[0][used])) <= 1
        items = [block.reshape(-1, *shape) for block in blocks]
        return _Sequences(items, [each[0] for each in lengths], floats, alike)
    rows = [int(levels[0][0]), *shape] if levels else []
    return _Arrays([block.reshape(-1, *rows) for block in blocks], floats)


def _opened(name: str, chunk: Any) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """Return the numbers in a chunk, and the lengths of the lists that they are in, from outside to inside.

    Raises ``FileContentError`` for missing values within lists; those of fixed lists would be left out silently.
    """
    lengths = []
    while _is_list((chunk := getattr(chunk, "storage", chunk)).type):
        size = getattr(chunk.type, "list_size", None)
        lengths.append(np.diff(chunk.offsets.to_numpy()) if size is None else np.full(len(chunk), size))
        chunk = chunk.flatten()
        if chunk.null_count:
            raise FileContentError(f"lacks values within lists of {name!r}: fill them in")
    return chunk.to_numpy(zero_copy_only=False), lengths


class _Arrays:
    """A column of numbers, or of lists of one length, in consecutive blocks."""

    def __init__(self, blocks: Sequence[NDArray[Any]], floats: str | None) -> None:
        self._blocks = blocks
        self._starts = np.cumsum([0, *map(len, blocks[:-1])])
        self.dtype = blocks[0].dtype
        self.becomes = float_dtype(self.dtype, floats)

    def rows(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """Return rows by number."""
        needed = np.unique(self._starts.searchsorted(rows, side="right") - 1)
        taken = gather(rows, self._starts[needed].tolist(), [self._blocks[number] for number in needed])
        return taken if self.becomes == self.dtype else taken.to(as_tensor(np.empty(0, self.becomes)).dtype)


class _Sequences:
    """A column of lists of different lengths, in consecutive blocks of the lists' items.

    The lists that are read may yet be ``alike`` in length.
    """

    def __init__(
        self, blocks: Sequence[NDArray[Any]], lengths: Sequence[NDArray[Any]], floats: str | None, alike: bool
    ) -> None:
        self._blocks, self._alike = blocks, alike
        self._starts = np.cumsum([0, *map(len, lengths[:-1])])
        self._ends = [np.cumsum([0, *each]) for each in lengths]
        self.dtype = blocks[0].dtype
        self.becomes = float_dtype(self.dtype, floats)

    def rows(self, rows: NDArray[np.int64]) -> Ragged | torch.Tensor:
        """Return rows by number."""
        lists = [self._row(row) for row in rows.tolist()]
        if self._alike:
            return torch.from_numpy(np.stack(lists).astype(self.becomes, copy=False))
        offsets = np.cumsum([0, *map(len, lists)])
        values = np.concatenate(lists).astype(self.becomes, copy=False)
        return Ragged.of(torch.from_numpy(values), torch.from_numpy(offsets))

    def _row(self, row: int) -> NDArray[Any]:
        number = int(self._starts.searchsorted(row, side="right")) - 1
        start, stop = self._ends[number][row - self._starts[number] :][:2]
        return self._blocks[number][start:stop]


def _sample(part: Any, number: int) -> Any:
    return None if part is None else map_leaves(lambda leaf: leaf[number], part)
