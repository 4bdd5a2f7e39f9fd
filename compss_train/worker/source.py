"""``Source``: where the samples of a task are, in blocks or files, and in which order.

Nothing else knows of rows: a ``Source`` opens passes, and ``PassSamples`` cuts the batches of one,
whether it holds the rows of the whole block or of a part, on the CPU or, from task to task, on a
GPU (``RowsOnGpus``).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.buffers.reading_ahead import ReadAhead
from compss_train.data.block import Block, as_tensor
from compss_train.data.block_bytes import gather, rows_of_bytes
from compss_train.data.block_passes import BlockPass, WorkerAssignment
from compss_train.data.order import RowRange, bucketed_order, row_order
from compss_train.data.ragged import Ragged
from compss_train.data.reading import FilePart
from compss_train.model.devices import CPU, is_gpu, to_device
from compss_train.samplers.loader import NO_ROWS, FileLoader, FileRows
from compss_train.samplers.mixing import Chunk
from compss_train.worker.gpu_rows import Columns, rows_on_gpus
from compss_train.worker.work import Job, Work

Piece: TypeAlias = tuple[Block, ...]
"""Rows of a block of x, with the same rows of y and of the weights."""

_Task = TypeVar("_Task", bound=Callable[..., Any])

# Bytes read at a time: large enough to make the hand-over to another thread negligible.
_FILE_CHUNK = 2**22
# Bytes copied at a time: small enough to stay in the core's cache until they are put.
_MEMORY_CHUNK = 2**18


def rows_of(block_pass: BlockPass, job: Job) -> RowRange:
    """Return the rows that a pass needs: of the whole pass for a part of a shuffled one."""
    if job.row_seed is not None:
        return _rows_of_whole(block_pass)
    return RowRange(block_pass.block, block_pass.start, block_pass.start + block_pass.size)


def _rows_of_whole(block_pass: BlockPass) -> RowRange:
    """Return the rows of the pass that this one is a part of, or of the pass itself."""
    return RowRange(block_pass.block, block_pass.first, block_pass.first + block_pass.whole)


class PassSamples:
    """The samples of a pass in the order of training, to be cut into batches for a device.

    They are numbered from 0. ``held`` are the rows in ``columns``: at least those that the pass
    needs; ``None`` if these are the samples of the pass, in their order. ``unread`` are the places
    of rows in the columns whose values mean nothing. Raises ``ValueError`` if the columns lack
    rows.
    """

    def __init__(
        self,
        block_pass: BlockPass,
        job: Job,
        held: RowRange | None,
        columns: Sequence[Block],
        *,
        device: str = CPU,
        unread: NDArray[np.intp] = NO_ROWS,
    ) -> None:
        self._columns = columns
        self._size = block_pass.size
        self._device = device
        on_gpu = isinstance(columns[0], torch.Tensor) and is_gpu(columns[0].device.type)
        self._is_on_device = on_gpu or not is_gpu(device)
        """Whether the columns are on the device."""
        self._first = 0
        """The place of the first sample among the rows."""
        self._order: torch.Tensor | None = None
        """The places of all samples among the rows; ``None`` if they are in order."""
        self.missing: NDArray[np.intp] = NO_ROWS
        """The samples that could not be read, which batches leave out."""
        if held is None:
            return
        needed = rows_of(block_pass, job)
        if needed.file != held.file or not held.start <= needed.start <= needed.stop <= held.stop:
            raise ValueError(f"a pass over {needed} got {held}; this is a bug")
        self._first = needed.start - held.start
        if job.row_seed is not None:
            order = _training_order(block_pass, job, job.row_seed, columns, self._first)
        elif len(unread):
            order = np.arange(self._first, self._first + self._size)
        else:
            return
        self._order = torch.from_numpy(order)
        if len(unread):
            self.missing = np.flatnonzero(np.isin(order, unread))
        if on_gpu:
            (self._order,) = to_device([self._order], device)

    def cut(self, start: int, stop: int) -> Columns:
        """Return samples ``start`` to ``stop`` on the device, without those that are missing.

        They are copies, so that in-place operations of the network do not change the block. A copy
        also has the alignment of torch's own memory, wherever the block is; kernels may sum in
        another order for other alignments.
        """
        if self._order is None:
            rows = slice(self._first + start, self._first + stop)
            columns = tuple([as_tensor(column[rows]).clone() for column in self._columns])
        else:
            places = self._order[start:stop]
            if len(self.missing):
                present = np.setdiff1d(np.arange(start, stop), self.missing, assume_unique=True)
                places = self._order[torch.from_numpy(present).to(self._order.device)]
            columns = tuple([_taken(column, places) for column in self._columns])
        return columns if self._is_on_device else to_device(columns, self._device)

    def all(self) -> Columns:
        """Return all samples that are not missing.

        Unless they are shuffled, they share the memory of the rows.
        """
        if self._order is not None or not self._is_on_device:
            return self.cut(0, self._size)
        return self.rows()

    def rows(self) -> Columns:
        """Return the rows of an unshuffled pass where they are, with those that are missing."""
        rows = slice(self._first, self._first + self._size)
        return tuple([as_tensor(column[rows]) for column in self._columns])


def _training_order(
    block_pass: BlockPass, job: Job, seed: int, columns: Sequence[Block], first: int
) -> NDArray[Any]:
    """Return the shuffled order of a pass as row numbers of ``columns``.

    The rows of the whole pass begin at ``first``.
    """
    place = (seed, block_pass.epoch, block_pass.block)
    whole = block_pass.whole
    if job.bucketed_by is None:
        order = row_order(*place, whole)
    else:
        lengths = _lengths(columns[job.bucketed_by])[first : first + whole]
        order = bucketed_order(lengths, job.batching.bounds(whole), *place)
    return order[block_pass.skip : block_pass.skip + block_pass.size] + first


def _lengths(column: Block) -> NDArray[Any]:
    if not isinstance(column, Ragged):
        raise ValueError(f"batches by the lengths of a {type(column).__name__}; this is a bug")
    lengths: NDArray[Any] = column.lengths.numpy()
    return lengths


def _taken(block: Block, rows: torch.Tensor) -> torch.Tensor:
    if isinstance(block, np.ndarray):
        return as_tensor(block[rows.numpy()])
    return as_tensor(block.index_select(0, rows))  # a third of the time of indexing


def _all(samples: PassSamples | None) -> Columns | None:
    return None if samples is None else samples.all()


def _chunk(samples: PassSamples | None) -> Chunk | None:
    return None if samples is None else (samples.rows(), samples.missing)


@dataclass(eq=False)
class Source(ABC):
    """Opens the passes of a task."""

    job: Job
    work: Work

    @abstractmethod
    def open(
        self, block_passes: WorkerAssignment, device: str = CPU
    ) -> AbstractContextManager[Iterator[PassSamples | None]]:
        """Return a context with an iterator over the samples of each pass.

        They are ``None`` for a file that is skipped. The consumer must release them before it takes
        the next.
        """

    @contextmanager
    def wholes(self, block_passes: WorkerAssignment) -> Iterator[Iterator[Columns | None]]:
        """Provide an iterator over all samples of each pass, on the CPU; see ``open``."""
        # A loop would hold samples while the next ones are read.
        with self.open(block_passes) as opened:
            yield map(_all, opened)

    @contextmanager
    def pieces(self, block_passes: WorkerAssignment) -> Iterator[Iterator[Chunk | None]]:
        """Provide an iterator over the rows of unshuffled passes, for pools; see ``open``."""
        with self.open(block_passes) as opened:
            yield map(_chunk, opened)

    @abstractmethod
    def chunks(self, block_passes: WorkerAssignment) -> AbstractContextManager[Iterable[Columns]]:
        """Return a context with an iterator over the samples of all passes, some at a time.

        They are on the CPU.
        """

    def measured(self) -> dict[str, Any]:
        """Return measurements of the reading, for the history."""
        return {}

    def _on_gpu(
        self, device: str, held: RowRange | None, columns: Sequence[Block]
    ) -> Columns | None:
        """Return columns on a GPU, or ``None``.

        If they are the rows ``held`` of a block, they stay there.
        """
        resident = self.job.resident
        dense = [column for column in columns if not isinstance(column, Ragged)]
        if resident is None or len(dense) < len(columns) or not is_gpu(device):
            return None
        return rows_on_gpus().moved(resident, device, held, dense)


def source_of(job: Job, work: Work, values: Sequence[Any]) -> Source:
    """Return the source of the batches of a worker: the values that its task received, or files."""
    if work.files is not None:
        return FileSource(job, work, work.files)
    return BlockSource(job, work, blocks_by_column(values, len(work.blocks)))


def blocks_by_column(values: Sequence[Any], number: int) -> list[Sequence[Block]]:
    """Return the blocks of x, of y and of the weights, if the data have them.

    ``values`` are ``number`` blocks of each column, column after column; or tuples of all columns.
    """
    if values and isinstance(values[0], tuple):
        return list(zip(*values, strict=True))
    return [values[start : start + number] for start in range(0, len(values), number or 1)]


def split_rows(
    blocks: Sequence[Any], starts: Sequence[int], rows: NDArray[Any], bounds: NDArray[Any]
) -> tuple[Piece, ...] | Piece:
    """Return pieces of consecutive blocks, whose rows begin at ``bounds``: for total shuffles.

    ``blocks`` are the blocks of x, which begin at ``starts``, then of y and of the weights; or
    tuples of all. Returns a tuple of pieces, or the piece itself if there is only one.
    """
    gathered = [gather(rows, starts, column) for column in blocks_by_column(blocks, len(starts))]
    pieces = tuple(
        tuple(column[start:stop] for column in gathered)
        for start, stop in pairwise(bounds.tolist())
    )
    return pieces if len(pieces) > 1 else pieces[0]


@dataclass(eq=False)
class BlockSource(Source):
    """Blocks of x, y and weights, in memory or in mapped files."""

    columns: Sequence[Sequence[Block]]

    @contextmanager
    def open(
        self, block_passes: WorkerAssignment, device: str = CPU
    ) -> Iterator[Iterator[PassSamples]]:
        """Provide the samples; rows of blocks in memory are not copied.

        After the last pass of the last epoch the rows of the fit leave the GPU.
        """
        yield (self._open(block_pass, device) for block_pass in block_passes)
        resident = self.job.resident
        if resident is not None and is_gpu(device) and block_passes:
            last = block_passes[-1]
            if last.epoch == resident.last_epoch and not last.remaining:
                rows_on_gpus().release(resident.fit)

    def _open(self, block_pass: BlockPass, device: str) -> PassSamples:
        if block_pass.sample_numbers is not None:
            gathered = self._gathered(block_pass.sample_numbers)
            columns = self._on_gpu(device, None, gathered) or gathered
            return PassSamples(block_pass, self.job, None, columns, device=device)
        if is_gpu(device):
            whole = _rows_of_whole(block_pass)
            resident = self._on_gpu(device, whole, self._stored(whole))
            if resident is not None:
                return PassSamples(block_pass, self.job, whole, resident, device=device)
        needed = rows_of(block_pass, self.job)
        rows = [*map(as_tensor, self._stored(needed))]
        return PassSamples(block_pass, self.job, needed, rows, device=device)

    def _stored(self, rows: RowRange) -> Piece:
        """Return rows of a block where they are."""
        index = self.work.blocks.index(rows.file)
        return tuple([blocks[index][rows.start : rows.stop] for blocks in self.columns])

    def _gathered(self, samples: NDArray[Any]) -> Columns:
        """Return copies of samples, by number."""
        return tuple([gather(samples, self.work.starts, blocks) for blocks in self.columns])

    @contextmanager
    def chunks(self, block_passes: WorkerAssignment) -> Iterator[Iterable[Columns]]:
        """Provide copies of the samples in chunks, made ahead in a thread if blocks are files.

        Copying rows that are in memory ahead of time would gain nothing and cost a tenth of the
        training of a small network: copies move from core to core, and threads take turns.
        """
        on_file = any(isinstance(block, np.memmap) for blocks in self.columns for block in blocks)
        sample_bytes = sum(int(rows_of_bytes(blocks[0][:1]).shape[1]) for blocks in self.columns)
        step = max(1, (_FILE_CHUNK if on_file else _MEMORY_CHUNK) // max(1, sample_bytes))
        copies = self._copies(block_passes, step)
        if on_file:
            with ReadAhead(copies, lambda copy: copy()) as chunks:
                yield chunks
        else:
            yield (copy() for copy in copies)

    def _copies(self, block_passes: WorkerAssignment, step: int) -> Iterator[Callable[[], Columns]]:
        """Iterate over functions that each copy the next ``step`` samples."""
        for block_pass in block_passes:
            numbers = block_pass.sample_numbers
            bounds = [*range(0, block_pass.size, step), block_pass.size]
            if numbers is None:
                needed = rows_of(block_pass, self.job)
                samples = PassSamples(block_pass, self.job, needed, self._stored(needed))
                for start, stop in pairwise(bounds):
                    yield partial(samples.cut, start, stop)
            else:
                for start, stop in pairwise(bounds):
                    yield partial(self._gathered, numbers[start:stop])


class FileSource(Source):
    """Files, read in order and ahead."""

    def __init__(self, job: Job, work: Work, part: FilePart) -> None:
        super().__init__(job, work)
        self._loader = FileLoader(part, part.file_buffer)
        self._keys = part.keys or ()
        self._unread_samples = 0
        """Number of samples in skipped files and rows."""

    @contextmanager
    def open(
        self, block_passes: WorkerAssignment, device: str = CPU
    ) -> Iterator[Iterator[PassSamples | None]]:
        """Provide the samples, file by file."""
        row_ranges = [rows_of(block_pass, self.job) for block_pass in block_passes]
        opened = partial(self._open, device)
        with self._loader.open(row_ranges) as rows:
            # A map holds no reference while the next file is read.
            yield map(opened, block_passes, row_ranges, rows)

    def _open(
        self, device: str, block_pass: BlockPass, row_range: RowRange, rows: FileRows | None
    ) -> PassSamples | None:
        if rows is None:
            self._unread_samples += block_pass.size
            return None
        columns = tuple([as_tensor(rows.arrays[key]) for key in self._keys])
        columns = self._on_gpu(device, None, columns) or columns
        samples = PassSamples(
            block_pass, self.job, row_range, columns, device=device, unread=rows.missing
        )
        self._unread_samples += len(samples.missing)
        return samples

    @contextmanager
    def chunks(self, block_passes: WorkerAssignment) -> Iterator[Iterable[Columns]]:
        """Provide the samples file by file."""
        with self.wholes(block_passes) as columns_of_files:
            yield filter(None, columns_of_files)

    def measured(self) -> dict[str, Any]:
        """Return the counts of reads, and the files and samples that were skipped."""
        return {
            "files": dict(vars(self._loader.reads)),
            "skipped": self._loader.skipped,
            "unread_samples": self._unread_samples,
        }


def retry_without_gpu_rows(function: _Task) -> _Task:
    """Call a task again, without rows that stay on the GPU, if it lacks memory beside them."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError:
            if not rows_on_gpus().make_room():
                raise
        return function(*args, **kwargs)  # after the handler, whose error holds what fills the GPU

    return call  # type: ignore[return-value]
