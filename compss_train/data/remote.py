"""Blocks that are not in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from compss_train.data.block import Block, DType, as_block

Description = tuple[DType, tuple[int, ...]]
"""A block's dtype and shape."""


class RemoteBlock(ABC):
    """A block that some engine's tasks can read and this process knows the dtype and shape of only."""

    home: ClassVar[str]
    """Name of the engine that takes it as it is; any other gets what ``load`` returns."""

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape

    @abstractmethod
    def load(self) -> Block:
        """Return the block itself, which takes it into this process's memory."""

    @property
    def ndim(self) -> int:
        """Number of dimensions, samples included."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]


def describe(block: object) -> Description:
    """Return the dtype and shape of a block; the task that looks at one where it is."""
    known = as_block(block)
    return known.dtype, tuple(known.shape)


def loaded(block: Block | RemoteBlock) -> Block:
    """Return the block itself, wherever it is."""
    return block.load() if isinstance(block, RemoteBlock) else block
