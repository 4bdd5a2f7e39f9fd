"""One block: an array or tensor whose rows are samples."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Block: TypeAlias = "NDArray[Any] | torch.Tensor"
DType: TypeAlias = "np.dtype[Any] | torch.dtype"


def as_block(value: object) -> Block:
    """Return ``value`` as a block: tensors on the CPU and detached, anything else as a numpy array.

    Raises ``TypeError`` for a dtype that torch cannot hold and ``ValueError`` where there are no rows.
    """
    block = value.detach().cpu() if isinstance(value, torch.Tensor) else np.asanyarray(value)
    if block.ndim == 0:
        raise ValueError(f"a block needs a first dimension of samples, this value is a scalar: {value!r}")
    if isinstance(block, np.ndarray):
        check_dtype(block.dtype)
    return block


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise ``TypeError`` for a dtype that torch cannot hold."""
    try:
        torch.from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"torch cannot hold arrays of dtype {dtype}; convert them to numbers or booleans in native byte order"
        ) from error


def as_tensor(block: Block) -> torch.Tensor:
    """Return the block as a tensor that shares its memory, or a copy where the memory is read-only."""
    return block if isinstance(block, torch.Tensor) else torch.from_numpy(_writable(block))


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    # torch shares memory with writable arrays only: copy a read-only one rather than hand out a way around it.
    plain = np.asarray(array)
    return plain if plain.flags.writeable and min(plain.strides, default=0) >= 0 else np.array(plain)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor as a flat one that shares its memory."""
    # A dimension of one element may have any stride and still count as contiguous.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def rows_of_bytes(block: Block) -> NDArray[np.uint8]:
    """Return the rows as bytes, shape (rows, bytes a row), sharing memory with a block that is contiguous.

    Rows of bytes are copied a good deal faster than torch and numpy copy rows of their own dtypes.
    """
    width = math.prod(block.shape[1:])
    if isinstance(block, torch.Tensor):
        rows = block.reshape(len(block), width).contiguous()
        if rows.stride(1) != 1:  # a single element is contiguous whatever its strides, but no view of bytes
            rows = rows.clone(memory_format=torch.contiguous_format)
        plain: NDArray[np.uint8] = rows.view(torch.uint8).numpy()
        return plain
    return np.ascontiguousarray(block).reshape(len(block), width).view(np.uint8)


def rows_as_items(block: Block) -> NDArray[np.void]:
    """Return each row as one item of a flat array that shares the block's memory: the fastest to copy by number."""
    rows = rows_of_bytes(block)
    return rows.view(np.dtype((np.void, rows.shape[1])))[:, 0] if rows.shape[1] else np.empty(len(rows), "V1")


def own_copy(block: Block) -> Block:
    """Return a contiguous copy; a memory-mapped array is returned as it is, being a file's already."""
    if isinstance(block, np.memmap):
        return block
    if isinstance(block, torch.Tensor):
        return block.clone(memory_format=torch.contiguous_format)
    copy: NDArray[Any] = torch.empty(block.shape, dtype=as_tensor(block[:0]).dtype).numpy()
    np.copyto(copy, block)
    return copy


def concatenate(blocks: list[Block]) -> Block:
    """Return the blocks' rows one after another, as a tensor where the first block is one."""
    if isinstance(blocks[0], torch.Tensor):
        return torch.cat([as_tensor(block) for block in blocks])
    return np.concatenate([np.asarray(block) for block in blocks])


Description = tuple[DType, tuple[int, ...]]
"""A block's dtype and shape."""


class RemoteBlock(ABC):
    """A block that some engine's tasks can read and this process knows the dtype and shape of only."""

    home: ClassVar[str]
    """Name of the engine that takes it as it is; any other gets what ``load`` returns."""
    future: object = None
    """The object that stands for the block in programs of PyCOMPSs; ``None`` where it is not PyCOMPSs's."""

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


AnyBlock: TypeAlias = "Block | RemoteBlock"


def describe(block: object) -> Description:
    """Return the dtype and shape of a block; the task that looks at one where it is."""
    known = as_block(block)
    return known.dtype, tuple(known.shape)


def loaded(block: Block | RemoteBlock) -> Block:
    """Return the block itself, wherever it is."""
    return block.load() if isinstance(block, RemoteBlock) else block
