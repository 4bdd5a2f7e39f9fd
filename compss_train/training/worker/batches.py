"""The batches of a shard: block by block, through a buffer, or in a partial shuffle."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import torch
from numpy.typing import NDArray

from compss_train.buffers import Buffer, BufferDrainedError, BufferSpec
from compss_train.buffers.reading_ahead import batches_through
from compss_train.data.block import Block
from compss_train.data.order import Batching, buffer_seed, partial_shuffle_generator
from compss_train.data.partitioning import BlockPass, WorkerAssignment, batch_sizes
from compss_train.samplers.mixing import SlotStore, shuffled_batches
from compss_train.samplers.pools import Pools
from compss_train.training.worker.source import Columns, Shard, Source, take, training_order

_BURST = 8  # batches made at a time

Piece: TypeAlias = tuple[Block, ...]
"""Rows of a block of x, with the same rows of y and of the weights."""
EpochColumns: TypeAlias = tuple[int, Columns]
"""The number of an epoch, and the columns of a batch in it."""


class Batch(NamedTuple):
    """The samples of one training or evaluation step."""

    x: torch.Tensor
    y: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    """One number a sample."""


def split_rows(columns: Sequence[Block], parts: Sequence[NDArray[Any]]) -> tuple[Piece, ...] | Piece:
    """Return a piece of a block for each array of row numbers; the task of a total shuffle of unmapped blocks.

    ``columns`` are the block of x and the matching blocks of y and weights. Returns a tuple of pieces, or the piece
    itself if there is only one.
    """
    pieces = tuple(tuple(take(block, part) for block in columns) for part in parts)
    return pieces if len(pieces) > 1 else pieces[0]


def batches(shard: Shard, source: Source, device: str) -> Iterator[Batch]:
    """Iterate over the batches of a shard, on the device, in training order."""
    for _, epoch_batches in epochs(shard, source, device):
        yield from epoch_batches


def epochs(shard: Shard, source: Source, device: str) -> Iterator[tuple[int, Iterator[Batch]]]:
    """Iterate over the epochs of a shard: pairs of an epoch's number and an iterator over its batches."""
    for epoch, group in groupby(_columns(shard, source, device), itemgetter(0)):
        yield epoch, (_batch(columns, weighted=shard.weighted) for _, columns in group)


def batches_in_epoch(shard: Shard, epoch: int) -> int:
    """Return the planned number of batches of an epoch of a shard."""
    block_passes = tuple(block_pass for block_pass in shard.assignment if block_pass.epoch == epoch)
    options = shard.options
    if options.partial_shuffle is not None or options.buffer is not None:
        return len(batch_sizes(block_passes, options.batching))
    return sum(len(batch_bounds(block_pass, options.batching)) for block_pass in block_passes)


def _batch(columns: Columns, *, weighted: bool) -> Batch:
    x, *others = columns
    weight = others.pop() if weighted else None
    return Batch(x, others[0] if others else None, weight)


def _columns(shard: Shard, source: Source, device: str) -> Iterator[EpochColumns]:
    options = shard.options
    if options.partial_shuffle is not None:
        return _partially_shuffled(shard, options.partial_shuffle, source, device)
    if options.buffer is not None:
        return buffered_batches(shard, options.buffer, source, device)
    return _block_by_block(shard, source, device)


def _block_by_block(shard: Shard, source: Source, device: str) -> Iterator[EpochColumns]:
    with source.rows(shard.assignment) as columns_of_passes:
        for block_pass in shard.assignment:
            rows = next(columns_of_passes)
            if rows is not None:
                uses_all = block_pass.size == block_pass.whole
                for batch in _cut(block_pass, shard, _moved(rows, device if uses_all else "cpu")):
                    yield block_pass.epoch, _moved(batch, device)
            del rows  # before the next one is read


def _moved(columns: Columns, device: str) -> Columns:
    return tuple(part.to(device) for part in columns)


def _cut(block_pass: BlockPass, shard: Shard, rows: Columns) -> Iterator[Columns]:
    bounds = batch_bounds(block_pass, shard.options.batching)
    numbers = training_order(block_pass, shard.shuffle_seed)
    if numbers is None:
        for start, stop in bounds:
            yield tuple(own_rows(part, start, stop) for part in rows)
        return
    order = torch.from_numpy(numbers).to(rows[0].device)
    for start, stop in bounds:
        yield tuple(part.index_select(0, order[start:stop]) for part in rows)


def batch_bounds(block_pass: BlockPass, batching: Batching) -> list[tuple[int, int]]:
    """Return (start, stop) of each batch of a pass, or of a part that consists of whole batches."""
    bounds = [
        (start - block_pass.skip, stop - block_pass.skip) for start, stop in batching.bounds(block_pass.whole)
    ]
    return [(start, stop) for start, stop in bounds if 0 <= start < block_pass.size]


def own_rows(samples: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return a copy of some rows, so that in-place operations of the network do not change the block.

    A copy also has the alignment of torch's own memory, wherever the bytes of the block are; kernels may sum in
    another order for other alignments.
    """
    return samples[start:stop].clone()


def _rows_of(
    source: Source, block_passes: WorkerAssignment, numbers: Sequence[int]
) -> AbstractContextManager[Iterator[Any]]:
    return source.rows([block_passes[number] for number in numbers])


def _partially_shuffled(shard: Shard, pools: Pools, source: Source, device: str) -> Iterator[EpochColumns]:
    """Mix the samples of each epoch; the pools are empty at its end, and where a round ends inside it."""
    store = SlotStore()
    for epoch, group in groupby(shard.assignment, lambda block_pass: block_pass.epoch):
        block_passes = tuple(group)
        batches = shuffled_batches(
            [block_pass.size for block_pass in block_passes],
            partial(_rows_of, source, block_passes),
            pools=pools,
            random=partial_shuffle_generator(shard.seed, epoch, block_passes[0].block, block_passes[0].first),
            batch_sizes=batch_sizes(block_passes, shard.options.batching),
            store=store,
        )
        for batch in batches:
            if batch is not None:
                yield epoch, tuple(part.to(device) for part in batch)


def buffered_batches(shard: Shard, spec: BufferSpec, source: Source, device: str) -> Iterator[tuple[int, Columns]]:
    """Iterate over the batches of a shard, on the device, each with the number of its epoch.

    The buffer is drained at the end of every epoch, so that the number of epochs between merges does not change the
    batches of a worker.
    """
    for epoch, block_passes in groupby(shard.assignment, lambda block_pass: block_pass.epoch):
        for batch in _epoch_batches(tuple(block_passes), shard, spec, source, device):
            yield epoch, tuple(part.to(device, non_blocking=True) for part in batch)


def _epoch_batches(
    block_passes: WorkerAssignment, shard: Shard, spec: BufferSpec, source: Source, device: str
) -> Iterator[Columns]:
    sizes = batch_sizes(block_passes, shard.options.batching)
    seed = buffer_seed(shard.seed, block_passes[0].epoch, block_passes[0].block)
    buffer = spec.limited(sum(sizes), max(sizes)).make(max(sizes), seed, pin_memory=device.startswith("cuda"))
    with source.chunks(block_passes) as chunks:
        if spec.gives_each_once:
            yield from in_bursts(draw_in_step(buffer, chunks, sizes, spec.needed))
        else:
            yield from batches_through(buffer, chunks, max(sizes))


def draw_in_step(
    buffer: Buffer, chunks: Iterable[Columns], sizes: Sequence[int], threshold: int
) -> Iterator[Columns]:
    """Iterate over batches of these sizes, putting samples into the buffer by counts and not by time.

    The first batch is drawn as soon as the threshold is reached; then two samples are put for each one drawn until
    the buffer is full, and one for one from then on. The buffer's content at a draw, and so the draw, is
    reproducible.
    """
    rows, total, put, got = _Rows(chunks), sum(sizes), 0, 0
    for size in sizes:
        wanted = put + 2 * size if got else threshold + size
        for chunk in rows.take(min(total, got + buffer.capacity, wanted) - put):
            buffer.put_many(chunk, block=False)
            put += len(chunk[0])
        if put == total or rows.ended:
            buffer.signal_reception_over()
        try:
            batch = buffer.get_batch(size, block=False)
        except BufferDrainedError:  # the missing samples were in files that were skipped
            return
        yield batch
        got += size


def in_bursts(batches: Iterator[Columns]) -> Iterator[Columns]:
    """Iterate over the batches, drawing a few at a time.

    Between two training steps the code and data of a buffer leave the core's caches: drawn one by one, batches
    cost three times as much.
    """
    while burst := list(islice(batches, _BURST)):
        yield from burst


class _Rows:
    """Cuts chunks into pieces of the requested length."""

    def __init__(self, chunks: Iterable[Columns]) -> None:
        self._chunks = iter(chunks)
        self._rest: Columns = ()
        self.ended = False

    def take(self, number: int) -> Iterator[Columns]:
        """Iterate over the next ``number`` samples in pieces of chunks, or fewer at the end."""
        while number:
            if not self._rest or not len(self._rest[0]):
                self._rest = next(self._chunks, ())
            if not self._rest:
                self.ended = True
                return
            taken = tuple(part[:number] for part in self._rest)
            self._rest = tuple(part[number:] for part in self._rest)
            number -= len(taken[0])
            yield taken
