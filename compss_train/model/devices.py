"""Devices by name, the CPU and GPUs: copies of batches to them, and the state of the random generators on them.

The random state of a worker is an input of its task, so that the task gives the same bits anywhere.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self, TypeAlias

import numpy as np
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


@dataclass(frozen=True, slots=True)
class RandomState:
    """The states of the global random generators of torch, numpy and Python."""

    cpu: torch.Tensor
    numpy: dict[str, Any]
    python: tuple[Any, ...]
    cuda: torch.Tensor | None = None
    """The state of the worker's device if that is a GPU."""

    @classmethod
    def capture(cls, device: str) -> Self:
        """Return the current states."""
        numpy: dict[str, Any] = np.random.get_state(legacy=False)
        cuda = torch.cuda.get_rng_state(device) if is_gpu(device) else None
        return cls(torch.get_rng_state(), numpy, random.getstate(), cuda)

    def restore(self, device: str) -> None:
        """Set the generators to these states; the one of a GPU only if the device is a GPU."""
        torch.set_rng_state(self.cpu)
        np.random.set_state(self.numpy)
        random.setstate(self.python)
        if self.cuda is not None and is_gpu(device):
            torch.cuda.set_rng_state(self.cuda, device)

    def is_same(self, other: Self) -> bool:
        """Return whether all generators have the same states."""
        own, others = ([each.cpu, each.cuda, *each.numpy["state"].values()] for each in (self, other))
        return self.python == other.python and all(map(np.array_equal, own, others))


def seed_generators(seed: int, device: str) -> None:
    """Seed the generators of torch, numpy, Python and the device."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs that others use, too
    if is_gpu(device):
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def random_state(start: RandomState | int, device: str) -> Iterator[None]:
    """Set the random state to ``start``, a state or a seed, within the block, and restore the previous one.

    Otherwise the serial engine would change the random numbers of the caller.
    """
    previous = RandomState.capture(device)
    try:
        if isinstance(start, int):
            seed_generators(start, device)
        else:
            start.restore(device)
        yield
    finally:
        previous.restore(device)
