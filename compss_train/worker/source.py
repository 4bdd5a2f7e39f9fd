"""The sources of the samples of a task: blocks or files."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, wraps
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.buffers.reading_ahead import ReadAhead
from compss_train.data.block import Block, as_tensor, gather, rows_of_bytes
from compss_train.data.block_passes import BlockPass
from compss_train.data.order import RowRange, row_order
from compss_train.data.readers import Arrays
from compss_train.data.reading import FilePart
from compss_train.data.values import signed
from compss_train.samplers.loader import FileLoader
from compss_train.worker.work import Work

_Task = TypeVar("_Task", bound=Callable[..., Any])

Columns: TypeAlias = tuple[torch.Tensor, ...]
"""Rows of the columns of x, then of y and of the weights if the data have them."""

Piece: TypeAlias = tuple[Block, ...]
"""Rows of a block of x, with the same rows of y and of the weights."""

Order: TypeAlias = NDArray[Any] | None
"""The training order of a pass, as indices into its stored rows; ``None`` if they are already in order."""

_FILE_CHUNK = 2**22  # bytes read at a time: large enough to make the hand-over to another thread negligible
_MEMORY_CHUNK = 2**18  # bytes copied at a time: small enough to stay in the core's cache until they are put


def stored_rows(block_pass: BlockPass, shuffle_seed: int | None) -> slice:
    """Return the block's rows that a pass needs; a part of a shuffled pass needs the rows of the whole pass."""
    first = block_pass.first
    if shuffle_seed is not None:
        return slice(first, first + block_pass.whole)
    return slice(first + block_pass.skip, first + block_pass.skip + block_pass.size)


def training_order(block_pass: BlockPass, shuffle_seed: int | None) -> Order:
    """Return the training order of a pass."""
    if shuffle_seed is None or block_pass.sample_numbers is not None:
        return None
    order = row_order(shuffle_seed, block_pass.epoch, block_pass.block, block_pass.whole)
    return order[block_pass.skip : block_pass.skip + block_pass.size]


class Source(ABC):
    """Provides the samples of passes over blocks."""

    @abstractmethod
    def rows(self, block_passes: Sequence[BlockPass]) -> AbstractContextManager[Iterator[Columns | None]]:
        """Return a context with an iterator over the ``stored_rows`` of each pass, or the samples that it names.

        A skipped file gives ``None``.
        """

    @abstractmethod
    def chunks(self, block_passes: Sequence[BlockPass]) -> AbstractContextManager[Iterable[Columns]]:
        """Return a context with an iterator over the rows of all passes in training order, some at a time."""

    def measured(self) -> dict[str, Any]:
        """Return measurements of the reading, for the history."""
        return {}


def source_of(work: Work, values: Sequence[Any]) -> Source:
    """Return the source of the batches of a worker: the values that its task received, or files."""
    if work.files is not None:
        return FileSource(work.files, work)
    return BlockSource(columns_of(values, len(work.blocks)), work)


def columns_of(values: Sequence[Any], number: int) -> list[Sequence[Block]]:
    """Return the blocks of x, of y and of the weights, if the data have them.

    ``values`` are ``number`` blocks of each column, column after column; or tuples of all columns.
    """
    if values and isinstance(values[0], tuple):
        return list(zip(*values, strict=True))
    return [values[start : start + number] for start in range(0, len(values), number or 1)]


def split_rows(
    blocks: Sequence[Any], starts: Sequence[int], rows: NDArray[Any], bounds: NDArray[Any]
) -> tuple[Piece, ...] | Piece:
    """Return pieces of consecutive blocks, whose rows begin at ``bounds``; a task of a total shuffle.

    ``blocks`` are the blocks of x, which begin at ``starts``, then of y and of the weights; or tuples of all.
    Returns a tuple of pieces, or the piece itself if there is only one.
    """
    gathered = [gather(rows, starts, column) for column in columns_of(blocks, len(starts))]
    pieces = tuple(tuple(column[start:stop] for column in gathered) for start, stop in pairwise(bounds.tolist()))
    return pieces if len(pieces) > 1 else pieces[0]


class BlockSource(Source):
    """Blocks of x, y and weights, in memory or in mapped files."""

    def __init__(self, columns: Sequence[Sequence[Block]], work: Work) -> None:
        self._columns = columns
        self._work, self._shuffle_seed = work, work.options.shuffle_seed

    @contextmanager
    def rows(self, block_passes: Sequence[BlockPass]) -> Iterator[Iterator[Columns]]:
        """Provide the rows; rows of blocks in memory are not copied."""
        yield map(self._rows, block_passes)

    def _rows(self, block_pass: BlockPass) -> Columns:
        if block_pass.sample_numbers is not None:
            return self._gathered(block_pass.sample_numbers)
        return tuple(map(as_tensor, self._stored(block_pass)))

    def _gathered(self, samples: NDArray[Any]) -> Columns:
        return tuple(gather(samples, self._work.starts, blocks) for blocks in self._columns)

    def _stored(self, block_pass: BlockPass) -> list[Block]:
        number = self._work.blocks.index(block_pass.block)
        rows = stored_rows(block_pass, self._shuffle_seed)
        return [blocks[number][rows] for blocks in self._columns]

    @contextmanager
    def chunks(self, block_passes: Sequence[BlockPass]) -> Iterator[Iterable[Columns]]:
        """Provide the rows in chunks, read ahead in a thread if blocks are files.

        Copying rows that are in memory ahead of time would gain nothing and cost a tenth of the training of a small
        network: copies move from core to core, and threads take turns.
        """
        on_file = any(isinstance(block, np.memmap) for blocks in self._columns for block in blocks)
        sample_bytes = sum(int(rows_of_bytes(blocks[0][:1]).shape[1]) for blocks in self._columns)
        step = max(1, (_FILE_CHUNK if on_file else _MEMORY_CHUNK) // max(1, sample_bytes))
        parts = self._parts(block_passes, step)
        if on_file:
            with ReadAhead(parts, self._copied) as chunks:
                yield chunks
        else:
            yield map(self._copied, parts)

    def _parts(self, block_passes: Sequence[BlockPass], step: int) -> Iterator[tuple[BlockPass, Order, slice]]:
        """Iterate over parts of passes of ``step`` samples, each with the training order of its pass."""
        for block_pass in block_passes:
            order = training_order(block_pass, self._shuffle_seed)
            for start in range(0, block_pass.size, step):
                yield block_pass, order, slice(start, min(start + step, block_pass.size))

    def _copied(self, part: tuple[BlockPass, Order, slice]) -> Columns:
        block_pass, order, some = part
        if block_pass.sample_numbers is not None:
            return self._gathered(block_pass.sample_numbers[some])
        if order is None:
            return tuple(as_tensor(rows[some]).clone() for rows in self._stored(block_pass))
        return tuple(_taken(rows, order[some]) for rows in self._stored(block_pass))


def _taken(block: Block, rows: NDArray[Any]) -> torch.Tensor:
    if isinstance(block, torch.Tensor):
        return block.index_select(0, torch.from_numpy(rows))  # a third of the time of indexing
    return as_tensor(block[rows])


class BlocksOnGpus:
    """Blocks on the GPUs of a process, which keeps them from task to task until the fit's last epoch.

    Rows are shuffled on the GPU, and later epochs copy none there. A fit that ends early leaves its blocks there
    until the next one begins.
    """

    def __init__(self) -> None:
        self._fit, self._full = "", True
        self._blocks: dict[tuple[Any, ...], Columns] = {}

    def columns(self, rows: Columns, block_pass: BlockPass, work: Work, device: str) -> Columns:
        """Return the stored rows of a pass on a GPU, or as they are if it has too little memory for them."""
        if work.options.resident is None:
            return rows
        fit, last_epoch, share = work.options.resident
        if fit != self._fit:
            self._fit, self._full, self._blocks = fit, False, {}
        key = fit, device, block_pass.block, block_pass.first, block_pass.whole
        moved = self._blocks.get(key) or (rows if self._full else _moved(rows, device, share))
        is_whole = len(rows[0]) == block_pass.whole and block_pass.sample_numbers is None
        if moved is not rows and is_whole and work.files is None:
            self._blocks[key] = moved
        if block_pass is work.block_passes[-1] and block_pass.epoch == last_epoch and not block_pass.rest:
            self._blocks = {}
        return moved

    def clear(self) -> bool:
        """Release the blocks, and keep no others of this fit; return whether there may have been any."""
        was_full, self._full, self._blocks = self._full, True, {}
        return not was_full


@cache
def blocks_on_gpus() -> BlocksOnGpus:
    """Return the blocks that this process keeps on GPUs."""
    return BlocksOnGpus()


def _moved(rows: Columns, device: str, share: float) -> Columns:
    """Return rows on a GPU, or as they are if they need more than half of its memory, or of a worker's share."""
    module = torch.get_device_module(device)
    try:
        free, total = module.mem_get_info(device)
    except (AttributeError, RuntimeError):  # of MPS, and of XPUs that cannot tell
        return rows
    used, size = module.memory_allocated(device), sum(part.nbytes for part in rows)
    free += module.memory_reserved(device) - used
    has_room = free - size >= total / 2 and used + size <= total * share / 2
    return tuple(part.to(device) for part in rows) if has_room else rows


def repeated_without_blocks(function: _Task) -> _Task:
    """Call a task again without blocks on the GPU if it has too little memory beside them."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError:
            if not blocks_on_gpus().clear():
                raise
        return function(*args, **kwargs)  # after the handler, whose error holds what fills the GPU

    return call  # type: ignore[return-value]


class FileSource(Source):
    """Files, read in order and ahead."""

    def __init__(self, part: FilePart, work: Work) -> None:
        self._loader = FileLoader(part, part.file_buffer)
        self._keys = part.keys or ()
        self._shuffle_seed = work.options.shuffle_seed
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
        with self._loader.open(row_ranges) as arrays:
            yield map(self._columns, block_passes, arrays)  # holds no reference while the next file is read

    def _columns(self, block_pass: BlockPass, arrays: Arrays | None) -> Columns | None:
        if arrays is None:
            self._left_out += block_pass.size
            return None
        return tuple(as_tensor(signed(arrays[key])) for key in self._keys)

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
        return {"files": dict(vars(self._loader.reads)), **skipped}
