"""Sources: where a task's samples come from, blocks that it is given or files that it reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train.buffers.reading_ahead import ReadAhead
from compss_train.data.block import Block, as_tensor
from compss_train.data.order import row_order
from compss_train.data.partitioning import BlockPass
from compss_train.data.readers import Arrays
from compss_train.data.reading import FilePart
from compss_train.data.row_ranges import RowRange
from compss_train.samplers.loader import FileLoader
from compss_train.training.worker.rows import BlockPassRows, gather
from compss_train.training.worker.shard import Shard

Columns: TypeAlias = "tuple[torch.Tensor, ...]"
"""Rows of x, and of y and of weights where there are such."""

_FILE_CHUNK = 2**22  # bytes read at a time: large enough that handing them to another thread costs nothing
_MEMORY_CHUNK = 2**18  # bytes copied at a time: small enough to be still in the core's cache when they are put


class Source(ABC):
    """Gives the samples of visits."""

    @abstractmethod
    def block_passes(self, block_passes: Sequence[BlockPass]) -> AbstractContextManager[Iterator[Columns | None]]:
        """Return a context that gives the rows of each visit in turn, in the order in which they are stored.

        ``None`` comes for those of a file that cannot be read and is to be left out.
        """

    @abstractmethod
    def chunks(self, block_passes: Sequence[BlockPass]) -> AbstractContextManager[Iterable[Columns]]:
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
    def block_passes(self, block_passes: Sequence[BlockPass]) -> Iterator[Iterator[Columns]]:
        """Give the rows, of blocks in memory without copying them."""
        yield (tuple(self._rows(block_pass, blocks) for blocks in self._blocks) for block_pass in block_passes)

    def _rows(self, block_pass: BlockPass, blocks: Sequence[Block]) -> torch.Tensor:
        if block_pass.samples is not None:
            return gather(block_pass.samples, self._shard.starts, blocks)
        block = blocks[self._shard.blocks.index(block_pass.block)]
        return as_tensor(block[block_pass.first : block_pass.first + block_pass.size])

    @contextmanager
    def chunks(self, block_passes: Sequence[BlockPass]) -> Iterator[Iterable[Columns]]:
        """Give the rows in chunks, read ahead in a thread where blocks are on file.

        To copy rows that are in memory ahead of time would gain nothing, and cost a tenth of the training of a
        small network: copies go from core to core, and threads take turns.
        """
        if any(isinstance(block, np.memmap) for blocks in self._blocks for block in blocks):
            with ReadAhead(self._reads(block_passes, _FILE_CHUNK), _load) as chunks:
                yield chunks
        else:
            yield map(_load, self._reads(block_passes, _MEMORY_CHUNK))

    def _reads(
        self, block_passes: Sequence[BlockPass], chunk_bytes: int
    ) -> Iterator[tuple[BlockPassRows, int, int]]:
        for block_pass in block_passes:
            rows = BlockPassRows(block_pass, self._shard, self._blocks)
            step = max(1, chunk_bytes // max(1, rows.bytes_per_sample))
            for start in range(0, block_pass.size, step):
                yield rows, start, min(start + step, block_pass.size)


def _load(read: tuple[BlockPassRows, int, int]) -> Columns:
    rows, start, stop = read
    return rows.load(start, stop)


class FileSource(Source):
    """Files, read in turn and ahead."""

    def __init__(self, part: FilePart, file_buffer: int, shuffle_seed: int | None = None) -> None:
        self._loader = FileLoader(part, file_buffer)
        self._keys = part.keys or ()
        self._shuffle_seed = shuffle_seed

    @contextmanager
    def block_passes(self, block_passes: Sequence[BlockPass]) -> Iterator[Iterator[Columns | None]]:
        """Give the rows, ``None`` for a file that is left out."""
        row_ranges = [
            RowRange(block_pass.block, block_pass.first, block_pass.first + block_pass.size)
            for block_pass in block_passes
        ]
        with self._loader.reading(row_ranges) as arrays:
            yield map(self._columns, arrays)  # holds on to none while the next one is read

    def _columns(self, arrays: Arrays | None) -> Columns | None:
        return None if arrays is None else tuple(as_tensor(arrays[key]) for key in self._keys)

    @contextmanager
    def chunks(self, block_passes: Sequence[BlockPass]) -> Iterator[Iterable[Columns]]:
        """Give the rows file by file."""
        with self.block_passes(block_passes) as read:
            yield filter(None, map(self._in_order, block_passes, read))

    def _in_order(self, block_pass: BlockPass, rows: Columns | None) -> Columns | None:
        if self._shuffle_seed is None or rows is None:
            return rows
        order = torch.from_numpy(row_order(self._shuffle_seed, block_pass.epoch, block_pass.block, block_pass.size))
        return tuple(part.index_select(0, order) for part in rows)

    def measured(self) -> dict[str, Any]:
        """Return what was read, and the files that were left out."""
        left_out = {"skipped": self._loader.skipped, "left_out": self._loader.left_out}
        return {"files": self._loader.reads.as_dict(), **left_out}
