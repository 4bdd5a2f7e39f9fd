"""A visit's samples as tensors: a block's own rows, or rows gathered from many blocks by a total shuffle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from compss_train.data.batches import Batching
from compss_train.data.block import Block, as_tensor
from compss_train.data.order import row_order
from compss_train.data.schedule import Share, Visit

Batch = tuple[torch.Tensor, torch.Tensor | None]


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


def batches(shard: Shard, xs: Sequence[Block], ys: Sequence[Block] | None, device: str) -> Iterator[Batch]:
    """Iterate over the batches of a shard, on the device, in training order."""
    for visit in shard.share:
        x = _load(visit, shard, xs).to(device)
        y = _load(visit, shard, ys).to(device) if ys is not None else None
        yield from _cut(visit, shard, x, y)


def _cut(visit: Visit, shard: Shard, x: torch.Tensor, y: torch.Tensor | None) -> Iterator[Batch]:
    bounds = shard.batching.bounds(len(x))
    if shard.shuffle_seed is None or visit.samples is not None:
        for start, stop in bounds:
            yield x[start:stop], None if y is None else y[start:stop]
        return
    order = torch.from_numpy(row_order(shard.shuffle_seed, visit.epoch, visit.block, len(x))).to(x.device)
    for start, stop in bounds:
        rows = order[start:stop]
        yield x.index_select(0, rows), None if y is None else y.index_select(0, rows)


def _load(visit: Visit, shard: Shard, blocks: Sequence[Block]) -> torch.Tensor:
    if visit.samples is None:
        return as_tensor(blocks[shard.blocks.index(visit.block)])
    return _gather(torch.from_numpy(visit.samples).long(), shard.starts, blocks)


def _gather(samples: torch.Tensor, starts: Sequence[int], blocks: Sequence[Block]) -> torch.Tensor:
    """Collect samples by number from consecutive blocks that begin at ``starts``."""
    ordered, places = torch.sort(samples)
    first = blocks[0]
    out = torch.empty((len(samples), *first.shape[1:]), dtype=as_tensor(first[:0]).dtype)
    cuts = torch.searchsorted(ordered, torch.tensor([*starts, starts[-1] + len(blocks[-1])])).tolist()
    for block, start, (low, high) in zip(blocks, starts, pairwise(cuts), strict=True):
        if low < high:
            out[places[low:high]] = as_tensor(block)[ordered[low:high] - start]
    return out
