"""A fingerprint tells data by the first and last row of each block, however these lie in memory."""

import numpy as np
import pytest
import torch

from compss_train import BlockedTensor
from compss_train.data.blocked import fingerprint

WHOLE = torch.arange(40, dtype=torch.int64).reshape(10, 4)
COLUMN = [3, 7, 11, 15, 19, 23, 27, 31, 35, 39]


def of(block):
    return fingerprint([BlockedTensor([[block]])])


@pytest.mark.parametrize("block", [WHOLE[:, 3], WHOLE.numpy()[:, 3], WHOLE.flip(1)[:, 0], np.array(COLUMN)])
def test_layouts_and_kinds_of_the_same_values_have_the_same(block):
    assert of(block) == of(torch.tensor(COLUMN))


@pytest.mark.parametrize(("row", "seen"), [(0, True), (9, True), (4, False)])
def test_the_ends_of_blocks_are_looked_at(row, seen):
    other = WHOLE.clone()
    other[row, 2] += 1
    assert (of(other) != of(WHOLE)) == seen


def test_blocks_without_width_and_in_bfloat16_have_one():
    assert of(torch.ones(3, 0)) == of(np.ones((3, 0)))
    assert of(torch.ones(3, 2).bfloat16()) != of(torch.zeros(3, 2).bfloat16())
