"""A shard's batches: visit by visit, through a buffer, or in a partial shuffle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import torch
from numpy.typing import NDArray

from compss_train.data.block import Block
from compss_train.data.order import partial_shuffle_generator, row_order
from compss_train.data.partitioning import BlockPass, WorkerAssignment
from compss_train.samplers.mixing import mixed
from compss_train.samplers.pools import Pools
from compss_train.samplers.slots import SlotStore
from compss_train.training.worker.buffered_batches import batch_sizes, buffered_batches
from compss_train.training.worker.rows import take
from compss_train.training.worker.shard import Shard
from compss_train.training.worker.source import Columns, Source

Piece: TypeAlias = "tuple[Block, ...]"
"""Some rows of a block of x, and the same rows of y and of weights."""
Dated: TypeAlias = "tuple[int, Columns]"
"""A batch with the epoch that it belongs to."""


class Batch(NamedTuple):
    """What one loss is computed of."""

    x: torch.Tensor
    y: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    """One number a sample."""


def split_rows(columns: Sequence[Block], parts: Sequence[NDArray[Any]]) -> tuple[Piece, ...] | Piece:
    """Return a piece of a block for each array of row numbers: the task of a total shuffle where data move.

    ``columns`` are the block of x, and those of y and weights that go with it. One piece comes as it is, several
    as a tuple.
    """
    pieces = tuple(tuple(take(block, part) for block in columns) for part in parts)
    return pieces if len(pieces) > 1 else pieces[0]


def batches(shard: Shard, source: Source, device: str) -> Iterator[Batch]:
    """Iterate over the batches of a shard, on the device, in training order."""
    for _, in_epoch in epochs(shard, source, device):
        yield from in_epoch


def epochs(shard: Shard, source: Source, device: str) -> Iterator[tuple[int, Iterator[Batch]]]:
    """Iterate over the epochs of a shard: the number of each, and its batches, to be gone through in turn."""
    for epoch, dated in groupby(_dated_columns(shard, source, device), itemgetter(0)):
        yield epoch, (_batch(columns, weighted=shard.weighted) for _, columns in dated)


def _batch(columns: Columns, *, weighted: bool) -> Batch:
    x, *others = columns
    weight = others.pop() if weighted else None
    return Batch(x, others[0] if others else None, weight)


def _dated_columns(shard: Shard, source: Source, device: str) -> Iterator[Dated]:
    if shard.pools is not None:
        return _partially_shuffled(shard, shard.pools, source, device)
    if shard.buffer is not None:
        return buffered_batches(shard, shard.buffer, source, device)
    return _visit_by_visit(shard, source, device)


def _visit_by_visit(shard: Shard, source: Source, device: str) -> Iterator[Dated]:
    with source.block_passes(shard.share) as block_passes:
        for block_pass in shard.share:
            rows = next(block_passes)
            if rows is not None:
                rows = tuple(part.to(device) for part in rows)
                yield from ((block_pass.epoch, batch) for batch in _cut(block_pass, shard, rows))
            del rows  # before the next one is read


def _cut(block_pass: BlockPass, shard: Shard, rows: Columns) -> Iterator[Columns]:
    bounds = shard.batching.bounds(block_pass.size)
    if shard.shuffle_seed is None or block_pass.samples is not None:
        for start, stop in bounds:
            yield tuple(own_rows(part, start, stop) for part in rows)
        return
    order = torch.from_numpy(row_order(shard.shuffle_seed, block_pass.epoch, block_pass.block, block_pass.size)).to(
        rows[0].device
    )
    for start, stop in bounds:
        yield tuple(part.index_select(0, order[start:stop]) for part in rows)


def own_rows(samples: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return some rows as a copy: what the network does to them in place must not reach the block.

    A copy also has the alignment of torch's own memory wherever the block's bytes came from; kernels may add up in
    another order for other alignments.
    """
    return samples[start:stop].clone()


def _visits(
    source: Source, block_passes: WorkerAssignment, numbers: Sequence[int]
) -> AbstractContextManager[Iterator[Any]]:
    return source.block_passes([block_passes[number] for number in numbers])


def _partially_shuffled(shard: Shard, pools: Pools, source: Source, device: str) -> Iterator[Dated]:
    """Mix the samples of each epoch's visits; the pools are empty at its end, and where a round ends in it."""
    store = SlotStore()
    for epoch, group in groupby(shard.share, lambda block_pass: block_pass.epoch):
        block_passes = tuple(group)
        batches = mixed(
            [block_pass.size for block_pass in block_passes],
            partial(_visits, source, block_passes),
            pools,
            partial_shuffle_generator(shard.seed, epoch, block_passes[0].block, block_passes[0].first),
            batch_sizes(block_passes, shard.batching),
            store=store,
        )
        for batch in batches:
            if batch is not None:
                yield epoch, tuple(part.to(device) for part in batch)
