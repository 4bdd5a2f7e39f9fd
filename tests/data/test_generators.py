"""Random generators that a data set holds are found, and seeded by one number."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from compss_train.data.generators import generators_in, seed_all

KINDS = {
    "numpy": (lambda: np.random.default_rng(1), lambda generator: generator.random()),
    "Philox": (
        lambda: np.random.Generator(np.random.Philox(1)),
        lambda generator: generator.random(),
    ),
    "RandomState": (lambda: np.random.RandomState(1), lambda generator: generator.random()),
    "Python": (lambda: random.Random(1), lambda generator: generator.random()),
    "torch": (torch.Generator, lambda generator: torch.rand((), generator=generator).item()),
}


class Holder:
    def __init__(self, held):
        self.held = held


def in_transform(generator):
    return Holder([lambda x: x + generator.random()])


PLACES = {
    "attribute": Holder,
    "in a list": lambda generator: Holder({"a": [0, (generator,)]}),
    "variable": in_transform,
    "method": lambda generator: Holder(Holder(generator).__init__),
    "partial": lambda generator: partial(max, generator),
    "subset": lambda generator: Subset(Holder(generator), [0]),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_generators_are_found_once_wherever_they_are(kind, place):
    make, _ = KINDS[kind]
    generator = make()
    value = PLACES[place](generator)
    assert [held is generator for held in generators_in([value, np.ones(3), value])] == [True]


def test_global_generators_and_other_objects_are_not_found():
    assert generators_in([random.choice, np.random.normal, torch.default_generator, "text"]) == []
    assert generators_in([(value for value in ())]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_draws_follow_from_the_seed(kind):
    make, draw = KINDS[kind]
    first = [make(), make()]
    second = [make(), make()]
    draw(second[0])  # what was drawn before does not count
    drawn = []
    for seed in (3, 2**62, 3):
        seed_all(first, seed)
        seed_all(second, seed)
        ours = [draw(generator) for generator in first for _ in range(2)]
        assert ours == [draw(generator) for generator in second for _ in range(2)]
        drawn.append(ours)
    assert drawn[0] == drawn[2] != drawn[1]
    assert len({*drawn[0]}) == 4
