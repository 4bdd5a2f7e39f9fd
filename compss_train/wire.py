"""Messages as frames: a header in JSON, and each array as its bytes. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from compss_train.data.block import Block, as_tensor

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
"""What can travel, by name."""


class WireError(ValueError):
    """A message is not what it should be."""


def pack(header: dict[str, Any], arrays: Sequence[Block] = ()) -> list[Any]:
    """Return the frames of a message; those of arrays share their memory."""
    tensors = [as_tensor(array).detach().cpu().contiguous() for array in arrays]
    described = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in tensors]
    return [json.dumps({**header, "arrays": described}).encode(), *(_bytes(tensor) for tensor in tensors)]


def _bytes(tensor: torch.Tensor) -> memoryview:
    if not tensor.numel():
        return memoryview(b"")
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def unpack(frames: Sequence[Any]) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return the header and the arrays, which share the frames' memory; raise ``WireError`` for other frames."""
    try:
        header = json.loads(bytes(_buffer(frames[0])))
        described = header.pop("arrays")
        if len(described) != len(frames) - 1:
            raise WireError(f"{len(described)} arrays are announced, {len(frames) - 1} came")
        return header, [_tensor(name, shape, f) for (name, shape), f in zip(described, frames[1:], strict=True)]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise error if isinstance(error, WireError) else WireError(f"no message: {error}") from error


def array_sizes(header: bytes) -> list[int]:
    """Return the bytes of each array that a header announces; raise ``WireError`` for what is no header."""
    try:
        return [_size(name, shape) for name, shape in json.loads(header)["arrays"]]
    except (ValueError, TypeError, LookupError) as error:
        raise WireError(f"no message: {error}") from error


def _size(name: str, shape: list[int]) -> int:
    if min(shape, default=0) < 0:
        raise WireError(f"an array of shape {shape}")
    return int(np.prod(shape, dtype=np.int64)) * _DTYPES[name].itemsize


def _tensor(name: str, shape: list[int], frame: Any) -> torch.Tensor:
    dtype, size, data = _DTYPES[name], _size(name, shape), _buffer(frame)
    if data.nbytes != size:
        raise WireError(f"an array of {name} {shape} has {size} bytes, {data.nbytes} came")
    return torch.frombuffer(data, dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


def _buffer(frame: Any) -> memoryview:
    """Return the memory of a frame of ZeroMQ's, or of bytes."""
    return memoryview(frame.buffer if hasattr(frame, "buffer") else frame)
