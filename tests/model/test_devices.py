"""The random state of a worker travels between processes, and goes on with the same numbers."""

import pickle
import random

import numpy as np
import pytest
import torch

from compss_train.model.devices import RandomState, random_state


def draws():
    """Draw from each generator; an odd number of normal variates leaves one in numpy's and Python's generators."""
    return [torch.rand(3).tolist(), np.random.normal(size=3).tolist(), [random.gauss(0, 1) for _ in range(3)]]


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
