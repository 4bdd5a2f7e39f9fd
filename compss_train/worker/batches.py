"""``Batch``, and the ways to cut the rows of a worker's blocks into batches.

They are cut block by block, mixed in a partial shuffle, or drawn from a buffer.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, rebuilt
from compss_train.buffers import BufferSpec
from compss_train.data.block_passes import WorkerAssignment, batch_bounds, batch_sizes
from compss_train.data.draws import Draws
from compss_train.data.order import buffer_seed, partial_shuffle_generator
from compss_train.data.streams import StreamReader
from compss_train.model.devices import CPU, is_gpu, to_device
from compss_train.samplers.mixing import SlotStore, shuffled_batches
from compss_train.samplers.pools import Pools
from compss_train.worker.buffer_draws import drawn_columns
from compss_train.worker.source import Source
from compss_train.worker.state import CarriedBuffer
from compss_train.worker.work import Job, Work


class Batch(NamedTuple):
    """The samples of one training or evaluation step, and their place in an epoch.

    The place does not depend on the worker that trains the batch; it seeds random transforms.
    """

    epoch: int
    block: int
    """The batch's block (the first if several mix), or its grid position in a total shuffle."""
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
    """Whether a step gets x as ``collate`` made it of samples without y, not in a tuple."""
    simulations: NDArray[np.int64] | None = None
    """In an online fit, each sample's simulation, on the host: shape (n,), or (n, 2) for pairs."""
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
    """Iterate over a worker's batches for a device; samples of data sets are still numbers.

    Sample numbers, and what ``collate`` gets, stay on the CPU. ``buffer`` is carried between rounds
    of an epoch.
    """
    job = source.job
    if isinstance(job.reader, StreamReader) and not job.reader.counted:
        return _until_the_end(source, job.reader)
    if job.reader is not None or job.spec.collate is not None:
        device = CPU
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
    block_passes = source.work.block_passes
    with source.open(block_passes, device) as opened:
        for block_pass in block_passes:
            samples = next(opened)
            if samples is not None:
                for start, stop in batch_bounds(block_pass, job.batching):
                    columns = samples.cut(start, stop)
                    if len(columns[0]):  # or none of them could be read
                        yield Batch(
                            block_pass.epoch,
                            block_pass.block,
                            block_pass.start + start,
                            *job.structure.parts(columns),
                        )
                    del columns
            del samples  # free them before the next block is read


def _until_the_end(source: Source, stream: StreamReader) -> Iterator[Batch]:
    """Iterate over batches of a stream's sample numbers until the stream ends."""
    block_passes = source.work.block_passes
    size = source.job.batching.size or 1
    with source.wholes(block_passes) as columns_of_passes:
        for block_pass, (number,) in zip(
            block_passes, filter(None, columns_of_passes), strict=True
        ):
            numbers = number.expand(size).contiguous()
            position = 0
            while not (position and stream.has_ended(int(number), block_pass.epoch)):
                yield Batch(block_pass.epoch, block_pass.block, position, numbers)
                position += size


def _partially_shuffled(source: Source, pools: Pools, device: str) -> Iterator[Batch]:
    """Mix the samples of each epoch; the pools are empty where an epoch or a round ends."""
    store = SlotStore()
    for _, block_passes in groupby(source.work.block_passes, lambda block_pass: block_pass.epoch):
        yield from _shuffled_epoch(source, pools, device, tuple(block_passes), store)


def _shuffled_epoch(
    source: Source, pools: Pools, device: str, block_passes: WorkerAssignment, store: SlotStore
) -> Iterator[Batch]:
    """Mix the samples of passes of one epoch; ``store`` has the memory of the pools."""
    job = source.job
    first = block_passes[0]
    position = first.start
    batches = shuffled_batches(
        [block_pass.size for block_pass in block_passes],
        lambda numbers: source.pieces(tuple([block_passes[number] for number in numbers])),
        pools=pools,
        random=partial_shuffle_generator(job.seed, first.epoch, first.block, first.first),
        batch_sizes=batch_sizes(block_passes, job.batching),
        store=store,
    )
    for columns in batches:
        if columns is not None:
            yield Batch(
                first.epoch,
                first.block,
                position,
                *job.structure.parts(to_device(columns, device)),
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
        limited = spec.limited(draws.total, draws.largest)
        buffer = limited.make(draws.largest, seed, pin_memory=is_gpu(device))
        if not draws.is_first and carried.before is not None:
            buffer.load_state_dict(carried.before)
        position = draws.drawn
        with source.chunks(block_passes) as chunks:
            for columns in drawn_columns(spec, buffer, chunks, draws):
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
