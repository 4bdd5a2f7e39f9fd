"""The random generators that a data set holds, besides those of torch, numpy and Python."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from compss_train._utils.object_walk import ObjectWalk

_GLOBAL = (
    getattr(random.random, "__self__", None),
    getattr(np.random.rand, "__self__", None),
    torch.default_generator,
)
"""The generators of the modules, which are seeded anyway."""


class _Search(ObjectWalk):
    def __init__(self) -> None:
        super().__init__()
        self.generators: dict[int, Any] = {}

    def sees(self, obj: Any) -> bool:
        is_numpy = isinstance(obj, np.random.Generator | np.random.RandomState)
        is_generator = is_numpy or isinstance(obj, torch.Generator | random.Random)
        if is_generator and not any(obj is generator for generator in _GLOBAL):
            self.generators[id(obj)] = obj
        return is_generator


def generators_in(value: Any) -> list[Any]:
    """Return the generators that an object holds, in the order in which they are met."""
    search = _Search()
    search.look_into(value)
    return [*search.generators.values()]


def seed_all(generators: Sequence[Any], seed: int) -> None:
    """Seed generators, each with another seed that follows from this one."""
    for number, generator in enumerate(generators):
        own_seed = int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint32)[0])
        if isinstance(generator, torch.Generator):
            generator.manual_seed(own_seed)
        elif isinstance(generator, np.random.Generator):
            bits: Any = generator.bit_generator
            bits.state = type(bits)(own_seed).state
        else:
            generator.seed(own_seed)
