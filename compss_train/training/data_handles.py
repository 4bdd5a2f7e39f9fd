"""``DataHandles``: an engine's references to the samples of a fit or an evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import RemoteBlock, load_block
from compss_train.data.columns import ColumnStructure
from compss_train.data.reading import FilePart
from compss_train.engines import Engine, Ref
from compss_train.engines.codec import is_on_file


class DataHandles(ABC):
    """Blocks or files, which tasks are given by number."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.starts = tuple(accumulate(sizes[:-1], initial=0))
        self._starts = np.array(self.starts)
        self.training_spec: Ref | None = None
        """The training spec of tasks on them, where it reads the samples; freed with them."""

    mapped: bool
    """Whether a task that is given a block reads only the rows that it uses."""
    may_skip = False
    """Whether tasks may have fewer samples than planned: files that are skipped, streams that end before."""
    read_ahead = 0
    """How many files of the next round tasks read ahead."""
    structure: ColumnStructure
    """Which of their columns are x, y and weights."""

    @abstractmethod
    def select(self, numbers: Sequence[int], upcoming: Sequence[int] = ()) -> tuple[Any, list[Ref]]:
        """Return the arguments of a task on these blocks: x (or a part of a data set), and the other columns.

        ``upcoming`` are those of the worker's next task, which a task on files reads ahead if it has a cache.
        """

    def holding(self, samples: NDArray[Any]) -> tuple[int, ...]:
        """Return the numbers of the blocks that hold these samples, ascending; all where few would be left out."""
        if len(samples) >= len(self.sizes):
            return tuple(range(len(self.sizes)))
        return tuple(sorted({*(self._starts.searchsorted(samples, side="right") - 1).tolist()}))

    @abstractmethod
    def delete(self) -> None:
        """Free the references."""


class BlockHandles(DataHandles):
    """The blocks of all columns: those of x, then of y and of the weights."""

    def __init__(self, engine: Engine, columns: Sequence[BlockedTensor], structure: ColumnStructure) -> None:
        x, *others = columns
        super().__init__(x.sizes)
        self._engine = engine
        self.structure = structure
        on_file = all(is_on_file(block) for tensor in (x, *others) for block in tensor.blocks())
        self.mapped = engine.traits.shared_memory or on_file
        columns = [x, *others]
        joined = engine.traits.pays_by_value and len(columns) > 1 and not any(map(_is_remote, columns))
        self._x, *self._others = (
            [_publish_rows(engine, columns)] if joined else [publish_blocks(engine, tensor) for tensor in columns]
        )

    def select(self, numbers: Sequence[int], upcoming: Sequence[int] = ()) -> tuple[list[Ref], list[Ref]]:
        """Return the references to these blocks of the first column, and of the others one after the other."""
        return [self._x[n] for n in numbers], [refs[n] for refs in self._others for n in numbers]

    def delete(self) -> None:
        """Free the blocks, and the training spec that reads them."""
        own = [] if self.training_spec is None else [self.training_spec]
        self._engine.delete([*self._x, *chain.from_iterable(self._others), *own])


def _is_remote(tensor: BlockedTensor) -> bool:
    return any(isinstance(block, RemoteBlock) for block in tensor.blocks())


def _publish_rows(engine: Engine, columns: Sequence[BlockedTensor]) -> list[Ref]:
    """Publish a block of x with those of the other columns as one value each."""
    return [engine.publish(blocks) for blocks in zip(*(tensor.blocks() for tensor in columns), strict=True)]


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


class FileHandles(DataHandles):
    """Files, whose names are passed to tasks."""

    mapped = True

    def __init__(self, dataset: FileDataset, keys: tuple[str, ...], structure: ColumnStructure) -> None:
        super().__init__(dataset.sizes)
        self.structure = structure
        self._dataset = dataset
        self._keys = keys
        self.may_skip = dataset.on_bad_file == "skip"
        self.read_ahead = 0 if dataset.cache is None else dataset.file_buffer - 1

    def select(self, numbers: Sequence[int], upcoming: Sequence[int] = ()) -> tuple[FilePart, list[Ref]]:
        """Return the part of the data set with these files, which holds all columns."""
        return self._dataset.part(numbers, self._keys, upcoming), []

    def delete(self) -> None:
        """Do nothing: the files belong to the user."""
