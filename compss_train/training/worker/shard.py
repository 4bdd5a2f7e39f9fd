"""A shard: what one task trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from compss_train.buffers import BufferSpec
from compss_train.data.block import Block
from compss_train.data.order import Batching
from compss_train.data.partitioning import BlockPass, WorkerAssignment
from compss_train.data.reading import FilePart
from compss_train.model.lr_schedules import Hyperparameters
from compss_train.samplers.pools import Pools


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """What one task trains on, besides the blocks themselves: visits and how each is cut and ordered."""

    share: WorkerAssignment
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
    """Whether the task is given pieces of blocks, each with its rows of all columns, instead of blocks."""
    buffer: BufferSpec | None = None
    """The buffer that samples pass through, ``None`` to train block after block."""
    seed: int = 0
    """Seed of what a buffer draws, and of a partial shuffle."""
    pools: Pools | None = None
    """The pools of a partial shuffle, ``None`` for none."""
    file_buffer: int = 2
    """The most files in memory at a time, where the samples are in files."""
    weighted: bool = False
    """Whether the last column are weights."""
    hyperparameters: Mapping[int, Hyperparameters] = field(default_factory=dict)
    """What a schedule says of each epoch; empty without a schedule."""


def in_order(xs: Sequence[Block] | FilePart, batch_size: int) -> Shard:
    """Return the shard of all samples of these blocks, or files, as they are: what is evaluated on."""
    sizes = xs.sizes if isinstance(xs, FilePart) else {number: len(block) for number, block in enumerate(xs)}
    block_passes = tuple(BlockPass(number, 0, size) for number, size in sizes.items())
    starts = tuple(accumulate(sizes.values(), initial=0))[:-1]
    return Shard(block_passes, tuple(sizes), starts, Batching(size=batch_size), None)
