"""Batches by way of a buffer: the shard is put into it in chunks, and batches mix what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, islice
from typing import TypeAlias

import numpy as np
import torch

from compss_train.buffers import Buffer, BufferSpec
from compss_train.data.batches import Batching
from compss_train.data.block import Block
from compss_train.data.order import buffer_seed
from compss_train.data.schedule import Share
from compss_train.pipeline import ReadAhead, through
from compss_train.worker.rows import VisitRows
from compss_train.worker.shard import Shard

_FILE_CHUNK = 2**22  # bytes read at a time: large enough that handing them to another thread costs nothing
_MEMORY_CHUNK = 2**18  # bytes copied at a time: small enough to be still in the core's cache when they are put
_BURST = 8  # batches made at a time

Chunk: TypeAlias = "tuple[torch.Tensor, ...]"
"""Rows of x, and of y where there is one."""


def buffered_batches(
    shard: Shard, spec: BufferSpec, sources: Sequence[Sequence[Block]], device: str
) -> Iterator[Chunk]:
    """Iterate over the batches of a shard: rows of each source (the blocks of x, and of y), on the device.

    The buffer is drained at the end of every epoch, so that merging every so many epochs changes nothing of what
    a worker sees.
    """
    for _, visits in groupby(shard.share, lambda visit: visit.epoch):
        for batch in _epoch_batches(tuple(visits), shard, spec, sources, device):
            yield tuple(part.to(device, non_blocking=True) for part in batch)


def _epoch_batches(
    visits: Share, shard: Shard, spec: BufferSpec, sources: Sequence[Sequence[Block]], device: str
) -> Iterator[Chunk]:
    sizes = batch_sizes(visits, shard.batching)
    seed = buffer_seed(shard.buffer_seed, visits[0].epoch, visits[0].block)
    buffer = spec.limited(sum(sizes), max(sizes)).make(max(sizes), seed, pin_memory=device.startswith("cuda"))
    with _chunks(visits, shard, sources) as chunks:
        if spec.gives_each_once:
            yield from in_bursts(in_step(buffer, chunks, sizes, spec.needed))
        else:
            yield from through(buffer, chunks, max(sizes))


def batch_sizes(visits: Share, batching: Batching) -> list[int]:
    """Return the sizes of the batches in which all samples of these visits are trained once.

    They differ by one at most. There are as many as there would be block by block where their number is set.
    """
    samples = sum(visit.size for visit in visits)
    together = batching if batching.number is None else replace(batching, number=batching.number * len(visits))
    return [stop - start for start, stop in together.bounds(samples)]


@contextmanager
def _chunks(visits: Share, shard: Shard, sources: Sequence[Sequence[Block]]) -> Iterator[Iterable[Chunk]]:
    """Give the rows of the visits in chunks, read ahead in a thread where blocks are on file.

    To copy rows that are in memory ahead of time would gain nothing, and cost a tenth of the training of a small
    network: copies go from core to core, and threads take turns.
    """
    if any(isinstance(block, np.memmap) for blocks in sources for block in blocks):
        with ReadAhead(_reads(visits, shard, sources, _FILE_CHUNK), _load) as chunks:
            yield chunks
    else:
        yield map(_load, _reads(visits, shard, sources, _MEMORY_CHUNK))


def _load(read: tuple[VisitRows, int, int]) -> Chunk:
    rows, start, stop = read
    return rows.load(start, stop)


def _reads(
    visits: Share, shard: Shard, sources: Sequence[Sequence[Block]], chunk_bytes: int
) -> Iterator[tuple[VisitRows, int, int]]:
    """Iterate over what to read, in training order."""
    for visit in visits:
        rows = VisitRows(visit, shard, sources)
        step = max(1, chunk_bytes // max(1, rows.bytes_per_sample))
        for start in range(0, visit.size, step):
            yield rows, start, min(start + step, visit.size)


def in_step(buffer: Buffer, chunks: Iterable[Chunk], sizes: Sequence[int], threshold: int) -> Iterator[Chunk]:
    """Iterate over batches of these sizes, putting samples in between, by numbers and not by time.

    The first batch is drawn as soon as the threshold allows; then two samples are put for each one got until the
    buffer is full, and from then on one for one. What is held at a draw, and so the draw, is the same every time.
    """
    rows, total, put, got = _Rows(chunks), sum(sizes), 0, 0
    for size in sizes:
        wanted = put + 2 * size if got else threshold + size
        for chunk in rows.take(min(total, got + buffer.capacity, wanted) - put):
            buffer.put_many(chunk, block=False)
            put += len(chunk[0])
        if put == total:
            buffer.signal_reception_over()
        yield buffer.get_batch(size, block=False)
        got += size


def in_bursts(batches: Iterator[Chunk]) -> Iterator[Chunk]:
    """Iterate over the batches, making a few at a time.

    Between two training steps the code and data of a buffer have left the core's caches: one by one, batches cost
    three times as much.
    """
    while burst := list(islice(batches, _BURST)):
        yield from burst


class _Rows:
    """Chunks cut to measure."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._chunks = iter(chunks)
        self._rest: Chunk = ()

    def take(self, number: int) -> Iterator[Chunk]:
        """Iterate over the next samples, in pieces of chunks."""
        while number:
            if not self._rest or not len(self._rest[0]):
                self._rest = next(self._chunks)
            taken = tuple(part[:number] for part in self._rest)
            self._rest = tuple(part[number:] for part in self._rest)
            number -= len(taken[0])
            yield taken
