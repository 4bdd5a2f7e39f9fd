"""``Shard``: the part of the samples that one task trains on, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from compss_train.data.block import Block
from compss_train.data.partitioning import BlockPass, WorkerAssignment
from compss_train.data.reading import FilePart
from compss_train.model.lr_schedules import Hyperparameters
from compss_train.training.fit_options import FitOptions

INFERENCE_FILES = 2
"""The most files in memory at a time during evaluation and prediction: one is read while the other is used."""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Everything that a training task needs to know about its samples, besides the samples themselves."""

    options: FitOptions
    """The options of the fit, resolved by ``FitOptions.for_blocks``."""
    assignment: WorkerAssignment
    """The passes over blocks that the worker makes."""
    blocks: tuple[int, ...]
    """The numbers of the blocks that the task receives, in that order."""
    starts: tuple[int, ...]
    """Number of the first sample of each of these blocks among all samples."""
    seed: int = 0
    """Seed of every random order: rows within blocks, buffers, partial shuffles."""
    name: str = "training"
    """Round and worker, for messages."""
    pieces: bool = False
    """Whether the task receives pieces of blocks, each with its rows of all columns, instead of blocks."""
    weighted: bool = False
    """Whether the last column holds the samples' weights."""
    hyperparameters: Mapping[int, Hyperparameters] = field(default_factory=dict)
    """The optimizer's hyperparameters by epoch; empty without a learning-rate schedule."""

    @property
    def shuffle_seed(self) -> int | None:
        """Seed of the order of rows within a block, ``None`` to keep their order."""
        return self.seed if self.options.shuffle_block_data else None


def unshuffled(xs: Sequence[Block] | FilePart, batch_size: int) -> Shard:
    """Return the shard of all samples of these blocks or files in their order, for evaluation and prediction."""
    sizes = xs.sizes if isinstance(xs, FilePart) else {number: len(block) for number, block in enumerate(xs)}
    assignment = tuple(BlockPass(number, 0, size) for number, size in sizes.items())
    starts = tuple(accumulate(sizes.values(), initial=0))[:-1]
    options = FitOptions(
        num_epochs=1, batch_size=batch_size, shuffle=None, shuffle_block_data=False, file_buffer=INFERENCE_FILES
    )
    return Shard(options=options, assignment=assignment, blocks=tuple(sizes), starts=starts)
