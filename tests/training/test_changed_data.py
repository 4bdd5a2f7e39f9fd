"""Callbacks that change a data set during a fit, which workers read as it was at its start."""

import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from compss_train.callbacks import Callback
from tests.helpers.small_fits import X, Y, fit, trainer_of


class Scale:
    def __init__(self):
        self.by = 1.0
        self.offsets = [torch.zeros(6)]

    def __call__(self, x):
        return x * np.float32(self.by) + self.offsets[0].numpy()


class Scaled(Dataset):
    def __init__(self):
        self.transforms = [Scale()]
        self.opened = None
        self.noise = float("nan")

    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        self.opened = self.opened or open
        return self.transforms[0](X[number]), Y[number]


class Changing(Callback):
    """Calls a function with the data set after each round, or before it."""

    def __init__(self, dataset, change, hook="on_round_end"):
        self.dataset = dataset
        self.change = change
        setattr(self, hook, lambda *_: change(self.dataset))


def set_factor(dataset):
    dataset.transforms[0].by *= 2


def set_tensor(dataset):
    dataset.transforms[0].offsets[0] += 1


def set_object(dataset):
    dataset.transforms[0] = Scale()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (set_factor, "dataset.transforms[0].by"),
        (set_tensor, "dataset.transforms[0].offsets[0]"),
        (set_object, "dataset.transforms[0]"),
    ],
)
@pytest.mark.parametrize("hook", ["on_round_start", "on_round_end"])
def test_a_callback_that_changes_what_workers_read_is_named_once(change, name, hook):
    data = Scaled()
    with pytest.warns(UserWarning, match="worker processes read the data set as it was") as told:
        fit(trainer_of(), Changing(data, change, hook), data=(data,))
    assert len(told) == 1
    assert str(told[0].message).startswith(f"Changing changes {name}, but ")


def test_data_to_validate_on_are_named_as_such():
    data = Scaled()
    validation = Subset(data, range(9))
    with pytest.warns(UserWarning, match=r"changes validation dataset\.dataset\.transforms\[0\]"):
        fit(trainer_of(), Changing(data, set_factor), validation_data=validation)


def read(dataset):
    return dataset[0]


@pytest.mark.parametrize(
    ("change", "hook"),
    [(read, "on_round_end"), (set_factor, "on_fit_start"), (set_factor, "on_fit_end")],
)
def test_what_changes_nothing_in_the_fit_is_not_warned_of(change, hook):
    data = Scaled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(trainer_of(), Changing(data, change, hook), data=(data,))
