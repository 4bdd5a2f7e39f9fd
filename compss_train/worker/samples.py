"""A visit's samples as tensors: a block's own rows, or rows gathered from many blocks by a total shuffle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.data.batches import Batching
from compss_train.data.block import Block, as_tensor
from compss_train.data.order import row_order
from compss_train.data.schedule import Share, Visit

Batch = tuple[torch.Tensor, torch.Tensor | None]
Piece: TypeAlias = "tuple[Block, Block | None]"
"""Some rows of a block of x, and the same rows of y."""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """What one task trains on, besides the blocks themselves: visits and how each is cut and ordered."""

    share: Share
    blocks: tuple[int, ...]
    """The numbers of the blocks that the task is given, in that order."""
    starts: tuple[int, ...]
    """Number of the first sample of each of these blocks among all samples."""
    batching: Batching
    shuffle_seed: int | None
    """Seed that rows are shuffled by within a visit, ``None`` to keep their order."""
    new_optimizer: bool = False
    """Begin with a new optimizer instead of the one in the worker's state."""
    name: str = "training"
    """Which round and worker this is, for messages."""
    pieces: bool = False
    """Whether the task is given pieces of blocks, each with its rows of x and y, instead of blocks."""


def split_rows(x: Block, y: Block | None, parts: Sequence[NDArray[Any]]) -> tuple[Piece, ...] | Piece:
    """Return a piece of a block for each array of row numbers: the task of a total shuffle where data move.

    One piece comes as it is, several as a tuple.
    """
    pieces = tuple((_rows(x, part), None if y is None else _rows(y, part)) for part in parts)
    return pieces if len(pieces) > 1 else pieces[0]


def _rows(block: Block, rows: NDArray[Any]) -> Block:
    return block[torch.from_numpy(rows)] if isinstance(block, torch.Tensor) else block[rows]


def batches(shard: Shard, xs: Sequence[Block], ys: Sequence[Block] | None, device: str) -> Iterator[Batch]:
    """Iterate over the batches of a shard, on the device, in training order."""
    if shard.pieces:
        xs, ys = _unzipped(xs)
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
    return _gather(visit.samples, shard.starts, blocks)


def _gather(samples: NDArray[Any], starts: Sequence[int], blocks: Sequence[Block]) -> torch.Tensor:
    """Collect samples by number from consecutive blocks that begin at ``starts``.

    They are copied as rows of bytes, block by block in ascending order, and put in place at the end: many small
    indexing operations of torch cost far more.
    """
    order = np.argsort(samples, kind="stable")
    ordered = samples[order]
    cuts = np.searchsorted(ordered, [*starts, starts[-1] + len(blocks[-1])]).tolist()
    gathered = np.empty((len(samples), _rows_of_bytes(blocks[0]).shape[1]), np.uint8)
    for block, start, (low, high) in zip(blocks, starts, pairwise(cuts), strict=True):
        if low < high:
            rows = _rows_of_bytes(block)
            np.take(rows, ordered[low:high] - start, axis=0, out=gathered[low:high], mode="clip")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    raw = torch.from_numpy(gathered).index_select(0, torch.from_numpy(places))
    first = as_tensor(blocks[0][:1])
    return raw.view(first.dtype).view(len(samples), *first.shape[1:])


def _rows_of_bytes(block: Block) -> NDArray[np.uint8]:
    if isinstance(block, torch.Tensor):
        rows: NDArray[np.uint8] = block.reshape(len(block), -1).contiguous().view(torch.uint8).numpy()
        return rows
    return np.ascontiguousarray(block).reshape(len(block), -1).view(np.uint8)
