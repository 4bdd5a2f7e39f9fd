"""``DataHandles``: the engine's references to the samples of a data source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import RemoteBlock, load_block
from compss_train.data.reading import FilePart
from compss_train.engines import Engine, Ref
from compss_train.engines.codec import is_on_file


class DataHandles(ABC):
    """Blocks or files, which tasks are given by number."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.starts = tuple(accumulate(sizes[:-1], initial=0))

    mapped: bool
    """Whether a task that is given a block reads only the rows that it uses."""
    may_skip = False
    """Whether tasks may skip files, and then have fewer samples than planned."""
    weighted: bool
    """Whether samples have weights."""

    @abstractmethod
    def select(self, numbers: Sequence[int]) -> tuple[Any, list[Ref]]:
        """Return the arguments of a task on these blocks: x (or a part of a data set), and the other columns."""

    @abstractmethod
    def delete(self) -> None:
        """Free the references."""


class BlockHandles(DataHandles):
    """The blocks of x, and of tensors with the same blocks: y, then the weights."""

    def __init__(
        self, engine: Engine, x: BlockedTensor, others: Sequence[BlockedTensor] = (), *, weighted: bool = False
    ) -> None:
        super().__init__(x.sizes)
        self._engine = engine
        self.weighted = weighted
        on_file = all(is_on_file(block) for tensor in (x, *others) for block in tensor.blocks())
        self.mapped = engine.shared_memory or on_file
        self._x = publish_blocks(engine, x)
        self._others = [publish_blocks(engine, tensor) for tensor in others]

    def select(self, numbers: Sequence[int]) -> tuple[list[Ref], list[Ref]]:
        """Return the references to these blocks of x, and of the other tensors one after the other."""
        return [self._x[n] for n in numbers], [refs[n] for refs in self._others for n in numbers]

    def delete(self) -> None:
        """Free the blocks."""
        self._engine.delete([*self._x, *chain.from_iterable(self._others)])


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
            adoptable = engine.shared_memory and not isinstance(block, np.memmap | RemoteBlock)
            held = engine.peek(ref) if adoptable else None
            row[column] = block if held is None else held
    return refs


class FileHandles(DataHandles):
    """Files, whose names are passed to tasks."""

    mapped = True

    def __init__(self, dataset: FileDataset, keys: tuple[str, ...], *, weighted: bool = False) -> None:
        super().__init__(dataset.sizes)
        self.weighted = weighted
        self._dataset = dataset
        self._keys = keys
        self.may_skip = dataset.on_bad_file == "skip"

    def select(self, numbers: Sequence[int]) -> tuple[FilePart, list[Ref]]:
        """Return the part of the data set with these files, which holds all columns."""
        return self._dataset.part(numbers, self._keys), []

    def delete(self) -> None:
        """Do nothing: the files belong to the user."""
