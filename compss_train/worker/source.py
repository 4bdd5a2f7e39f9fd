"""Sources: where a task's samples come from, blocks that it is given or files that it reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train.data.block import Block, as_tensor
from compss_train.data.order import row_order
from compss_train.data.readers import Arrays
from compss_train.data.reading import FilePart
from compss_train.data.schedule import Visit
from compss_train.data.stretches import Stretch
from compss_train.pipeline import ReadAhead
from compss_train.samplers.loader import FileLoader
from compss_train.worker.rows import VisitRows, gather
from compss_train.worker.shard import Shard

Columns: TypeAlias = "tuple[torch.Tensor, ...]"
"""Rows of x, and of y and of weights where there are such."""

_FILE_CHUNK = 2**22  # bytes read at a time: large enough that handing them to another thread costs nothing
_MEMORY_CHUNK = 2**18  # bytes copied at a time: small enough to be still in the core's cache when they are put


class Source(ABC):
    """Gives the samples of visits."""

    @abstractmethod
    def visits(self, visits: Sequence[Visit]) -> AbstractContextManager[Iterator[Columns | None]]:
        """Return a context that gives the rows of each visit in turn, in the order in which they are stored.

        ``None`` comes for those of a file that cannot be read and is to be left out.
        """

    @abstractmethod
    def chunks(self, visits: Sequence[Visit]) -> AbstractContextManager[Iterable[Columns]]:
        """Return a context that gives the rows of the visits in the order of training, some at a time."""

    def measured(self) -> dict[str, Any]:
        """Return what is to be told of how the samples were had."""
        return {}


def source_of(shard: Shard, xs: Sequence[Any] | FilePart, others: Sequence[Block]) -> Source:
    """Return the source of what a training task is given: blocks of x, or pieces, or what reads files.

    ``others`` are the blocks of y, and those of weights after them, as far as there are such.
    """
    if isinstance(xs, FilePart):
        return FileSource(xs, shard.file_buffer, shard.shuffle_seed)
    if shard.pieces:
        return BlockSource(list(zip(*xs, strict=True)), shard)
    blocks = [*xs, *others]
    return BlockSource([blocks[start : start + len(xs)] for start in range(0, len(blocks), len(xs))], shard)


class BlockSource(Source):
    """Blocks of x, of y and of weights: in memory, or mapped files."""

    def __init__(self, blocks: Sequence[Sequence[Block]], shard: Shard) -> None:
        self._blocks = blocks
        self._shard = shard

    @contextmanager
    def visits(self, visits: Sequence[Visit]) -> Iterator[Iterator[Columns]]:
        """Give the rows, of blocks in memory without copying them."""
        yield (tuple(self._rows(visit, blocks) for blocks in self._blocks) for visit in visits)

    def _rows(self, visit: Visit, blocks: Sequence[Block]) -> torch.Tensor:
        if visit.samples is not None:
            return gather(visit.samples, self._shard.starts, blocks)
        block = blocks[self._shard.blocks.index(visit.block)]
        return as_tensor(block[visit.first : visit.first + visit.size])

    @contextmanager
    def chunks(self, visits: Sequence[Visit]) -> Iterator[Iterable[Columns]]:
        """Give the rows in chunks, read ahead in a thread where blocks are on file.

        To copy rows that are in memory ahead of time would gain nothing, and cost a tenth of the training of a
        small network: copies go from core to core, and threads take turns.
        """
        if any(isinstance(block, np.memmap) for blocks in self._blocks for block in blocks):
            with ReadAhead(self._reads(visits, _FILE_CHUNK), _load) as chunks:
                yield chunks
        else:
            yield map(_load, self._reads(visits, _MEMORY_CHUNK))

    def _reads(self, visits: Sequence[Visit], chunk_bytes: int) -> Iterator[tuple[VisitRows, int, int]]:
        for visit in visits:
            rows = VisitRows(visit, self._shard, self._blocks)
            step = max(1, chunk_bytes // max(1, rows.bytes_per_sample))
            for start in range(0, visit.size, step):
                yield rows, start, min(start + step, visit.size)


def _load(read: tuple[VisitRows, int, int]) -> Columns:
    rows, start, stop = read
    return rows.load(start, stop)


class FileSource(Source):
    """Files, read in turn and ahead."""

    def __init__(self, part: FilePart, file_buffer: int, shuffle_seed: int | None = None) -> None:
        self._loader = FileLoader(part, file_buffer)
        self._keys = part.keys or ()
        self._shuffle_seed = shuffle_seed

    @contextmanager
    def visits(self, visits: Sequence[Visit]) -> Iterator[Iterator[Columns | None]]:
        """Give the rows, ``None`` for a file that is left out."""
        stretches = [Stretch(visit.block, visit.first, visit.first + visit.size) for visit in visits]
        with self._loader.reading(stretches) as arrays:
            yield map(self._columns, arrays)  # holds on to none while the next one is read

    def _columns(self, arrays: Arrays | None) -> Columns | None:
        return None if arrays is None else tuple(as_tensor(arrays[key]) for key in self._keys)

    @contextmanager
    def chunks(self, visits: Sequence[Visit]) -> Iterator[Iterable[Columns]]:
        """Give the rows file by file."""
        with self.visits(visits) as read:
            yield filter(None, map(self._in_order, visits, read))

    def _in_order(self, visit: Visit, rows: Columns | None) -> Columns | None:
        if self._shuffle_seed is None or rows is None:
            return rows
        order = torch.from_numpy(row_order(self._shuffle_seed, visit.epoch, visit.block, visit.size))
        return tuple(part.index_select(0, order) for part in rows)

    def measured(self) -> dict[str, Any]:
        """Return what was read, and the files that were left out."""
        left_out = {"skipped": self._loader.skipped, "left_out": self._loader.left_out}
        return {"files": self._loader.reads.as_dict(), **left_out}
