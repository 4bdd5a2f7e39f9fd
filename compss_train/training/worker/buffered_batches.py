"""Batches by way of a buffer: the shard is put into it in chunks, and batches mix what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice

from compss_train.buffers import Buffer, BufferDrainedError, BufferSpec
from compss_train.buffers.reading_ahead import through
from compss_train.data.order import Batching, buffer_seed
from compss_train.data.partitioning import WorkerAssignment
from compss_train.training.worker.shard import Shard
from compss_train.training.worker.source import Columns, Source

_BURST = 8  # batches made at a time


def buffered_batches(shard: Shard, spec: BufferSpec, source: Source, device: str) -> Iterator[tuple[int, Columns]]:
    """Iterate over the batches of a shard, on the device, each with its epoch.

    The buffer is drained at the end of every epoch, so that merging every so many epochs changes nothing of what
    a worker sees.
    """
    for epoch, block_passes in groupby(shard.share, lambda block_pass: block_pass.epoch):
        for batch in _epoch_batches(tuple(block_passes), shard, spec, source, device):
            yield epoch, tuple(part.to(device, non_blocking=True) for part in batch)


def _epoch_batches(
    block_passes: WorkerAssignment, shard: Shard, spec: BufferSpec, source: Source, device: str
) -> Iterator[Columns]:
    sizes = batch_sizes(block_passes, shard.batching)
    seed = buffer_seed(shard.seed, block_passes[0].epoch, block_passes[0].block)
    buffer = spec.limited(sum(sizes), max(sizes)).make(max(sizes), seed, pin_memory=device.startswith("cuda"))
    with source.chunks(block_passes) as chunks:
        if spec.gives_each_once:
            yield from in_bursts(in_step(buffer, chunks, sizes, spec.needed))
        else:
            yield from through(buffer, chunks, max(sizes))


def batch_sizes(block_passes: WorkerAssignment, batching: Batching) -> list[int]:
    """Return the sizes of the batches in which all samples of these visits are trained once.

    They differ by one at most. There are as many as there would be block by block where their number is set.
    """
    samples = sum(block_pass.size for block_pass in block_passes)
    together = (
        batching if batching.number is None else replace(batching, number=batching.number * len(block_passes))
    )
    return [stop - start for start, stop in together.bounds(samples)]


def in_step(buffer: Buffer, chunks: Iterable[Columns], sizes: Sequence[int], threshold: int) -> Iterator[Columns]:
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
        if put == total or rows.ended:
            buffer.signal_reception_over()
        try:
            batch = buffer.get_batch(size, block=False)
        except BufferDrainedError:  # files that were left out had what is missing
            return
        yield batch
        got += size


def in_bursts(batches: Iterator[Columns]) -> Iterator[Columns]:
    """Iterate over the batches, making a few at a time.

    Between two training steps the code and data of a buffer have left the core's caches: one by one, batches cost
    three times as much.
    """
    while burst := list(islice(batches, _BURST)):
        yield from burst


class _Rows:
    """Chunks cut to measure."""

    def __init__(self, chunks: Iterable[Columns]) -> None:
        self._chunks = iter(chunks)
        self._rest: Columns = ()
        self.ended = False

    def take(self, number: int) -> Iterator[Columns]:
        """Iterate over the next samples, in pieces of chunks, while there are any."""
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
