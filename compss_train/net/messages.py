"""Messages as frames: a header in JSON, and the bytes of each array. Nothing is pickled."""

import json
import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train.data.block import Block, as_tensor
from compss_train.data.block_bytes import flat_bytes

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.complex64,
        torch.complex128,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
"""The dtypes that can be sent, by name."""
_NAMES: dict[Any, str] = {
    **{dtype: name for name, dtype in _DTYPES.items()},
    **{np.dtype(name): name for name in _DTYPES if name != "bfloat16"},
}
"""Their names, which take 2 µs to make."""
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
"""Writes a header, without spaces."""

PIECE = 2**20
"""Maximum size of a frame in bytes, also of headers. Only memory of this size is reused."""
MAX_TEXT = 2**15
"""Maximum length of a text that quotes what others sent, in characters.

In JSON each has up to 12 bytes, so that a header has room for two such texts.
"""
_MAX_DIMENSIONS = 64
"""The most dimensions of an array in numpy and torch; arrays with more can only be received."""

Header: TypeAlias = dict[str, Any]
"""What a message says, in JSON."""
ArrayDescriptions: TypeAlias = list[tuple[str, list[int]]]
"""The dtype and shape of each array of a message, as in its header."""


class MessageError(ValueError):
    """A message that was received is malformed."""


@contextmanager
def parsing() -> Iterator[None]:
    """Raise whatever goes wrong while a received message is read as ``MessageError``."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MessageError):
            raise
        raise MessageError(f"malformed message: {type(error).__name__}: {error}") from error


def shortened(text: str) -> str:
    """Return a text that each header has room for and can be printed; long ones lose their middle.

    What clients send may be of any length, and have lone surrogates, which cannot be encoded: they
    are escaped.
    """
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 4]} [...] {text[-MAX_TEXT // 2 :]}"
    return text.encode(errors="backslashreplace").decode()


def pack(header: Header, arrays: Sequence[Block] = ()) -> list[Any]:
    """Return the frames of a message; those of arrays share the arrays' memory."""
    descriptions, frames = pack_arrays(arrays)
    return [pack_header(header, descriptions), *frames]


def pack_header(header: Header, descriptions: ArrayDescriptions) -> bytes:
    """Return the first frame of a message; raise ``ValueError`` if it is too large."""
    frame = _ENCODE({**header, "arrays": descriptions}).encode()
    if len(frame) > PIECE:
        raise ValueError(
            f"a message with {len(descriptions):,} arrays, whose header has {len(frame):,} "
            f"bytes; the maximum is {PIECE:,}: give fewer arrays, and shorter keys and texts"
        )
    return frame


def pack_arrays(arrays: Sequence[Block]) -> tuple[ArrayDescriptions, list[memoryview]]:
    """Return the descriptions of arrays, and their frames, which share the arrays' memory.

    Raises ``TypeError`` for a dtype that cannot be sent.
    """
    descriptions: ArrayDescriptions = []
    frames: list[memoryview] = []
    for array in arrays:
        name = _NAMES.get(array.dtype) or str(array.dtype)
        if isinstance(array, np.ndarray) and array.flags.c_contiguous and name in _DTYPES:
            data = array.reshape(-1).view(np.uint8).data  # in a fifth of the time
        else:
            tensor = as_tensor(array).detach().cpu().resolve_conj().resolve_neg().contiguous()
            name = _NAMES.get(tensor.dtype, "")
            data = flat_bytes(tensor).numpy().data if tensor.numel() else memoryview(b"")
            if not name:
                raise TypeError(
                    f"arrays of {tensor.dtype} cannot be sent; convert them to one of "
                    f"{', '.join(_DTYPES)}"
                )
        descriptions.append((name, list(array.shape)))
        frames += [data[start : start + PIECE] for start in range(0, len(data) or 1, PIECE)]
    return descriptions, frames


@dataclass(slots=True)
class ReceivedArray:
    """An array of a message, in one or more pieces."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: Sequence[memoryview]
    size: int
    """Size in bytes."""

    @property
    def layout(self) -> tuple[torch.dtype, tuple[int, ...]]:
        """What arrays that are stacked have in common."""
        return self.dtype, self.shape

    def tensor(self, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Return the array: one piece usually without a copy, several copied to ``memory``.

        By default ``memory`` is new.
        """
        if not self.size:
            return torch.empty(self.shape, dtype=self.dtype)
        if len(self.pieces) == 1:
            data = torch.frombuffer(self.pieces[0], dtype=torch.uint8)
            # Small frames may start anywhere, which torch cannot read.
            if data.data_ptr() % self.dtype.itemsize:
                data = data.clone()
            return data.view(self.dtype).reshape(self.shape)
        # numpy requests huge pages for large memory, which takes a quarter of the time.
        joined = np.empty(self.size, np.uint8) if memory is None else flat_bytes(memory).numpy()
        start = 0
        for piece in self.pieces:
            joined[start : start + piece.nbytes] = np.frombuffer(piece, np.uint8)
            start += piece.nbytes
        return torch.from_numpy(joined).view(self.dtype).reshape(self.shape)


def stacked(arrays: Sequence[ReceivedArray]) -> torch.Tensor:
    """Return arrays of one layout as the rows of a new tensor."""
    shape = (len(arrays), *arrays[0].shape)
    dtype = arrays[0].dtype
    data = bytearray().join([piece for array in arrays for piece in array.pieces])
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


Message: TypeAlias = tuple[Header, list[ReceivedArray]]
"""A message as it was received."""


def unpack(frames: Sequence[Any]) -> Message:
    """Return the header and the arrays in pieces, which share the frames' memory.

    Raises ``MessageError`` for malformed frames.
    """
    first, *pieces = [memoryview(getattr(frame, "buffer", frame)) for frame in frames]
    with parsing():
        header = json.loads(bytes(first))
        if not isinstance(header, dict):
            raise MessageError(f"a header is a JSON object, not a {type(header).__name__}")
        descriptions = header.pop("arrays")
        remaining = deque(pieces)
        arrays = [_received(name, shape, remaining) for name, shape in descriptions if remaining]
    if remaining or len(arrays) != len(descriptions):
        raise MessageError(
            f"the header announces {len(descriptions)} arrays, but {len(arrays)} arrived, "
            f"and {len(remaining)} other frames"
        )
    return header, arrays


def _received(name: str, shape: list[int], remaining: deque[memoryview]) -> ReceivedArray:
    dtype = _DTYPES[name]
    if len(shape) > _MAX_DIMENSIONS:
        raise MessageError(f"an array of {len(shape)} dimensions; the maximum is {_MAX_DIMENSIONS}")
    if not all(type(length) is int and length >= 0 for length in shape):
        raise MessageError(f"an array of shape {shape}; give a list of integers of at least 0")
    size = math.prod(shape) * dtype.itemsize
    pieces = [remaining.popleft()]
    received = pieces[0].nbytes
    while received < size and remaining:
        pieces.append(remaining.popleft())
        received += pieces[-1].nbytes
    if received != size:
        raise MessageError(f"an array of {name} {shape} has {size} bytes, but {received} arrived")
    return ReceivedArray(dtype, tuple(shape), pieces, size)
