"""Batches through a buffer: the samples of a shard are put into it in chunks, and batches are drawn from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice

from compss_train.buffers import Buffer, BufferDrainedError, BufferSpec
from compss_train.buffers.reading_ahead import batches_through
from compss_train.data.order import Batching, buffer_seed
from compss_train.data.partitioning import WorkerAssignment
from compss_train.training.worker.shard import Shard
from compss_train.training.worker.source import Columns, Source

_BURST = 8  # batches made at a time


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


def batch_sizes(block_passes: WorkerAssignment, batching: Batching) -> list[int]:
    """Return the sizes of the batches that hold every sample of these passes once.

    Sizes differ by one at most. If the number of batches a block is fixed, there are as many as block by block.
    """
    samples = sum(block_pass.size for block_pass in block_passes)
    together = (
        batching if batching.number is None else replace(batching, number=batching.number * len(block_passes))
    )
    return [stop - start for start, stop in together.bounds(samples)]


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
