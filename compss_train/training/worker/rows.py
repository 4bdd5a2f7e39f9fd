"""Rows of blocks: some of one block's, or of a visit's, which may lie in many blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.data.block import Block, as_tensor, rows_of_bytes
from compss_train.data.order import row_order
from compss_train.data.partitioning import BlockPass
from compss_train.training.worker.shard import Shard


def take(block: Block, rows: NDArray[Any]) -> Block:
    """Return a copy of some rows."""
    if isinstance(block, torch.Tensor):
        return block.index_select(0, torch.from_numpy(rows))  # a third of the time of indexing
    taken: NDArray[Any] = block[rows]
    return taken


def gather(samples: NDArray[Any], starts: Sequence[int], blocks: Sequence[Block]) -> torch.Tensor:
    """Collect samples by number from consecutive blocks that begin at ``starts``.

    They are copied as rows of bytes, block by block in ascending order, and put in place at the end: many small
    indexing operations of torch cost far more.
    """
    order = np.argsort(samples, kind="stable")
    ordered = samples[order]
    cuts = np.searchsorted(ordered, [*starts, starts[-1] + len(blocks[-1])]).tolist()
    gathered = np.empty((len(samples), rows_of_bytes(blocks[0]).shape[1]), np.uint8)
    for block, start, (low, high) in zip(blocks, starts, pairwise(cuts), strict=True):
        if low < high:
            rows = rows_of_bytes(block)
            np.take(rows, ordered[low:high] - start, axis=0, out=gathered[low:high], mode="clip")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    raw = torch.from_numpy(gathered).index_select(0, torch.from_numpy(places))
    first = as_tensor(blocks[0][:1])
    return raw.view(first.dtype).view(len(samples), *first.shape[1:])


class BlockPassRows:
    """The samples of one visit, all columns of them, to be copied some at a time in training order."""

    def __init__(self, block_pass: BlockPass, shard: Shard, sources: Sequence[Sequence[Block]]) -> None:
        self._samples = block_pass.samples
        self._starts = shard.starts
        self._sources = sources
        self._place = shard.blocks.index(block_pass.block) if block_pass.samples is None else 0
        self._order = None
        if block_pass.samples is None and shard.shuffle_seed is not None:
            self._order = row_order(shard.shuffle_seed, block_pass.epoch, block_pass.block, block_pass.size)

    @property
    def bytes_per_sample(self) -> int:
        """Size of a sample, all columns together."""
        return sum(int(rows_of_bytes(blocks[0][:1]).shape[1]) for blocks in self._sources)

    def load(self, start: int, stop: int) -> tuple[torch.Tensor, ...]:
        """Return samples ``start`` to ``stop`` of the visit, from each source."""
        return tuple(self._from(blocks, start, stop) for blocks in self._sources)

    def _from(self, blocks: Sequence[Block], start: int, stop: int) -> torch.Tensor:
        if self._samples is not None:
            return gather(self._samples[start:stop], self._starts, blocks)
        block = blocks[self._place]
        if self._order is None:
            return as_tensor(block[start:stop]).clone()
        return as_tensor(take(block, self._order[start:stop]))
