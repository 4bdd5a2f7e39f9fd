"""The sources of the samples of a task: blocks or files."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.buffers.reading_ahead import ReadAhead
from compss_train.data.block import Block, as_tensor, gather, rows_of_bytes
from compss_train.data.block_passes import BlockPass, Place
from compss_train.data.columns import SINGLE, ColumnStructure
from compss_train.data.order import Batching, row_order
from compss_train.data.readers import Arrays
from compss_train.data.reading import FilePart
from compss_train.data.row_ranges import RowRange
from compss_train.samplers.loader import FileLoader
from compss_train.worker.work import Reading, Work

Columns: TypeAlias = tuple[torch.Tensor, ...]
"""Rows of the columns of x, then of those of y and of weights if the data have them."""


PlacedColumns: TypeAlias = tuple[Place, Columns]
"""The columns of a batch, and where it is."""

_FILE_CHUNK = 2**22  # bytes read at a time: large enough to make the hand-over to another thread negligible
_MEMORY_CHUNK = 2**18  # bytes copied at a time: small enough to stay in the core's cache until they are put


def unshuffled(xs: Sequence[Block] | FilePart, batch_size: int, structure: ColumnStructure = SINGLE) -> Work:
    """Return the work on all samples of these blocks or files in their order, for evaluation and prediction."""
    if isinstance(xs, FilePart):
        sizes = xs.sizes
    else:
        sizes = {n: len(rows) for n, rows in enumerate(columns_of(xs, [])[0] if xs else [])}
    reading = Reading(
        batching=Batching(size=batch_size),
        structure=replace(structure, bucketed=False),
        blocks=tuple(sizes),
        starts=tuple(accumulate(sizes.values(), initial=0))[:-1],
    )
    return Work(tuple(BlockPass(number, 0, size) for number, size in sizes.items()), reading)


def take(block: Block, rows: NDArray[Any]) -> Block:
    """Return a copy of some rows."""
    if isinstance(block, torch.Tensor):
        return block.index_select(0, torch.from_numpy(rows))  # a third of the time of indexing
    taken: NDArray[Any] = block[rows]
    return taken


def stored_rows(block_pass: BlockPass, shuffle_seed: int | None) -> slice:
    """Return the rows of the block that a pass needs; a part of a shuffled pass needs those of the whole pass."""
    first = block_pass.first
    if shuffle_seed is not None:
        return slice(first, first + block_pass.whole)
    return slice(first + block_pass.skip, first + block_pass.skip + block_pass.size)


def training_order(block_pass: BlockPass, shuffle_seed: int | None) -> NDArray[Any] | None:
    """Return the numbers of a pass's samples among its stored rows, in training order; ``None`` to keep that."""
    if shuffle_seed is None or block_pass.samples is not None:
        return None
    order = row_order(shuffle_seed, block_pass.epoch, block_pass.block, block_pass.whole)
    return order[block_pass.skip : block_pass.skip + block_pass.size]


class BlockPassRows:
    """The samples of one pass over a block, all columns, copied some at a time in training order."""

    def __init__(self, block_pass: BlockPass, reading: Reading, sources: Sequence[Sequence[Block]]) -> None:
        self._samples = block_pass.samples
        self._starts = reading.starts
        self._sources = sources
        self._index = reading.blocks.index(block_pass.block) if block_pass.samples is None else 0
        self._order = training_order(block_pass, reading.shuffle_seed)
        self._stored = stored_rows(block_pass, reading.shuffle_seed)

    @property
    def bytes_per_sample(self) -> int:
        """Bytes of a sample, all columns together."""
        return sum(int(rows_of_bytes(blocks[0][:1]).shape[1]) for blocks in self._sources)

    def load(self, start: int, stop: int) -> tuple[torch.Tensor, ...]:
        """Return samples ``start`` to ``stop`` of the pass, one tensor a column."""
        return tuple(self._from(blocks, start, stop) for blocks in self._sources)

    def _from(self, blocks: Sequence[Block], start: int, stop: int) -> torch.Tensor:
        if self._samples is not None:
            return gather(self._samples[start:stop], self._starts, blocks)
        block = blocks[self._index][self._stored]
        if self._order is None:
            return as_tensor(block[start:stop]).clone()
        return as_tensor(take(block, self._order[start:stop]))


class Source(ABC):
    """Provides the samples of passes over blocks."""

    @abstractmethod
    def rows(self, block_passes: Sequence[BlockPass]) -> AbstractContextManager[Iterator[Columns | None]]:
        """Return a context with an iterator over the ``stored_rows`` of each pass, or the samples that it names.

        A file that cannot be read and is skipped gives ``None``.
        """

    @abstractmethod
    def chunks(self, block_passes: Sequence[BlockPass]) -> AbstractContextManager[Iterable[Columns]]:
        """Return a context with an iterator over the rows of all passes in training order, some at a time."""

    def measured(self) -> dict[str, Any]:
        """Return measurements of the reading, for the history."""
        return {}


def taking(work: Work, xs: Sequence[Any] | FilePart, others: Sequence[Block]) -> tuple[Work, list[Any]]:
    """Return work on blocks of x and the other columns, or on files, with the values of its task."""
    if isinstance(xs, FilePart):
        return work._replace(reading=replace(work.reading, files=xs)), []
    return work, [*xs, *others]


def source_of(work: Work, values: Sequence[Any]) -> Source:
    """Return the source of the batches of a worker: the values that its task received, or files."""
    reading = work.reading
    if reading.files is not None:
        return FileSource(replace(reading.files, upcoming=work.upcoming), work)
    number = len(reading.blocks) or len(values)
    return BlockSource(columns_of(values[:number], values[number:]), reading)


def columns_of(xs: Sequence[Any], others: Sequence[Block]) -> list[Sequence[Block]]:
    """Return the blocks of x, of y and of the weights, if the data have them.

    ``others`` are the blocks of y, followed by those of the weights; or the blocks in ``xs`` are tuples, which have
    all columns.
    """
    if xs and isinstance(xs[0], tuple):
        return list(zip(*xs, strict=True))
    blocks = [*xs, *others]
    columns = range(0, len(blocks), len(xs) or 1)  # no blocks, where all samples are in a buffer
    return [blocks[start : start + len(xs)] for start in columns]


class BlockSource(Source):
    """Blocks of x, y and weights, in memory or in mapped files."""

    def __init__(self, blocks: Sequence[Sequence[Block]], reading: Reading) -> None:
        self._blocks = blocks
        self._reading = reading

    @contextmanager
    def rows(self, block_passes: Sequence[BlockPass]) -> Iterator[Iterator[Columns]]:
        """Provide the rows; those of blocks in memory are not copied."""
        yield (tuple(self._rows(block_pass, blocks) for blocks in self._blocks) for block_pass in block_passes)

    def _rows(self, block_pass: BlockPass, blocks: Sequence[Block]) -> torch.Tensor:
        if block_pass.samples is not None:
            return gather(block_pass.samples, self._reading.starts, blocks)
        block = blocks[self._reading.blocks.index(block_pass.block)]
        return as_tensor(block[stored_rows(block_pass, self._reading.shuffle_seed)])

    @contextmanager
    def chunks(self, block_passes: Sequence[BlockPass]) -> Iterator[Iterable[Columns]]:
        """Provide the rows in chunks, read ahead in a thread if blocks are files.

        Copying rows that are in memory ahead of time would gain nothing and cost a tenth of the training of a small
        network: copies move from core to core, and threads take turns.
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
            rows = BlockPassRows(block_pass, self._reading, self._blocks)
            step = max(1, chunk_bytes // max(1, rows.bytes_per_sample))
            for start in range(0, block_pass.size, step):
                yield rows, start, min(start + step, block_pass.size)


def _load(read: tuple[BlockPassRows, int, int]) -> Columns:
    rows, start, stop = read
    return rows.load(start, stop)


class FileSource(Source):
    """Files, read in order and ahead."""

    def __init__(self, part: FilePart, work: Work) -> None:
        self._loader = FileLoader(part, part.file_buffer)
        self._keys = part.keys or ()
        self._shuffle_seed = work.reading.shuffle_seed
        self._upcoming = [*(block_pass.block for block_pass in work.block_passes), *part.upcoming]
        """The files of the passes that follow, in this task and the next."""
        self._left_out = 0
        """Number of samples in skipped files."""

    @contextmanager
    def rows(self, block_passes: Sequence[BlockPass]) -> Iterator[Iterator[Columns | None]]:
        """Provide the rows, ``None`` for a file that is skipped."""
        stored = [stored_rows(block_pass, self._shuffle_seed) for block_pass in block_passes]
        row_ranges = [
            RowRange(block_pass.block, rows.start, rows.stop)
            for block_pass, rows in zip(block_passes, stored, strict=True)
        ]
        self._upcoming = self._upcoming[len(row_ranges) :]
        with self._loader.open(row_ranges, self._upcoming) as arrays:
            yield map(self._columns, block_passes, arrays)  # holds no reference while the next file is read

    def _columns(self, block_pass: BlockPass, arrays: Arrays | None) -> Columns | None:
        if arrays is None:
            self._left_out += block_pass.size
            return None
        return tuple(as_tensor(arrays[key]) for key in self._keys)

    @contextmanager
    def chunks(self, block_passes: Sequence[BlockPass]) -> Iterator[Iterable[Columns]]:
        """Provide the rows file by file."""
        with self.rows(block_passes) as read:
            yield filter(None, map(self._in_order, block_passes, read))

    def _in_order(self, block_pass: BlockPass, rows: Columns | None) -> Columns | None:
        order = training_order(block_pass, self._shuffle_seed)
        if order is None or rows is None:
            return rows
        return tuple(part.index_select(0, torch.from_numpy(order)) for part in rows)

    def measured(self) -> dict[str, Any]:
        """Return the counts of reads, and the files and samples that were skipped."""
        skipped = {"skipped": self._loader.skipped, "left_out": self._left_out}
        return {"files": asdict(self._loader.reads), **skipped}
