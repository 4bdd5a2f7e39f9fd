"""Blocks: arrays, tensors or ``Ragged`` sequences whose rows are samples."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.data.ragged import Ragged, join
from compss_train.data.values import check_dtype, check_parts, check_values, shared_tensor, signed

Block: TypeAlias = NDArray[Any] | torch.Tensor | Ragged
DType: TypeAlias = np.dtype[Any] | torch.dtype


def as_block(value: object) -> Block:
    """Return a tensor as a block on the CPU, detached, and anything else as an array.

    Raises ``TypeError`` for a dtype that torch does not support, for masked arrays, for iterators,
    and for tensors that are sparse, nested, quantized or on the meta device; ``ValueError`` for a
    scalar, for samples of several shapes and for integers of 2**63 and more.
    """
    if isinstance(value, Ragged):
        return value
    check_values("a block", value)
    block: Block = value.detach().cpu() if isinstance(value, torch.Tensor) else _as_array(value)
    if block.ndim == 0:
        raise ValueError(
            f"a block needs a first dimension of samples, but this value is a scalar: {value!r}; "
            "give an array, a column as frame['label'], a list of samples as Samples(samples), "
            "or files as FileDataset('data.parquet', x=..., y=...)"
        )
    if isinstance(block, np.ndarray):
        check_dtype(block.dtype)
    return signed(block)


def _as_array(value: Any) -> NDArray[Any]:
    if isinstance(value, list | tuple):
        check_parts("a part of a block", value)
    try:
        array: NDArray[Any] = (
            np.asarray(value) if isinstance(value, np.ma.MaskedArray) else np.asanyarray(value)
        )
        if (
            isinstance(value, list | tuple)
            and array.dtype.kind == "f"
            and (np.abs(array) >= 2.0**63).any()
        ):
            # Numpy makes floats of integers of both signs.
            for item in np.asarray(value, object).flat:
                if isinstance(item, int) and not -(2**63) <= item < 2**63:
                    raise ValueError(
                        f"it holds {item}, and the largest integer of a tensor is 2**63 - 1"
                    )
        if array.dtype == object:
            _check_no_none(array.ravel())
        return array
    except (ValueError, RuntimeError) as error:
        _check_no_none(value)
        if isinstance(value, list) and all(
            isinstance(item, tuple) and len(item) == 2 for item in value
        ):
            raise ValueError(
                "this is a list of pairs (x, y): give Samples(pairs), or x and y apart"
            ) from error
        raise ValueError(
            f"cannot make an array of this {type(value).__name__}: {error}; all samples must "
            "have the same shape: pad or cut them, and give an array or a tensor; for samples that "
            "are no arrays, give a DataLoader or Samples(..., collate=...)"
        ) from error


def _check_no_none(values: Iterable[Any]) -> None:
    """Raise ``TypeError`` if ``None`` is among the values, as of samples without a target."""
    missing = [number for number, value in enumerate(values) if value is None]
    if missing:
        raise TypeError(
            f"it holds None {len(missing)} times, first in place {missing[0]}: leave these samples "
            "out; without any targets, leave out y"
        )


class MappedMemory(np.ndarray[Any, Any]):
    """Bytes of memory that processes share, on which an engine makes read-only arrays."""


def as_tensor(block: Block) -> torch.Tensor:
    """Return the block as a tensor that shares its memory.

    Read-only memory is copied, unless an engine mapped it.
    """
    if not isinstance(block, np.ndarray):
        return block  # type: ignore[return-value]  # Ragged has what is asked of tensors that are only cut
    # torch shares memory with writable arrays only. A tensor on read-only memory would make it
    # writable.
    plain = np.asarray(block)
    is_shared = (plain.flags.writeable or _is_mapped(plain)) and min(plain.strides, default=0) >= 0
    return shared_tensor(plain if is_shared else np.array(plain))


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray) and not isinstance(array, MappedMemory):
        array = array.base
    return isinstance(getattr(array, "obj", array), MappedMemory)  # a memoryview of it


def copy_block(block: Block) -> Block:
    """Return a contiguous copy, or a memory-mapped array itself: its data stay in the file."""
    if isinstance(block, np.memmap):
        return block
    if isinstance(block, Ragged):
        return block.clone()
    if isinstance(block, torch.Tensor):
        return block.clone(memory_format=torch.contiguous_format)
    copy: NDArray[Any] = torch.empty(block.shape, dtype=as_tensor(block[:0]).dtype).numpy()
    np.copyto(copy, block)
    return copy


def concatenate(blocks: Sequence[Block]) -> Block:
    """Return the blocks, one after another, as a block of the first one's kind."""
    if isinstance(blocks[0], Ragged):
        return join(blocks)
    if isinstance(blocks[0], torch.Tensor):
        return torch.cat([as_tensor(block) for block in blocks])
    return np.concatenate([np.asarray(block) for block in blocks])
