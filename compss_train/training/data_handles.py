"""Samples as the engine holds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import RemoteBlock, loaded
from compss_train.data.reading import FilePart
from compss_train.engines import Engine, Ref
from compss_train.engines.codec import is_on_file


class DataHandles(ABC):
    """Blocks, or files, that tasks take by number."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.starts = tuple(accumulate(sizes[:-1], initial=0))

    mapped: bool
    """Whether a task that takes a block reads only the rows that it uses."""
    may_skip = False
    """Whether tasks may find fewer samples than there should be."""
    weighted: bool
    """Whether samples have weights."""

    @abstractmethod
    def select(self, numbers: Sequence[int]) -> tuple[Any, list[Ref]]:
        """Return what a task takes to have these: x, or what reads files, and the others' blocks."""

    @abstractmethod
    def delete(self) -> None:
        """Free what is published."""


class BlockHandles(DataHandles):
    """The blocks of x, and of others cut like it: y, and weights at last."""

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
        """Return the references of these blocks of x, and of the others, one after the other."""
        return [self._x[n] for n in numbers], [refs[n] for refs in self._others for n in numbers]

    def delete(self) -> None:
        """Free the blocks."""
        self._engine.delete([*self._x, *chain.from_iterable(self._others)])


def publish_blocks(engine: Engine, tensor: BlockedTensor) -> list[Ref]:
    """Publish a blocked tensor's blocks, once.

    Where the engine keeps values in shared memory, the tensor's own blocks become views of them, so that each
    block exists once on the machine and not a second time in the coordinator.
    """
    refs: list[Ref] = []
    for row in tensor.tensors:
        for column, block in enumerate(row):
            foreign = isinstance(block, RemoteBlock) and block.home != engine.name
            ref = engine.publish(loaded(block) if foreign else block)
            refs.append(ref)
            adoptable = engine.shared_memory and not isinstance(block, np.memmap | RemoteBlock)
            held = engine.peek(ref) if adoptable else None
            row[column] = block if held is None else held
    return refs


class FileHandles(DataHandles):
    """Files, of which tasks get the names."""

    mapped = True

    def __init__(self, dataset: FileDataset, keys: tuple[str, ...], *, weighted: bool = False) -> None:
        super().__init__(dataset.sizes)
        self.weighted = weighted
        self._dataset = dataset
        self._keys = keys
        self.may_skip = dataset.on_bad_file == "skip"

    def select(self, numbers: Sequence[int]) -> tuple[FilePart, list[Ref]]:
        """Return what reads these files, all columns of them."""
        return self._dataset.part(numbers, self._keys), []

    def delete(self) -> None:
        """Nothing: they are the user's."""
