"""Tensors as a safetensors file that is written directly, which the library of that name cannot do."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Self

import torch

from compss_train.data.block import flat_bytes

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What the types of tensors are called in the file; others cannot be in a checkpoint."""


def save(tensors: Mapping[str, torch.Tensor], path: Path) -> str:
    """Write contiguous tensors of the CPU to a new file, and to the disk; return its SHA-256.

    Raises ``OSError`` where it cannot be written. Source of the layout:
    https://github.com/huggingface/safetensors#format.
    """
    contents = {name: flat_bytes(tensor).numpy().data for name, tensor in tensors.items()}
    ordered = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so each is aligned
    ends = list(accumulate(len(contents[name]) for name in ordered))
    with DirectFile(path) as file:
        file.write(_head({name: (tensors[name], end) for name, end in zip(ordered, ends, strict=True)}))
        for name in ordered:
            file.write(contents[name])
        return file.finish()


def _head(tensors: Mapping[str, tuple[torch.Tensor, int]]) -> memoryview:
    """Return what the file begins with: each tensor's type, shape and place, and where they begin."""
    places = {
        name: {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end - tensor.nbytes, end],
        }
        for name, (tensor, end) in tensors.items()
    }
    text = json.dumps(places, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return memoryview(struct.pack("<Q", len(text)) + text)


CHUNK = 2**20
"""Bytes written at a time."""


class DirectFile:
    """Writes a file with its checksum, and to the disk.

    Finding memory for 20 MB of a file takes the system longer than copying them. So they go from one small buffer,
    with ``O_DIRECT``, where the system and the file system have that; elsewhere as any file's.

    Raises ``OSError`` where it cannot be written, and where it is there already.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._buffer = memoryview(mmap.mmap(-1, CHUNK))  # begins at a page, as direct writes must
        self._filled = 0
        self._sha256 = hashlib.sha256()
        self._direct = False
        self._set_direct(True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, content: memoryview) -> None:
        """Add bytes."""
        self._sha256.update(content)
        while content:
            part = content[: CHUNK - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            content = content[len(part) :]
            if self._filled == CHUNK:
                self._flush(CHUNK)

    def finish(self) -> str:
        """Have the disk hold it all; return its SHA-256, in hexadecimal digits."""
        self._flush(self._filled // mmap.PAGESIZE * mmap.PAGESIZE)
        self._flush(self._filled)  # apart, as the system may write no parts of pages directly
        os.fsync(self._file.fileno())
        return self._sha256.hexdigest()

    def _flush(self, size: int) -> None:
        """Write the first bytes of the buffer; the others become its first."""
        left = self._buffer[:size]
        while left:
            left = left[self._written(left) :]
        self._buffer[: self._filled - size] = self._buffer[size : self._filled]
        self._filled -= size

    def _written(self, content: memoryview) -> int:
        """Write some of it; return how many bytes."""
        try:
            return self._file.write(content)
        except OSError:
            if not self._direct:
                raise
        self._set_direct(False)  # this file system wants other sizes; other errors come again
        return self._file.write(content)

    def _set_direct(self, direct: bool) -> None:
        if not hasattr(os, "O_DIRECT"):
            return
        import fcntl  # only where it is

        flags = fcntl.fcntl(self._file, fcntl.F_GETFL) & ~os.O_DIRECT
        self._direct = False
        with suppress(OSError):  # where the file system has no such writes
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | (os.O_DIRECT if direct else 0))
            self._direct = direct
