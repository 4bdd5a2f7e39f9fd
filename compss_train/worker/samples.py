"""A visit's samples as tensors: a block's own rows, or rows gathered from many blocks by a total shuffle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray

from compss_train.data.block import Block, as_tensor
from compss_train.data.order import row_order
from compss_train.data.schedule import Visit
from compss_train.worker.loading import buffered_batches
from compss_train.worker.rows import gather, take
from compss_train.worker.shard import Shard

Batch: TypeAlias = "tuple[torch.Tensor, torch.Tensor | None]"
Piece: TypeAlias = "tuple[Block, Block | None]"
"""Some rows of a block of x, and the same rows of y."""


def split_rows(x: Block, y: Block | None, parts: Sequence[NDArray[Any]]) -> tuple[Piece, ...] | Piece:
    """Return a piece of a block for each array of row numbers: the task of a total shuffle where data move.

    One piece comes as it is, several as a tuple.
    """
    pieces = tuple((take(x, part), None if y is None else take(y, part)) for part in parts)
    return pieces if len(pieces) > 1 else pieces[0]


def batches(shard: Shard, xs: Sequence[Block], ys: Sequence[Block] | None, device: str) -> Iterator[Batch]:
    """Iterate over the batches of a shard, on the device, in training order."""
    if shard.pieces:
        xs, ys = _unzipped(xs)
    if shard.buffer is not None:
        for batch in buffered_batches(shard, shard.buffer, [xs] if ys is None else [xs, ys], device):
            yield batch[0], None if ys is None else batch[1]
        return
    for visit in shard.share:
        x = _load(visit, shard, xs).to(device)
        y = _load(visit, shard, ys).to(device) if ys is not None else None
        yield from _cut(visit, shard, x, y)


def _unzipped(pieces: Sequence[Any]) -> tuple[list[Block], list[Block] | None]:
    xs, ys = zip(*pieces, strict=True)
    return list(xs), None if ys[0] is None else list(ys)


def _cut(visit: Visit, shard: Shard, x: torch.Tensor, y: torch.Tensor | None) -> Iterator[Batch]:
    bounds = shard.batching.bounds(len(x))
    if shard.shuffle_seed is None or visit.samples is not None:
        for start, stop in bounds:
            yield own_rows(x, start, stop), None if y is None else own_rows(y, start, stop)
        return
    order = torch.from_numpy(row_order(shard.shuffle_seed, visit.epoch, visit.block, len(x))).to(x.device)
    for start, stop in bounds:
        rows = order[start:stop]
        yield x.index_select(0, rows), None if y is None else y.index_select(0, rows)


def own_rows(samples: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return some rows as a copy: what the network does to them in place must not reach the block.

    A copy also has the alignment of torch's own memory wherever the block's bytes came from; kernels may add up in
    another order for other alignments.
    """
    return samples[start:stop].clone()


def _load(visit: Visit, shard: Shard, blocks: Sequence[Block]) -> torch.Tensor:
    if visit.samples is None:
        return as_tensor(blocks[shard.blocks.index(visit.block)])
    return gather(visit.samples, shard.starts, blocks)
