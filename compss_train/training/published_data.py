"""``PublishedData``: the samples of a fit or an evaluation as the tasks of an engine are given them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import RemoteBlock, load_block
from compss_train.data.columns import ColumnStructure
from compss_train.engines import Engine, Ref
from compss_train.engines.codec import is_on_file


@dataclass(kw_only=True, eq=False)
class PublishedData:
    """Blocks or files, which tasks are given by number."""

    engine: Engine
    sizes: tuple[int, ...]
    structure: ColumnStructure
    """Which of the columns are x, y and weights."""
    columns: Sequence[Sequence[Ref]] = ()
    """The blocks of x, of y and of the weights; or of all columns together. Empty for files."""
    files: FileDataset | None = None
    """The files, whose names are passed to tasks."""
    keys: tuple[str, ...] = ()
    """The arrays that tasks read from files."""
    mapped: bool = True
    """Whether a task that is given a block reads only the rows that it uses."""
    may_skip: bool = False
    """Whether tasks may have fewer samples than planned: files that are skipped, streams that end before."""
    training_spec: Ref | None = None
    """The training spec of tasks on them, where it reads the samples; freed with them."""

    @property
    def read_ahead(self) -> int:
        """How many files of the next round tasks read ahead."""
        return 0 if self.files is None or self.files.cache is None else self.files.file_buffer - 1

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The number of the first sample of each block or file."""
        return tuple(accumulate(self.sizes[:-1], initial=0))

    def select(self, numbers: Sequence[int], upcoming: Sequence[int] = ()) -> tuple[Any, list[Ref]]:
        """Return the arguments of a task on these blocks: x, and the other columns one after the other.

        In files x is a part of the data set, which holds all columns. ``upcoming`` are those of the worker's next
        task, which a task on files reads ahead if it has a cache.
        """
        if self.files is not None:
            return self.files.part(numbers, self.keys, upcoming), []
        x, *others = self.columns
        return [x[n] for n in numbers], [refs[n] for refs in others for n in numbers]

    def holding(self, samples: NDArray[Any]) -> tuple[int, ...]:
        """Return the numbers of the blocks that hold these samples, ascending; all where few would be left out."""
        if len(samples) >= len(self.sizes):
            return tuple(range(len(self.sizes)))
        return tuple(sorted({*(np.searchsorted(self.starts, samples, side="right") - 1).tolist()}))

    def delete(self) -> None:
        """Free the blocks, and the training spec that reads them; files belong to the user."""
        own = [] if self.training_spec is None else [self.training_spec]
        self.engine.delete([*chain.from_iterable(self.columns), *own])


def published_blocks(
    engine: Engine, columns: Sequence[BlockedTensor], structure: ColumnStructure, *, may_skip: bool = False
) -> PublishedData:
    """Publish the blocks of x, y and the weights: in one value each where the engine pays by values."""
    on_file = all(is_on_file(block) for tensor in columns for block in tensor.blocks())
    remote = any(isinstance(block, RemoteBlock) for tensor in columns for block in tensor.blocks())
    if engine.traits.pays_by_value and len(columns) > 1 and not remote:
        rows = zip(*(tensor.blocks() for tensor in columns), strict=True)
        refs = [[engine.publish(blocks) for blocks in rows]]
    else:
        refs = [publish_blocks(engine, tensor) for tensor in columns]
    return PublishedData(
        engine=engine,
        sizes=columns[0].sizes,
        structure=structure,
        columns=refs,
        mapped=engine.traits.shared_memory or on_file,
        may_skip=may_skip,
    )


def publish_blocks(engine: Engine, tensor: BlockedTensor) -> list[Ref]:
    """Publish the blocks of a tensor.

    If the engine keeps values in shared memory, the tensor's own blocks become views of them, so that the
    coordinator holds no second copy.
    """
    refs: list[Ref] = []
    for row in tensor.tensors:
        for column, block in enumerate(row):
            foreign = isinstance(block, RemoteBlock) and block.home != engine.name
            ref = engine.publish(load_block(block) if foreign else block)
            refs.append(ref)
            adoptable = engine.traits.shared_memory and not isinstance(block, np.memmap | RemoteBlock)
            held = engine.peek(ref) if adoptable else None
            row[column] = block if held is None else held
    return refs
