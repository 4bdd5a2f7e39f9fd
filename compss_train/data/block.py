"""Blocks: arrays or tensors whose rows are samples, and operations on one block."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.validation import check_dense
from compss_train.data.ragged import Ragged, as_ragged, gathered, join

Block: TypeAlias = NDArray[Any] | torch.Tensor
DType: TypeAlias = np.dtype[Any] | torch.dtype


def as_block(value: object) -> Block:
    """Return ``value`` as a block: a detached tensor on the CPU, or a numpy array for anything else.

    Raises ``TypeError`` for a dtype that torch does not support, for masked arrays, and for tensors that are
    sparse, nested, quantized or on the meta device; ``ValueError`` for a scalar and for samples of several shapes.
    """
    if isinstance(value, Ragged):
        return value  # type: ignore[return-value]  # has what blocks need where they are only cut and selected from
    if isinstance(value, torch.Tensor):
        check_dense("a block", value)
        block: Block = value.detach().cpu()
    else:
        block = _as_array(value)
    if block.ndim == 0:
        raise ValueError(f"a block needs a first dimension of samples, but this value is a scalar: {value!r}")
    if isinstance(block, np.ndarray):
        check_dtype(block.dtype)
    return block


def _as_array(value: Any) -> NDArray[Any]:
    if hasattr(value, "nnz") and hasattr(value, "toarray"):
        raise TypeError(f"a block is a {type(value).__name__}, which is sparse; give array.toarray()")
    if any(np.ma.is_masked(part) for part in (value if isinstance(value, list | tuple) else [value])):
        raise TypeError(
            "a block is a masked array, whose masked values would be trained on; give array.filled(value), or "
            "leave these samples out, or give them a sample_weight of 0"
        )
    try:
        return np.asarray(value) if isinstance(value, np.ma.MaskedArray) else np.asanyarray(value)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"cannot make an array of this {type(value).__name__}: {error}; all samples must have the same shape: "
            "pad or cut them, and give an array or a tensor"
        ) from error


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise ``TypeError`` for a dtype that torch does not support."""
    try:
        torch.from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"torch cannot hold arrays of dtype {dtype}; convert them to numbers or booleans in native byte order"
        ) from error


def as_tensor(block: Block) -> torch.Tensor:
    """Return the block as a tensor that shares its memory; read-only memory is copied."""
    if as_ragged(block) is not None:
        return block  # type: ignore[return-value]
    return block if isinstance(block, torch.Tensor) else torch.from_numpy(_writable(block))


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    # torch shares memory with writable arrays only. A tensor on read-only memory would make it writable.
    plain = np.asarray(array)
    return plain if plain.flags.writeable and min(plain.strides, default=0) >= 0 else np.array(plain)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor as a flat tensor that shares its memory."""
    # A dimension of one element may have any stride and still count as contiguous.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def rows_of_bytes(block: Block) -> NDArray[np.uint8]:
    """Return the rows as bytes, with shape (rows, bytes per row); a contiguous block shares its memory.

    Copying rows of bytes is faster than copying rows of other dtypes with torch or numpy.
    """
    if as_ragged(block) is not None:
        raise TypeError("sequences of different lengths have no rows of one size; pad them for this")
    width = math.prod(block.shape[1:])
    if isinstance(block, torch.Tensor):
        rows = block.reshape(len(block), width).contiguous()
        if rows.stride(1) != 1:  # a single element counts as contiguous with any strides
            rows = rows.clone(memory_format=torch.contiguous_format)
        plain: NDArray[np.uint8] = rows.view(torch.uint8).numpy()
        return plain
    return np.ascontiguousarray(block).reshape(len(block), width).view(np.uint8)


def rows_as_items(block: Block) -> NDArray[np.void]:
    """Return a flat array with one item per row that shares the block's memory: the fastest for indexed copies."""
    rows = block if isinstance(block, np.ndarray) and block.flags.c_contiguous else rows_of_bytes(block)
    width = rows.nbytes // (len(rows) or 1)
    return rows.reshape(-1).view(_item_dtype(width)) if width else np.empty(len(rows), "V1")


@cache
def _item_dtype(width: int) -> np.dtype[np.void]:
    return np.dtype((np.void, width))


def copy_block(block: Block) -> Block:
    """Return a contiguous copy; a memory-mapped array is returned unchanged, as its data stay in the file."""
    if isinstance(block, np.memmap):
        return block
    if (ragged := as_ragged(block)) is not None:
        return ragged.clone()  # type: ignore[return-value]
    if isinstance(block, torch.Tensor):
        return block.clone(memory_format=torch.contiguous_format)
    copy: NDArray[Any] = torch.empty(block.shape, dtype=as_tensor(block[:0]).dtype).numpy()
    np.copyto(copy, block)
    return copy


def concatenate(blocks: list[Block]) -> Block:
    """Return the blocks concatenated along the first dimension; the first block determines array or tensor."""
    if as_ragged(blocks[0]) is not None:
        return join(blocks)  # type: ignore[no-any-return]
    if isinstance(blocks[0], torch.Tensor):
        return torch.cat([as_tensor(block) for block in blocks])
    return np.concatenate([np.asarray(block) for block in blocks])


def gather(samples: NDArray[Any], starts: Sequence[int], blocks: Sequence[Block]) -> torch.Tensor:
    """Return samples by number from consecutive blocks that begin at ``starts``.

    Rows are copied as bytes, block by block in ascending order, and permuted at the end: many small indexing
    operations of torch cost far more.
    """
    if as_ragged(blocks[0]) is not None:
        return gathered(samples, starts, blocks)  # type: ignore[no-any-return]
    order = np.argsort(samples, kind="stable")
    ordered = samples[order]
    cuts = np.searchsorted(ordered, [*starts, starts[-1] + len(blocks[-1])]).tolist()
    collected = np.empty((len(samples), rows_of_bytes(blocks[0]).shape[1]), np.uint8)
    for block, start, (low, high) in zip(blocks, starts, pairwise(cuts), strict=True):
        if low < high:
            rows = rows_of_bytes(block)
            np.take(rows, ordered[low:high] - start, axis=0, out=collected[low:high], mode="clip")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    raw = torch.from_numpy(collected).index_select(0, torch.from_numpy(places))
    first = as_tensor(blocks[0][:1])
    return raw.view(first.dtype).view(len(samples), *first.shape[1:])


BlockDescription = tuple[DType, tuple[int, ...]]
"""A block's dtype and shape."""


class RemoteBlock(ABC):
    """A block in an engine's storage, of which this process has only the dtype and shape."""

    home: ClassVar[str]
    """Name of the engine whose tasks read it directly; other engines get the result of ``load``."""
    future: object = None
    """The PyCOMPSs future of the block; ``None`` for blocks of other engines."""

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape

    @abstractmethod
    def load(self) -> Block:
        """Load the block into this process's memory and return it."""

    @property
    def ndim(self) -> int:
        """Number of dimensions, including that of the samples."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]


AnyBlock: TypeAlias = Block | RemoteBlock


def describe(block: object) -> BlockDescription:
    """Return the dtype and shape of a block; runs as a task where the block is stored."""
    array = as_block(block)
    return array.dtype, tuple(array.shape)


def load_block(block: Block | RemoteBlock) -> Block:
    """Return the block, loaded into this process's memory if it is remote."""
    return block.load() if isinstance(block, RemoteBlock) else block
