import pickle

import numpy as np
import torch

from compss_train.engines.compss.perform import Packed


def test_a_value_comes_back_from_its_pickle():
    value = {"array": np.arange(6.0).reshape(2, 3), "tensor": torch.arange(4), "text": ["a", None]}
    back = pickle.loads(pickle.dumps(Packed.of(value), protocol=5)).value()
    np.testing.assert_array_equal(back["array"], value["array"])
    assert torch.equal(back["tensor"], value["tensor"])
    assert back["text"] == value["text"]
    assert back["array"].flags.writeable  # torch would copy it otherwise


def test_arrays_are_neither_copied_by_packing_nor_hidden_in_the_pickle():
    array = np.zeros(100_000)
    packed = Packed.of([array])
    assert len(packed.data) < 1000
    array[7] = 3
    assert packed.value()[0][7] == 3
    assert packed.copy().value()[0][7] == 3
    copy = packed.copy()
    array[7] = 4
    assert copy.value()[0][7] == 3


def test_each_is_an_object_of_its_own():
    assert Packed.of(1) is not Packed.of(1)


def test_an_update_in_place():
    packed = Packed.of(1)
    packed.become(Packed.of(2))
    assert packed.value() == 2
