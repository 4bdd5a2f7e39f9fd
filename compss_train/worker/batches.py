"""The batches of a worker: block by block, in a partial shuffle, or from a buffer.

A buffer is drawn from in step with the samples that are put, or from a reservoir by time.
"""

import queue
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, rebuilt
from compss_train.buffers import Buffer, BufferSpec
from compss_train.buffers.reading_ahead import batches_through
from compss_train.data.block_passes import BlockPass, Draws, Place, WorkerAssignment, batch_sizes
from compss_train.data.order import Batching, bucketed_order, buffer_seed, partial_shuffle_generator, row_order
from compss_train.data.sample_reading import SampleReader
from compss_train.data.streams import StreamReader
from compss_train.model.devices import is_gpu, pieces, to_device
from compss_train.samplers.mixing import SlotStore, shuffled_batches
from compss_train.samplers.pools import Pools
from compss_train.worker.source import Columns, PlacedColumns, Source, training_order
from compss_train.worker.work import Work

_BURST = 8  # batches made at a time


class Batch(NamedTuple):
    """The samples of one training or evaluation step."""

    x: Any
    """A tensor, or tuples, lists and dicts of tensors."""
    y: Any = None
    weight: torch.Tensor | None = None
    """One number a sample."""
    samples_before: int | None = None
    """Number of samples passed to the transform; ``None`` before the transform, and without one."""

    @property
    def samples(self) -> int:
        """Number of samples before the transform, which may change it."""
        return number_of(self.x) if self.samples_before is None else self.samples_before

    def to(self, device: str) -> Self:
        """Return the batch on a device."""
        moved = to_device(leaves(self.parts), device)
        return self._replace(**rebuilt(self.parts, moved))

    @property
    def parts(self) -> dict[str, Any]:
        """Return the fields that hold tensors, by name."""
        parts = {"x": self.x, "y": self.y, "weight": self.weight}
        return {name: part for name, part in parts.items() if part is not None}


def number_of(x: Any) -> int:
    """Return the number of samples of x."""
    return len(x) if isinstance(x, torch.Tensor) else len(leaves(x)[0])


PlacedBatch: TypeAlias = tuple[Place, Batch]


@dataclass
class CarriedBuffer:
    """The state of a worker's buffer, which passes from task to task inside an epoch."""

    before: dict[str, Any] | None = None
    """The state before a task, which the task does not change."""
    after: dict[str, Any] | None = None
    """The state after a task; ``None`` for an empty buffer."""


def placed_batches(
    work: Work,
    source: Source,
    device: str,
    buffer: CarriedBuffer | None = None,
    samples: SampleReader | None = None,
) -> Iterator[PlacedBatch]:
    """Iterate over the batches of a worker, each with its place.

    ``buffer`` is carried between the rounds of an epoch, ``samples`` reads samples by their numbers.
    """
    if isinstance(samples, StreamReader) and not samples.counted:
        yield from _until_the_end(work, source, samples)
        return
    options = work.options
    if options.pools is not None:
        placed = _partially_shuffled(work, options.pools, source, device)
    elif options.buffer is not None:
        placed = buffered_batches(work, options.buffer, source, device, buffer or CarriedBuffer())
    else:
        placed = _block_by_block(work, source, device)
    for place, columns in placed:
        yield place, Batch(*options.structure.parts(columns))


def batches_in_epoch(work: Work, epoch: int) -> int:
    """Return the planned number of batches in a worker's epoch."""
    if work.draws is not None:
        return len(work.draws.sizes)
    block_passes = tuple(block_pass for block_pass in work.block_passes if block_pass.epoch == epoch)
    options = work.options
    if options.pools is not None or options.buffer is not None:
        return len(batch_sizes(block_passes, options.batching))
    return sum(len(batch_bounds(block_pass, options.batching)) for block_pass in block_passes)


def _block_by_block(work: Work, source: Source, device: str) -> Iterator[PlacedColumns]:
    with source.rows(work.block_passes) as columns_of_passes:
        for block_pass in work.block_passes:
            rows = next(columns_of_passes)
            if rows is not None:
                before = block_pass.first + block_pass.skip
                for start, batch in _cut(block_pass, work, rows, device):
                    yield Place(block_pass.epoch, block_pass.block, before + start), batch
            del rows  # free them before the next block is read


def _until_the_end(work: Work, source: Source, stream: StreamReader) -> Iterator[PlacedBatch]:
    """Iterate over batches of a stream's sample numbers until the stream ends."""
    with source.rows(work.block_passes) as columns_of_passes:
        for block_pass, (number,) in zip(work.block_passes, filter(None, columns_of_passes), strict=True):
            batch = Batch(number.expand(work.options.batching.size or 1).contiguous())
            position = 0
            while not (position and stream.has_ended(int(number), block_pass.epoch)):
                yield Place(block_pass.epoch, block_pass.block, position), batch
                position += batch.samples


def _cut(block_pass: BlockPass, work: Work, rows: Columns, device: str) -> Iterator[tuple[int, Columns]]:
    """Iterate over the batches of a pass, each with the number of its first sample."""
    bucketed = work.options.structure.bucketed
    numbers = (
        _by_length(block_pass, work, rows) if bucketed else training_order(block_pass, work.options.shuffle_seed)
    )
    order = None if numbers is None else torch.from_numpy(numbers)
    for piece in pieces(batch_bounds(block_pass, work.options.batching), rows, device):
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
    order = row_order(work.options.seed, block_pass.epoch, block_pass.block, block_pass.whole)
    lengths = next(column.lengths for column in rows if hasattr(column, "lengths"))  # of Ragged
    bounds, place = batch_bounds(whole, work.options.batching), (block_pass.epoch, block_pass.block)
    ordered = bucketed_order(order, lengths.numpy(), bounds, work.options.seed, *place)
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
            random=partial_shuffle_generator(work.options.seed, epoch, first.block, first.first),
            batch_sizes=batch_sizes(block_passes, work.options.batching),
            store=store,
        )
        for batch in batches:
            if batch is not None:
                yield Place(epoch, first.block, position), to_device(batch, device)
                position += len(batch[0])


def buffered_batches(
    work: Work, spec: BufferSpec, source: Source, device: str, carried: CarriedBuffer
) -> Iterator[PlacedColumns]:
    """Iterate over the batches of a worker, on the device, each with its place.

    The buffer is drained at the end of every epoch, so that the number of epochs between merges does not change the
    batches of a worker. If an epoch has several rounds of batches, it is carried from one to the next.
    """
    for draws, block_passes in _draws(work, spec):
        seed = buffer_seed(work.options.seed, draws.epoch, draws.origin)
        limited = spec.limited(draws.total, draws.largest)
        buffer = limited.make(draws.largest, seed, pin_memory=is_gpu(device))
        if not draws.is_first and carried.before is not None:
            buffer.load_state_dict(carried.before)
        position, least = draws.drawn, None if draws.is_last else len(draws.sizes)
        with source.chunks(block_passes) as read:
            if spec.draws_in_step:
                batches = in_bursts(draw_in_step(buffer, read, draws))
            else:
                batches = batches_through(buffer, read, draws.largest, least=least)
            for batch in batches:
                yield Place(draws.epoch, draws.origin, position), to_device(batch, device)
                position += len(batch[0])
        carried.after = None if draws.is_last else buffer.state_dict()


def _draws(work: Work, spec: BufferSpec) -> Iterator[tuple[Draws, WorkerAssignment]]:
    """Iterate over the draws of each epoch, with the passes whose samples are put for them."""
    if work.draws is not None:
        yield work.draws, work.block_passes
        return
    for _, group in groupby(work.block_passes, lambda block_pass: block_pass.epoch):
        block_passes = tuple(group)
        yield Draws.of_epoch(block_passes, work.options.batching, spec.put_counts), block_passes


class _Rows:
    """Cuts chunks into pieces of the requested length."""

    def __init__(self, chunks: Iterable[Columns]) -> None:
        self._chunks = iter(chunks)
        self._rest: Columns = ()
        self.ended = False

    def take(self, number: int) -> Iterator[Columns]:
        """Iterate over the next ``number`` samples in pieces of chunks, or fewer at the end."""
        while number > 0:
            if not self._rest or not len(self._rest[0]):
                self._rest = next(self._chunks, ())
            if not self._rest:
                self.ended = True
                return
            taken = tuple(part[:number] for part in self._rest)
            self._rest = tuple(part[number:] for part in self._rest)
            number -= len(taken[0])
            yield taken


def draw_in_step(buffer: Buffer, chunks: Iterable[Columns], draws: Draws) -> Iterator[Columns]:
    """Iterate over the batches, putting samples into the buffer by counts (``draws.puts``) and not by time.

    If files are skipped, a batch waits until there are enough samples for it, and the last one may be smaller.
    """
    rows = _Rows(chunks)
    for size, wanted in zip(draws.sizes, draws.puts, strict=True):
        _put(buffer, rows, wanted, draws)
        yield from _get(buffer, size)
    while not rows.ended and buffer.samples_put < draws.puts[-1]:  # samples that found no room before
        yield from _get(buffer, draws.largest)
        _put(buffer, rows, draws.puts[-1], draws)
    while draws.is_last and len(buffer):
        yield from _get(buffer, draws.largest)


def _put(buffer: Buffer, rows: _Rows, wanted: int, draws: Draws) -> None:
    """Put samples into the buffer until it has received ``wanted`` in this epoch, or is full."""
    room = buffer.capacity - len(buffer)
    for chunk in rows.take(min(wanted - buffer.samples_put, room)):
        buffer.put_many(chunk, block=False)
    if buffer.samples_put == draws.total or (rows.ended and draws.is_last):
        buffer.signal_reception_over()


def _get(buffer: Buffer, size: int) -> Iterator[Columns]:
    """Draw a batch if there are enough samples, or fewer at the end of an epoch."""
    try:
        batch = buffer.get_batch(size, block=False)
    except queue.Empty:
        return
    yield batch


def in_bursts(batches: Iterator[Columns]) -> Iterator[Columns]:
    """Iterate over the batches, drawing a few at a time.

    Between two training steps the code and data of a buffer leave the core's caches: drawn one by one, batches
    cost three times as much.
    """
    while burst := list(islice(batches, _BURST)):
        yield from burst
