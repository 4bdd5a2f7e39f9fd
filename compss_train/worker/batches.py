"""The batches of a worker: cut from the rows of its blocks, then collated and transformed for the
training step.

They are cut block by block, mixed in a partial shuffle, or drawn from a buffer.
"""

import queue
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby, islice
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, map_leaves, rebuilt
from compss_train.buffers import Buffer, BufferSpec
from compss_train.buffers.reading_ahead import batches_through
from compss_train.data.block import Ragged
from compss_train.data.order import buffer_seed, partial_shuffle_generator, transform_seed
from compss_train.data.partitioning import Draws, WorkerAssignment, batch_bounds, batch_sizes
from compss_train.data.sample_reading import Reseed, SampleReader, collate_batch
from compss_train.data.streams import StreamReader
from compss_train.model.devices import CPU, is_gpu, random_state, seed_generators, to_device
from compss_train.model.losses import IGNORE_INDEX
from compss_train.model.training_spec import ModelReplica
from compss_train.samplers.mixing import SlotStore, shuffled_batches
from compss_train.samplers.pools import Pools
from compss_train.worker.gpu_rows import Columns
from compss_train.worker.source import Source
from compss_train.worker.state import CarriedBuffer
from compss_train.worker.work import Job, Work

_BURST = 8  # batches drawn from a buffer at a time


class Batch(NamedTuple):
    """The samples of one training or evaluation step, and their place in an epoch.

    The place does not depend on the worker that trains the batch; it seeds random transforms.
    """

    epoch: int
    block: int
    """The batch's block, or its grid position in a total shuffle; the first block if several
    mix.
    """
    position: int
    """Number of the batch's first sample in the training order that begins there."""
    x: Any
    """A tensor, or tuples, lists and dicts of tensors."""
    y: Any = None
    weight: torch.Tensor | None = None
    """One number a sample."""
    samples_before: int | None = None
    """Number of samples passed to the transform; ``None`` before the transform, and without one."""
    as_made: bool = False
    """Whether a step gets x as it is, without a tuple around it, as ``collate`` made it of samples
    without y.
    """
    simulations: NDArray[np.int64] | None = None
    """In an online fit, the number of each sample's simulation: shape (n,), or (n, 2) for pairs; on
    the host.
    """
    steps: NDArray[np.int64] | None = None
    """The same for time steps."""

    @property
    def samples(self) -> int:
        """Number of samples before the transform, which may change it."""
        if self.samples_before is not None:
            return self.samples_before
        return len(self.x) if isinstance(self.x, torch.Tensor) else len(leaves(self.x)[0])

    def to(self, device: str) -> Self:
        """Return the batch on a device."""
        return self._replace(**rebuilt(self.parts, to_device(leaves(self.parts), device)))

    @property
    def parts(self) -> dict[str, Any]:
        """Return the fields that hold tensors, by name."""
        parts = {"x": self.x, "y": self.y, "weight": self.weight}
        return {name: part for name, part in parts.items() if part is not None}


def cut_batches(
    source: Source, device: str, buffer: CarriedBuffer | None = None
) -> Iterator[Batch]:
    """Iterate over the batches of a worker for a device, with the samples of data sets still as
    numbers.

    Sample numbers, and what ``collate`` gets, stay on the CPU. ``buffer`` is carried between rounds
    of an epoch.
    """
    job = source.job
    if isinstance(job.reader, StreamReader) and not job.reader.counted:
        return _until_the_end(source, job.reader)
    device = device if (job.reader or job.spec.collate) is None else CPU
    if job.pools is not None:
        return _partially_shuffled(source, job.pools, device)
    if job.buffer is not None:
        return _from_buffer(source, job.buffer, device, buffer or CarriedBuffer())
    return _block_by_block(source, device)


def batches_in_epoch(job: Job, work: Work, epoch: int) -> int:
    """Return the planned number of batches in a worker's epoch."""
    if work.draws is not None:
        return len(work.draws.sizes)
    block_passes = tuple(
        block_pass for block_pass in work.block_passes if block_pass.epoch == epoch
    )
    if job.pools is not None or job.buffer is not None:
        return len(batch_sizes(block_passes, job.batching))
    return sum(len(batch_bounds(block_pass, job.batching)) for block_pass in block_passes)


def _block_by_block(source: Source, device: str) -> Iterator[Batch]:
    job = source.job
    work = source.work
    with source.open(work.block_passes, device) as opened:
        for block_pass in work.block_passes:
            samples = next(opened)
            if samples is not None:
                place = block_pass.epoch, block_pass.block
                for start, stop in batch_bounds(block_pass, job.batching):
                    columns = samples.cut(start, stop)
                    if len(columns[0]):  # or none of them could be read
                        yield Batch(*place, block_pass.start + start, *job.structure.parts(columns))
                    del columns
            del samples  # free them before the next block is read


def _until_the_end(source: Source, stream: StreamReader) -> Iterator[Batch]:
    """Iterate over batches of a stream's sample numbers until the stream ends."""
    work = source.work
    with source.wholes(work.block_passes) as columns_of_passes:
        for block_pass, (number,) in zip(
            work.block_passes, filter(None, columns_of_passes), strict=True
        ):
            numbers = number.expand(source.job.batching.size or 1).contiguous()
            position = 0
            while not (position and stream.has_ended(int(number), block_pass.epoch)):
                yield Batch(block_pass.epoch, block_pass.block, position, numbers)
                position += len(numbers)


def _partially_shuffled(source: Source, pools: Pools, device: str) -> Iterator[Batch]:
    """Mix the samples of each epoch; the pools are empty at its end, and where a round ends inside
    it.
    """
    job = source.job
    store = SlotStore()
    for epoch, group in groupby(source.work.block_passes, lambda block_pass: block_pass.epoch):
        block_passes = tuple(group)
        first = block_passes[0]
        position = first.start
        batches = shuffled_batches(
            [block_pass.size for block_pass in block_passes],
            lambda numbers: source.pieces(tuple([block_passes[each] for each in numbers])),  # noqa: B023
            pools=pools,
            random=partial_shuffle_generator(job.seed, epoch, first.block, first.first),
            batch_sizes=batch_sizes(block_passes, job.batching),
            store=store,
        )
        for columns in batches:
            if columns is not None:
                yield Batch(
                    epoch, first.block, position, *job.structure.parts(to_device(columns, device))
                )
                position += len(columns[0])


def _from_buffer(
    source: Source, spec: BufferSpec, device: str, carried: CarriedBuffer
) -> Iterator[Batch]:
    """Iterate over the batches that a worker draws from a buffer.

    The buffer is drained at the end of every epoch, so that the number of epochs between merges
    does not change the batches of a worker. If an epoch has several rounds of batches, it is
    carried from one to the next.
    """
    job = source.job
    for draws, block_passes in _draws(job, source.work, spec):
        seed = buffer_seed(job.seed, draws.epoch, draws.origin)
        buffer = spec.limited(draws.total, draws.largest).make(
            draws.largest, seed, pin_memory=is_gpu(device)
        )
        if not draws.is_first and carried.before is not None:
            buffer.load_state_dict(carried.before)
        position = draws.drawn
        least = None if draws.is_last else len(draws.sizes)
        with source.chunks(block_passes) as read:
            if spec.draws_in_step:
                batches = in_bursts(draw_in_step(buffer, read, draws))
            else:
                batches = batches_through(buffer, read, draws.largest, least=least)
            for columns in batches:
                yield Batch(
                    draws.epoch,
                    draws.origin,
                    position,
                    *job.structure.parts(to_device(columns, device)),
                )
                position += len(columns[0])
        carried.after = None if draws.is_last else buffer.state_dict()


def _draws(job: Job, work: Work, spec: BufferSpec) -> Iterator[tuple[Draws, WorkerAssignment]]:
    """Iterate over the draws of each epoch, with the passes whose samples are put for them."""
    if work.draws is not None:
        yield work.draws, work.block_passes
        return
    for _, group in groupby(work.block_passes, lambda block_pass: block_pass.epoch):
        block_passes = tuple(group)
        yield Draws.of_epoch(block_passes, job.batching, spec.put_counts), block_passes


def prepared(batches: Iterator[Batch], replica: ModelReplica, job: Job) -> Iterator[Batch]:
    """Iterate over collated and transformed batches; empty batches, at the end of a stream, are
    left out.

    The transforms' random draws are seeded by the fit's seed and the place of the batch, or of the
    sample for a ``train_transform`` by sample: they depend neither on the worker nor on earlier
    training, and do not affect the network's generators.
    """
    functions = replica.collate, replica.train_transform, replica.transform, job.reader
    if not job.structure.ragged and all(each is None for each in functions):
        return batches
    ready = (_prepared(replica, job, batch) for batch in batches)
    return (batch for batch in ready if batch.samples_before != 0)


def _prepared(replica: ModelReplica, job: Job, batch: Batch) -> Batch:
    def seed_of(position: int) -> int:
        return transform_seed(job.seed, batch.epoch, batch.block, position)

    def reseed(position: int) -> int:
        """Seed all generators for the sample at a position of the batch's block; return the
        seed.
        """
        seed_generators(seed := seed_of(position), replica.device)
        return seed

    with random_state(seed_of(batch.position), replica.device):
        batch = collated(replica, job.reader, batch, reseed)
        before = batch.samples
        if not before:
            return batch
        if job.reader is not None:
            reseed(batch.position)  # transforms draw as for a batch that was not read
        x = batch.x
        y = batch.y
        with replica.annotate_errors(x, y, own_target=y is None), replica.autocast():
            if replica.train_transform is not None:
                x, y = replica.train_transform(x, y, lambda sample: reseed(batch.position + sample))
            return batch._replace(samples_before=before, x=replica.transformed(x), y=y)


def collated(
    replica: ModelReplica, reader: SampleReader | None, batch: Batch, reseed: Reseed
) -> Batch:
    """Return a batch ready for the transforms, on the replica's device; an empty batch if a stream
    has ended.

    ``reader`` replaces sample numbers in the batch by the samples; ``reseed`` seeds the data set's
    random draws. ``build``'s ``collate`` gets a list of samples, (x, y) or x without targets, and
    returns a batch of the same kind. Without it, sequences of different lengths are padded: x with
    0, integer targets with -100, which losses ignore. Raises ``TypeError`` for other targets.
    """
    collate = replica.collate
    if reader is not None:
        read = reader.read(batch.x.numpy(), batch.epoch, batch.position, reseed, collate)
        as_made = read.as_made or (collate is not None and read.y is None)
        batch = batch._replace(x=read.x, y=read.y, samples_before=read.samples, as_made=as_made)
        batch = batch.to(replica.device) if read.samples else batch
    elif collate is not None:
        x, y = collate_batch(collate, batch.x, batch.y, batch.samples)
        return batch._replace(x=x, y=y, samples_before=batch.samples, as_made=y is None).to(
            replica.device
        )
    if not any(isinstance(part, Ragged) for part in leaves(batch.parts)):
        return batch
    x = map_leaves(lambda part: part.padded(0) if isinstance(part, Ragged) else part, batch.x)
    return batch._replace(x=x, y=map_leaves(_padded_target, batch.y), samples_before=batch.samples)


def _padded_target(part: Any) -> Any:
    check_target(part)
    return part.padded(IGNORE_INDEX) if isinstance(part, Ragged) else part


def check_target(part: Any) -> None:
    """Raise ``TypeError`` for targets of different lengths that cannot be padded."""
    if isinstance(part, Ragged) and (part.dtype.is_floating_point or part.dtype.is_complex):
        raise TypeError(
            f"targets of different lengths and dtype {part.dtype} need collate= in build, "
            "because losses do not know what to ignore: return them padded, and a mask, for a "
            "training_step"
        )


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
    """Iterate over the batches, putting samples into the buffer by counts (``draws.puts``) and not
    by time.

    If files are skipped, a batch waits until there are enough samples for it, and the last one may
    be smaller.
    """
    rows = _Rows(chunks)
    for size, wanted in zip(draws.sizes, draws.puts, strict=True):
        _put(buffer, rows, wanted, draws)
        yield from _get(buffer, size)
    # Samples that found no room before.
    while not rows.ended and buffer.samples_put < draws.puts[-1]:
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
    with suppress(queue.Empty):
        yield buffer.get_batch(size, block=False)


def in_bursts(batches: Iterator[Columns]) -> Iterator[Columns]:
    """Iterate over the batches, drawing a few at a time.

    Between two training steps the code and data of a buffer leave the core's caches: drawn one by
    one, batches cost three times as much.
    """
    while burst := list(islice(batches, _BURST)):
        yield from burst
