"""Inputs in memory that the program uses again keep their values."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from compss_train import InputSampler
from compss_train.online.chosen_inputs import ChosenInputs
from compss_train.online.inputs import Inputs


def one_array():
    value = np.zeros(2)
    for number in range(3):
        value[:] = number
        yield value


def one_dict():
    value = {"rates": [0.0], "name": "first"}
    for number in range(3):
        value["rates"][0] = float(number)
        yield value


class Repeating(InputSampler):
    """Returns the items of an iterator, and keeps the table."""

    def __init__(self, items):
        self.items = items
        self.table = None

    def next(self, table):
        self.table = table
        return next(self.items, None)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def first_number(value):
    return float(value["rates"][0] if isinstance(value, dict) else value[0])


@pytest.mark.parametrize("items", [one_array, one_dict])
def test_an_input_stays_what_it_was_when_it_was_drawn(items):
    inputs = Inputs(items())
    drawn = [inputs.next() for _ in range(3)]
    assert [(number, first_number(value)) for number, value in drawn] == [(0, 0), (1, 1), (2, 2)]

    sampler = Repeating(items())
    predictor = SimpleNamespace(renew=lambda: None, copies=[])
    chosen = ChosenInputs(sampler, predictor, lambda record: None)
    values = [chosen.next()[1] for _ in range(3)]
    assert [first_number(value) for value in values] == [0, 1, 2]
    assert [first_number(value) for value in sampler.table.inputs] == [0, 1, 2]


def test_an_input_that_cannot_be_copied_is_the_same():
    lock = threading.Lock()
    assert Inputs([lock]).next() == (0, lock)
