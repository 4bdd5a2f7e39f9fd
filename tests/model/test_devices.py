"""The random state of a worker travels between processes, and goes on with the same numbers."""

import pickle
import random
from itertools import product

import numpy as np
import pytest
import torch

from compss_train.model.devices import RandomState, random_state


def draws():
    """Draw from each generator; an odd number of normal variates leaves one in numpy's and Python's
    generators.
    """
    return [
        torch.rand(3).tolist(),
        np.random.normal(size=3).tolist(),
        [random.gauss(0, 1) for _ in range(3)],
    ]


OPERATIONS = {
    "nothing": lambda: None,
    "an integer": lambda: np.random.randint(2**31),
    "a normal variate": np.random.normal,
    "a seed": lambda: np.random.seed(7),
    "another generator": lambda: np.random.set_bit_generator(np.random.PCG64(3)),
}


@pytest.fixture
def own_generator():
    before = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(before)


@pytest.mark.parametrize("drawn", [0, 1])  # normal variates: numpy keeps one for later
@pytest.mark.parametrize(("first", "second"), [*product(OPERATIONS, OPERATIONS)])
def test_a_state_is_captured_whatever_the_one_before_was(own_generator, drawn, first, second):
    np.random.seed(5)
    np.random.normal(size=drawn)
    OPERATIONS[first]()
    before = RandomState.capture("cpu")
    OPERATIONS[second]()
    captured = RandomState.capture("cpu", before)
    np.testing.assert_equal(captured.numpy, np.random.get_state(legacy=False))
    if (
        "another generator" not in (first, second)
        and second == "nothing"
        and not captured.numpy["has_gauss"]
    ):
        assert captured.numpy is before.numpy


@pytest.mark.parametrize("drawn", [0, 1, 2])
def test_a_pickled_state_goes_on_with_the_same_numbers(drawn):
    with random_state(5, "cpu"):
        for _ in range(drawn):
            draws()
        state = RandomState.capture("cpu")
        expected = draws()
        back = pickle.loads(pickle.dumps(state))
        assert back.is_same(state)
        back.restore("cpu")
        assert draws() == expected
