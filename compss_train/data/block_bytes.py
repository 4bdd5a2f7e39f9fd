"""Bytes of blocks: rows as bytes, which are the fastest to copy, and checksums."""

import math
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.data.block import Block, as_tensor
from compss_train.data.ragged import Ragged, join


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor as a flat tensor that shares its memory."""
    # A dimension of one element may have any stride and still count as contiguous.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def rows_of_bytes(block: Block) -> NDArray[np.uint8]:
    """Return the rows as bytes, with shape (rows, bytes a row); a contiguous block is not copied.

    Copying rows of bytes is faster than copying rows of other dtypes with torch or numpy.
    """
    if isinstance(block, Ragged):
        raise TypeError(
            "sequences of different lengths have no rows of one size; pad them for this"
        )
    width = math.prod(block.shape[1:])
    if isinstance(block, torch.Tensor):
        rows = block.reshape(len(block), width).contiguous()
        if rows.stride(1) != 1:  # a single element counts as contiguous with any strides
            rows = rows.clone(memory_format=torch.contiguous_format)
        tensor_bytes: NDArray[np.uint8] = rows.view(torch.uint8).numpy()
        return tensor_bytes
    return np.ascontiguousarray(block).reshape(len(block), width).view(np.uint8)


def rows_as_items(block: Block) -> NDArray[np.void]:
    """Return a flat array with an item a row: the fastest for indexed copies.

    It shares the memory of a contiguous block.
    """
    is_contiguous = isinstance(block, np.ndarray) and block.flags.c_contiguous
    rows: Any = block if is_contiguous else rows_of_bytes(block)
    width = rows.nbytes // (len(rows) or 1)
    return rows.reshape(-1).view(_item_dtype(width)) if width else np.empty(len(rows), "V1")


@cache  # making it takes a tenth of the time of a put
def _item_dtype(width: int) -> np.dtype[np.void]:
    return np.dtype((np.void, width))


def gather(samples: NDArray[Any], starts: Sequence[int], blocks: Sequence[Block]) -> torch.Tensor:
    """Return samples by number from consecutive blocks that begin at ``starts``.

    Rows are copied as bytes, block by block in ascending order, and permuted at the end: many small
    indexing operations of torch cost far more.
    """
    order = np.argsort(samples, kind="stable")
    ordered = samples[order]
    cuts = pairwise(np.searchsorted(ordered, [*starts, starts[-1] + len(blocks[-1])]).tolist())
    taken: list[tuple[Any, NDArray[Any], slice]] = [
        (block, ordered[low:high] - start, slice(low, high))
        for block, start, (low, high) in zip(blocks, starts, cuts, strict=True)
        if low < high
    ]
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    if isinstance(blocks[0], Ragged):
        parts = [block.index_select(0, torch.from_numpy(rows)) for block, rows, _ in taken]
        return join(parts).index_select(0, torch.from_numpy(places))  # type: ignore[return-value]
    collected = np.empty((len(samples), rows_of_bytes(blocks[0]).shape[1]), np.uint8)
    for block, rows, place in taken:
        np.take(rows_of_bytes(block), rows, axis=0, out=collected[place], mode="clip")
    ordered_bytes = torch.from_numpy(collected).index_select(0, torch.from_numpy(places))
    first = as_tensor(blocks[0][:1])
    return ordered_bytes.view(first.dtype).view(len(samples), *first.shape[1:])


def checksum(blocks: Iterable[Block]) -> int:
    """Return a checksum of all bytes of these blocks."""
    checksum_so_far = 0
    for block in blocks:
        checksum_so_far = zlib.crc32(rows_of_bytes(block).data, checksum_so_far)
    return checksum_so_far
