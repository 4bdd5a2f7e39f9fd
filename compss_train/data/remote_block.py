"""``RemoteBlock``: a block in an engine's storage."""

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

from compss_train.data.block import Block, DType, as_block

BlockDescription = tuple[DType, tuple[int, ...]]
"""A block's dtype and shape."""


class RemoteBlock(ABC):
    """A block in an engine's storage; this process knows only its dtype and shape."""

    home: ClassVar[str]
    """Name of the engine whose tasks read the block itself; others get the result of ``load``."""
    future: object = None
    """The PyCOMPSs future of the block; ``None`` for blocks of other engines."""
    checksum: int | None = None
    """A checksum of its first and last row, if known."""

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape

    @abstractmethod
    def load(self) -> Block:
        """Load the block into this process's memory and return it."""

    def __len__(self) -> int:
        return self.shape[0]


AnyBlock: TypeAlias = Block | RemoteBlock


def is_future(value: object) -> bool:
    """Return whether an object is a placeholder of PyCOMPSs for a value that a task computes.

    Placeholders are objects of PyCOMPSs's classes for task results, and bare ``object()`` instances
    in a COLLECTION_OUT.
    """
    return type(value) is object or type(value).__module__.split(".")[0] == "pycompss"


def describe(block: object) -> BlockDescription:
    """Return the dtype and shape of a block; runs as a task where the block is stored."""
    array = as_block(block)
    return array.dtype, tuple(array.shape)


def load_block(block: AnyBlock) -> Block:
    """Return the block, loaded into this process's memory if it is remote."""
    return block.load() if isinstance(block, RemoteBlock) else block
