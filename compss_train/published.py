"""Samples as the engine holds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.reading import FilePart
from compss_train.data.remote import RemoteBlock, loaded
from compss_train.engines import Engine, Ref
from compss_train.engines.codec import is_on_file


class Published(ABC):
    """Blocks, or files, that tasks take by number."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.starts = tuple(accumulate(sizes[:-1], initial=0))

    mapped: bool
    """Whether a task that takes a block reads only the rows that it uses."""
    may_skip = False
    """Whether tasks may find fewer samples than there should be."""

    @abstractmethod
    def select(self, numbers: Sequence[int]) -> tuple[Any, Any]:
        """Return what a task takes as x and y to have these."""

    @abstractmethod
    def delete(self) -> None:
        """Free what is published."""


class PublishedBlocks(Published):
    """The blocks of x, and of y where there is one."""

    def __init__(self, engine: Engine, x: BlockedTensor, y: BlockedTensor | None) -> None:
        super().__init__(x.sizes)
        self._engine = engine
        tensors = [x] if y is None else [x, y]
        on_file = all(is_on_file(block) for tensor in tensors for block in tensor.blocks())
        self.mapped = engine.shared_memory or on_file
        self._x = publish_blocks(engine, x)
        self._y = None if y is None else publish_blocks(engine, y)

    def select(self, numbers: Sequence[int]) -> tuple[list[Ref], list[Ref] | None]:
        """Return the references of these blocks of x and of y."""
        return [self._x[n] for n in numbers], None if self._y is None else [self._y[n] for n in numbers]

    def delete(self) -> None:
        """Free the blocks."""
        self._engine.delete([*self._x, *(self._y or ())])


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


class PublishedFiles(Published):
    """Files, of which tasks get the names."""

    mapped = True

    def __init__(self, dataset: FileDataset, keys: tuple[str, ...]) -> None:
        super().__init__(dataset.sizes)
        self._dataset = dataset
        self._keys = keys
        self.may_skip = dataset.on_bad_file == "skip"

    def select(self, numbers: Sequence[int]) -> tuple[FilePart, None]:
        """Return what reads these files."""
        return self._dataset.part(numbers, self._keys), None

    def delete(self) -> None:
        """Nothing: they are the user's."""
