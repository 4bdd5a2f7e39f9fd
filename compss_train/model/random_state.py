"""Random state of a worker: an input of its task, so that the task gives the same bits anywhere."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from compss_train.model.devices import is_gpu


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
        """Set the generators to these states."""
        torch.set_rng_state(self.cpu)
        np.random.set_state(self.numpy)
        random.setstate(self.python)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)

    def is_same(self, other: Self) -> bool:
        """Return whether all generators have the same states."""
        pairs = ((self.cpu, other.cpu), (self.cuda, other.cuda))
        same = all(
            one is other if one is None or other is None else torch.equal(one, other) for one, other in pairs
        )
        own, others = self.numpy["state"], other.numpy["state"]
        return same and self.python == other.python and all(np.array_equal(own[key], others[key]) for key in own)


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
