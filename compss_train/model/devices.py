"""Devices by name: the CPU and GPUs, and copies of batches to them."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

import torch

CPU = "cpu"


def gpu(number: int | None = None) -> str:
    """Return the name of a GPU, by default the current one."""
    return "cuda" if number is None else f"cuda:{number}"


def is_gpu(device: str) -> bool:
    """Return whether a device is a GPU."""
    return device.startswith("cuda")


Bounds: TypeAlias = tuple[int, int]
"""Start and stop of a batch within the samples of a pass."""

_PIECE_BYTES = 2**23
"""Bytes that go to a GPU at a time: many small batches in one copy, as each copy costs tens of microseconds."""


def to_device(columns: Sequence[torch.Tensor], device: str) -> tuple[torch.Tensor, ...]:
    """Return columns on the device; copies to a GPU continue after the return, from pinned memory.

    torch's allocators reuse the pinned memory when a copy has ended, and the GPU's when its use has ended.
    """
    if not is_gpu(device):
        return tuple(part.to(device) for part in columns)
    return tuple(part.pin_memory().to(device, non_blocking=True) for part in columns)


def pieces(bounds: Sequence[Bounds], rows: Sequence[torch.Tensor], device: str) -> Iterator[list[Bounds]]:
    """Group consecutive batches into pieces that go to a GPU together; for a CPU each batch is one."""
    if not is_gpu(device):
        for each in bounds:
            yield [each]
        return
    sample_bytes = sum(part[:1].numel() * part.element_size() for part in rows)
    samples = max(1, _PIECE_BYTES // max(1, sample_bytes))
    for _, group in groupby(bounds, lambda each: each[0] // samples):
        yield list(group)
