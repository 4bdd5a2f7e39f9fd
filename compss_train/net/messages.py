"""Messages as frames: a header in JSON, and the bytes of each array. Nothing is pickled.

Arrays of numpy are sent without torch; only tensors need it, and what is received as one.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from compss_train.data.block import Block

_ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""The dtypes that can be sent, and the bytes of an item."""
_NAMES = {np.dtype(name): name for name in _ITEM_SIZES if name != "bfloat16"}
"""The names of those that numpy has."""
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
        if isinstance(array, np.ndarray):
            name, data = _array_bytes(array)
        else:
            name, data = _tensor_bytes(array)
        descriptions.append((name, list(array.shape)))
        frames += [data[start : start + PIECE] for start in range(0, len(data) or 1, PIECE)]
    return descriptions, frames


def _array_bytes(array: NDArray[Any]) -> tuple[str, memoryview]:
    """Return the name of an array's dtype, and its bytes."""
    name = _NAMES.get(array.dtype)
    if name is None:
        raise _unsendable(str(array.dtype))
    return name, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _tensor_bytes(block: Any) -> tuple[str, memoryview]:
    """Return the name of a tensor's dtype, and its bytes."""
    from compss_train.data.block_bytes import flat_bytes

    tensor = block.detach().cpu().resolve_conj().resolve_neg().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _ITEM_SIZES:
        raise _unsendable(str(tensor.dtype))
    return name, flat_bytes(tensor).numpy().data if tensor.numel() else memoryview(b"")


def _unsendable(dtype: str) -> TypeError:
    return TypeError(
        f"arrays of {dtype} cannot be sent; convert them to one of {', '.join(_ITEM_SIZES)}"
    )


@dataclass(slots=True)
class ReceivedArray:
    """An array of a message, in one or more pieces."""

    dtype_name: str
    shape: tuple[int, ...]
    pieces: Sequence[memoryview]
    size: int
    """Size in bytes."""

    @property
    def row_layout(self) -> tuple[str, tuple[int, ...]]:
        """What arrays whose rows are joined have in common."""
        return self.dtype_name, self.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in torch."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype_name)
        return dtype

    def tensor(self, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Return the array: one piece usually without a copy, several copied to ``memory``.

        By default ``memory`` is new.
        """
        import torch

        from compss_train.data.block_bytes import flat_bytes

        dtype = self.dtype
        if not self.size:
            return torch.empty(self.shape, dtype=dtype)
        if len(self.pieces) == 1:
            data = torch.frombuffer(self.pieces[0], dtype=torch.uint8)
            # Small frames may start anywhere, which torch cannot read.
            if data.data_ptr() % dtype.itemsize:
                data = data.clone()
            return data.view(dtype).reshape(self.shape)
        # numpy requests huge pages for large memory, which takes a quarter of the time.
        joined = np.empty(self.size, np.uint8) if memory is None else flat_bytes(memory).numpy()
        start = 0
        for piece in self.pieces:
            joined[start : start + piece.nbytes] = np.frombuffer(piece, np.uint8)
            start += piece.nbytes
        return torch.from_numpy(joined).view(dtype).reshape(self.shape)

    def as_row(self) -> ReceivedArray:
        """Return an array whose only row is this one; it shares the memory."""
        return ReceivedArray(self.dtype_name, (1, *self.shape), self.pieces, self.size)

    def rows_from(self, start: int) -> ReceivedArray:
        """Return the array without its first rows; it shares the memory."""
        rows, *shape = self.shape
        pieces = deque(self.pieces)
        skipped = self.size // rows * start
        size = self.size - skipped
        while skipped and skipped >= len(pieces[0]):
            skipped -= len(pieces.popleft())
        if skipped:
            pieces[0] = pieces[0][skipped:]
        return ReceivedArray(self.dtype_name, (rows - start, *shape), pieces, size)


def joined(arrays: Sequence[ReceivedArray]) -> torch.Tensor:
    """Return the rows of arrays, one after another; a single array usually without a copy.

    The rows have one dtype and one shape.
    """
    import torch

    first = arrays[0]
    if len(arrays) == 1:
        return first.tensor()
    shape = (sum([array.shape[0] for array in arrays]), *first.shape[1:])
    data = bytearray().join([piece for array in arrays for piece in array.pieces])
    if not data:
        return torch.empty(shape, dtype=first.dtype)
    return torch.frombuffer(data, dtype=first.dtype).reshape(shape)


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
    size = _checked_size(name, shape)
    pieces = [remaining.popleft()]
    received = pieces[0].nbytes
    while received < size and remaining:
        pieces.append(remaining.popleft())
        received += pieces[-1].nbytes
    if received != size:
        raise MessageError(f"an array of {name} {shape} has {size} bytes, but {received} arrived")
    return ReceivedArray(name, tuple(shape), pieces, size)


def array_at(memory: memoryview, start: int, name: str, shape: list[int]) -> ReceivedArray:
    """Return an array that lies in memory; raise ``MessageError`` if it is not within it."""
    size = _checked_size(name, shape)
    if type(start) is not int or not 0 <= start <= len(memory) - size:
        raise MessageError(
            f"an array of {name} {shape} has {size} bytes, which do not lie at {start!r} in a "
            f"memory of {len(memory)} bytes"
        )
    return ReceivedArray(name, tuple(shape), [memory[start : start + size]], size)


def _checked_size(name: str, shape: list[int]) -> int:
    """Return the size of an array in bytes; raise ``MessageError`` for a malformed shape."""
    item_size = _ITEM_SIZES[name]
    if len(shape) > _MAX_DIMENSIONS:
        raise MessageError(f"an array of {len(shape)} dimensions; the maximum is {_MAX_DIMENSIONS}")
    if not all(type(length) is int and length >= 0 for length in shape):
        raise MessageError(f"an array of shape {shape}; give a list of integers of at least 0")
    return math.prod(shape) * item_size
