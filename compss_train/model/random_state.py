"""A worker's random state: part of a task's input, so that the same task gives the same bits anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class RandomState:
    """The states of the generators that training code draws from: torch's, numpy's and Python's global ones."""

    cpu: torch.Tensor
    numpy: dict[str, Any]
    python: tuple[Any, ...]
    cuda: torch.Tensor | None = None
    """State of the device that the worker uses, where that is a GPU."""

    @classmethod
    def now(cls, device: str) -> RandomState:
        """Return the current states."""
        cuda = torch.cuda.get_rng_state(device) if device.startswith("cuda") else None
        numpy: dict[str, Any] = np.random.get_state(legacy=False)
        return cls(torch.get_rng_state(), numpy, random.getstate(), cuda)

    def restore(self, device: str) -> None:
        """Make these the current states."""
        torch.set_rng_state(self.cpu)
        np.random.set_state(self.numpy)
        random.setstate(self.python)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)


def _seed(seed: int, device: str) -> None:
    # Not torch.manual_seed, which would seed every GPU, whoever uses it.
    torch.default_generator.manual_seed(seed)
    if device.startswith("cuda"):
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


@contextmanager
def random_state(start: RandomState | int, device: str) -> Iterator[None]:
    """Go on from ``start`` (a state, or a seed as for ``torch.manual_seed``), and put back what was before.

    Without putting it back, the serial engine would change the caller's random numbers.
    """
    before = RandomState.now(device)
    try:
        if isinstance(start, int):
            _seed(start, device)
            np.random.seed(start % 2**32)
            random.seed(start)
        else:
            start.restore(device)
        yield
    finally:
        before.restore(device)
