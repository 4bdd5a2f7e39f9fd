"""Messages as frames: a header in JSON, and each array as its bytes. Nothing is pickled."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train.data.block import Block, as_tensor, flat_bytes

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
"""What can travel, by name."""
PIECE = 2**20
"""The most bytes of a frame: memory of this size serves again, larger is got from the system each time."""

Described: TypeAlias = "list[tuple[str, list[int]]]"
"""The dtype and shape of each array of a message, as its header has them."""


class WireError(ValueError):
    """A message is not what it should be."""


def pack(header: dict[str, Any], arrays: Sequence[Block] = ()) -> list[Any]:
    """Return the frames of a message; those of arrays share their memory."""
    described, frames = pack_arrays(arrays)
    return [pack_header(header, described), *frames]


def pack_header(header: dict[str, Any], described: Described) -> bytes:
    """Return the first frame of a message."""
    return json.dumps({**header, "arrays": described}).encode()


def pack_arrays(arrays: Sequence[Block]) -> tuple[Described, list[memoryview]]:
    """Return what the header says of arrays, and their frames, which share their memory."""
    tensors = [as_tensor(array).detach().cpu().resolve_conj().resolve_neg().contiguous() for array in arrays]
    described = [(_name(tensor.dtype), list(tensor.shape)) for tensor in tensors]
    return described, [piece for tensor in tensors for piece in _pieces(tensor)]


def _name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise TypeError(f"arrays of {dtype} cannot be sent; convert them to one of {', '.join(_DTYPES)}")
    return name


def _pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    data = _bytes(tensor)
    for start in range(0, len(data) or 1, PIECE):
        yield data[start : start + PIECE]


def _bytes(tensor: torch.Tensor) -> memoryview:
    if not tensor.numel():
        return memoryview(b"")
    return flat_bytes(tensor).numpy().data


@dataclass(frozen=True)
class Received:
    """An array of a message, in one or more pieces."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: Sequence[memoryview]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def tensor(self, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Return one piece as it is, and several put together: in the memory given, or in new memory."""
        if not self.size:
            return torch.empty(self.shape, dtype=self.dtype)
        if len(self.pieces) == 1:
            return torch.frombuffer(self.pieces[0], dtype=self.dtype).reshape(self.shape)
        # numpy has the system give large memory in large pages, which takes a quarter of the time.
        whole = np.empty(self.size, np.uint8) if memory is None else flat_bytes(memory).numpy()
        start = 0
        for piece in self.pieces:
            whole[start : start + piece.nbytes] = np.frombuffer(piece, np.uint8)
            start += piece.nbytes
        return torch.from_numpy(whole).view(self.dtype).reshape(self.shape)


def unpack(frames: Sequence[Any]) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return the header and the arrays, which may share the frames' memory; ``WireError`` for other frames."""
    header, arrays = unpack_lazily(frames)
    return header, [array.tensor() for array in arrays]


def unpack_lazily(frames: Sequence[Any]) -> tuple[dict[str, Any], list[Received]]:
    """Return the header and the arrays as they came, after all checks: putting them together is left to do."""
    try:
        header = dict(json.loads(bytes(_buffer(frames[0]))))
        described = header.pop("arrays")
        left = deque(_buffer(frame) for frame in frames[1:])
        arrays = [_received(name, shape, left) for name, shape in described if left]
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise error if isinstance(error, WireError) else WireError(f"no message: {error}") from error
    if left or len(arrays) != len(described):
        raise WireError(f"{len(described)} arrays are announced, {len(arrays)} came, and {len(left)} other frames")
    return header, arrays


def array_sizes(header: bytes) -> list[int]:
    """Return the bytes of each array that a header announces; raise ``WireError`` for what is no header."""
    try:
        return [_size(name, shape) for name, shape in json.loads(header)["arrays"]]
    except (ValueError, TypeError, LookupError, RuntimeError) as error:
        raise WireError(f"no message: {error}") from error


def _size(name: str, shape: list[int]) -> int:
    dtype = _DTYPES[name]
    return torch.empty(shape, dtype=dtype, device="meta").numel() * dtype.itemsize  # refuses what is no shape


def _received(name: str, shape: list[int], left: deque[memoryview]) -> Received:
    dtype = _DTYPES[name]
    tensor = torch.empty(shape, dtype=dtype, device="meta")  # refuses what is no shape
    size, pieces = tensor.numel() * dtype.itemsize, [left.popleft()]
    came = pieces[0].nbytes
    while came < size and left:
        pieces.append(left.popleft())
        came += pieces[-1].nbytes
    if came != size:
        raise WireError(f"an array of {name} {shape} has {size} bytes, {came} came")
    return Received(dtype, tuple(tensor.shape), pieces)


def _buffer(frame: Any) -> memoryview:
    """Return the memory of a frame of ZeroMQ's, or of bytes."""
    return memoryview(frame.buffer if hasattr(frame, "buffer") else frame)
