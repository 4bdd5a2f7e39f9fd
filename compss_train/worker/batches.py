"""The batches of a worker: block by block, in a partial shuffle, or from a buffer (module ``buffered``)."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, rebuilt
from compss_train.data.block import Block, gather
from compss_train.data.block_passes import BlockPass, Place, batch_sizes
from compss_train.data.order import Batching, bucketed_order, partial_shuffle_generator, row_order
from compss_train.data.sample_reading import SampleReader
from compss_train.data.streams import StreamReader
from compss_train.model.devices import pieces, to_device
from compss_train.samplers.mixing import SlotStore, shuffled_batches
from compss_train.samplers.pools import Pools
from compss_train.worker.buffered import CarriedBuffer, buffered_batches
from compss_train.worker.source import (
    Columns,
    PlacedColumns,
    Source,
    columns_of,
    training_order,
)
from compss_train.worker.work import Work

Piece: TypeAlias = tuple[Block, ...]
"""Rows of a block of x, with the same rows of y and of the weights."""


class Batch(NamedTuple):
    """The samples of one training or evaluation step."""

    x: Any
    """A tensor, or tuples, lists and dicts of tensors."""
    y: Any = None
    weight: torch.Tensor | None = None
    """One number a sample."""
    samples_before: int | None = None
    """Number of samples that the transform got; ``None`` before the transform, and without one."""

    @property
    def samples(self) -> int:
        """Number of samples, whatever the transform has made of them."""
        return number_of(self.x) if self.samples_before is None else self.samples_before

    def to(self, device: str) -> Self:
        """Return the batch on a device."""
        moved = to_device(leaves(self.parts), device)
        return self._replace(**rebuilt(self.parts, moved))

    @property
    def parts(self) -> dict[str, Any]:
        """Return what holds tensors, by the names of the fields."""
        parts = {"x": self.x, "y": self.y, "weight": self.weight}
        return {name: part for name, part in parts.items() if part is not None}


def number_of(x: Any) -> int:
    """Return the number of samples of x."""
    return len(x) if isinstance(x, torch.Tensor) else len(leaves(x)[0])


PlacedBatch: TypeAlias = tuple[Place, Batch]


def split_rows(
    blocks: Sequence[Any], starts: Sequence[int], rows: NDArray[Any], bounds: NDArray[Any]
) -> tuple[Piece, ...] | Piece:
    """Return pieces of consecutive blocks, whose rows begin at ``bounds``; a task of a total shuffle.

    ``blocks`` are those of x, which begin at ``starts``, then those of y and of the weights; or tuples of all.
    Returns a tuple of pieces, or the piece itself if there is only one.
    """
    gathered = [gather(rows, starts, column) for column in columns_of(blocks, len(starts))]
    pieces = tuple(tuple(column[start:stop] for column in gathered) for start, stop in pairwise(bounds.tolist()))
    return pieces if len(pieces) > 1 else pieces[0]


def placed_batches(
    work: Work,
    source: Source,
    device: str,
    buffer: CarriedBuffer | None = None,
    samples: SampleReader | None = None,
) -> Iterator[PlacedBatch]:
    """Iterate over the batches of a worker, each with its place.

    ``buffer`` is that of a worker whose epoch has several rounds, ``samples`` reads samples by their numbers.
    """
    if isinstance(samples, StreamReader) and not samples.counted:
        yield from _until_the_end(work, source, samples)
        return
    for place, columns in _columns(work, source, device, buffer or CarriedBuffer()):
        yield place, Batch(*work.reading.structure.parts(columns))


def batches_in_epoch(work: Work, epoch: int) -> int:
    """Return the planned number of batches of an epoch of a worker."""
    if work.draws is not None:
        return len(work.draws.sizes)
    block_passes = tuple(block_pass for block_pass in work.block_passes if block_pass.epoch == epoch)
    reading = work.reading
    if reading.pools is not None or reading.buffer is not None:
        return len(batch_sizes(block_passes, reading.batching))
    return sum(len(batch_bounds(block_pass, reading.batching)) for block_pass in block_passes)


def _columns(work: Work, source: Source, device: str, buffer: CarriedBuffer) -> Iterator[PlacedColumns]:
    reading = work.reading
    if reading.pools is not None:
        return _partially_shuffled(work, reading.pools, source, device)
    if reading.buffer is not None:
        return buffered_batches(work, reading.buffer, source, device, buffer)
    return _block_by_block(work, source, device)


def _block_by_block(work: Work, source: Source, device: str) -> Iterator[PlacedColumns]:
    with source.rows(work.block_passes) as columns_of_passes:
        for block_pass in work.block_passes:
            rows = next(columns_of_passes)
            if rows is not None:
                before = block_pass.first + block_pass.skip
                for start, batch in _cut(block_pass, work, rows, device):
                    yield Place(block_pass.epoch, block_pass.block, before + start), batch
            del rows  # before the next one is read


def _until_the_end(work: Work, source: Source, stream: StreamReader) -> Iterator[PlacedBatch]:
    """Iterate over batches of a stream's numbers as long as it has samples."""
    with source.rows(work.block_passes) as columns_of_passes:
        for block_pass, (number,) in zip(work.block_passes, filter(None, columns_of_passes), strict=True):
            batch = Batch(number.expand(work.reading.batching.size or 1).contiguous())
            position = 0
            while not (position and stream.has_ended(int(number), block_pass.epoch)):
                yield Place(block_pass.epoch, block_pass.block, position), batch
                position += batch.samples


def _cut(block_pass: BlockPass, work: Work, rows: Columns, device: str) -> Iterator[tuple[int, Columns]]:
    """Iterate over the batches of a pass, each with the number of its first sample."""
    bucketed = work.reading.structure.bucketed
    numbers = (
        _by_length(block_pass, work, rows) if bucketed else training_order(block_pass, work.reading.shuffle_seed)
    )
    order = None if numbers is None else torch.from_numpy(numbers)
    for piece in pieces(batch_bounds(block_pass, work.reading.batching), rows, device):
        (first, _), (_, stop) = piece[0], piece[-1]
        moved = to_device(_in_order(rows, order, first, stop), device)
        if len(piece) == 1:
            yield first, moved
        else:
            for start, end in piece:
                yield start, tuple(own_rows(part, start - first, end - first) for part in moved)


def _by_length(block_pass: BlockPass, work: Work, rows: Columns) -> NDArray[Any]:
    """Return the order of a pass with samples of similar lengths in each batch."""
    whole = replace(block_pass, skip=0, size=block_pass.whole, rest=0)
    order = row_order(work.reading.seed, block_pass.epoch, block_pass.block, block_pass.whole)
    lengths = next(column.lengths for column in rows if hasattr(column, "lengths"))  # of Ragged
    bounds, place = batch_bounds(whole, work.reading.batching), (block_pass.epoch, block_pass.block)
    ordered = bucketed_order(order, lengths.numpy(), bounds, work.reading.seed, *place)
    return ordered[block_pass.skip : block_pass.skip + block_pass.size]


def _in_order(rows: Columns, order: torch.Tensor | None, start: int, stop: int) -> Columns:
    if order is None:
        return tuple(own_rows(part, start, stop) for part in rows)
    return tuple(part.index_select(0, order[start:stop]) for part in rows)


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
    source: Source, block_passes: Sequence[BlockPass], numbers: Sequence[int]
) -> AbstractContextManager[Iterator[Any]]:
    return source.rows([block_passes[number] for number in numbers])


def _partially_shuffled(work: Work, pools: Pools, source: Source, device: str) -> Iterator[PlacedColumns]:
    """Mix the samples of each epoch; the pools are empty at its end, and where a round ends inside it."""
    store = SlotStore()
    for epoch, group in groupby(work.block_passes, lambda block_pass: block_pass.epoch):
        block_passes = tuple(group)
        first = block_passes[0]
        position = first.first + first.skip
        batches = shuffled_batches(
            [block_pass.size for block_pass in block_passes],
            partial(_rows_of, source, block_passes),
            pools=pools,
            random=partial_shuffle_generator(work.reading.seed, epoch, first.block, first.first),
            batch_sizes=batch_sizes(block_passes, work.reading.batching),
            store=store,
        )
        for batch in batches:
            if batch is not None:
                yield Place(epoch, first.block, position), to_device(batch, device)
                position += len(batch[0])
