"""A shard: what one task trains on."""

from __future__ import annotations

from dataclasses import dataclass

from compss_train.buffers import BufferSpec
from compss_train.data.batches import Batching
from compss_train.data.schedule import Share


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
    buffer: BufferSpec | None = None
    """The buffer that samples pass through, ``None`` to train block after block."""
    buffer_seed: int = 0
    """Seed of the buffer's draws."""
