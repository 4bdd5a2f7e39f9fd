"""Tensors as a safetensors file that is written directly, which the library of that name cannot do."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

import torch

from compss_train.checkpoints.direct import DirectFile
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
