import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from compss_train import BlockedTensor, shuffle


@given(samples=st.integers(1, 60), blocks=st.integers(1, 8), seed=st.integers(0, 99))
def test_all_samples_stay_and_x_and_y_stay_paired(samples, blocks, seed):
    blocks = min(blocks, samples)
    x = np.arange(samples * 3, dtype=np.uint8 if samples < 80 else np.int64).reshape(samples, 3)
    bx = BlockedTensor.from_array(x, (blocks, 1))
    by = BlockedTensor.from_array(torch.arange(samples), (blocks, 1))
    sx, sy = shuffle(bx, by, seed)
    order = sy.collect().numpy()
    assert sorted(order) == list(range(samples))
    np.testing.assert_array_equal(sx.collect(), x[order])
    assert (sx.sizes, sx.dtype, sx.shape, sy.dtype) == (bx.sizes, bx.dtype, bx.shape, by.dtype)


def test_it_is_a_uniform_permutation_of_all_samples():
    x = BlockedTensor.from_array(np.arange(9), (3, 1))
    drawn = np.array([shuffle(x, seed=seed).collect() for seed in range(3000)])
    for sample in range(9):
        places = np.nonzero(drawn == sample)[1]
        assert chisquare(np.bincount(places, minlength=9)).pvalue > 1e-4


def test_x_and_y_must_be_cut_alike():
    x = BlockedTensor.from_array(np.zeros(6), (3, 1))
    with pytest.raises(ValueError, match=r"grid of \(3, 1\) blocks and y one of \(2, 1\)"):
        shuffle(x, BlockedTensor.from_array(np.zeros(6), (2, 1)))
    with pytest.raises(ValueError, match="block 0 has 2 samples in x and 3 in y"):
        shuffle(x, BlockedTensor.from_array(np.zeros(7), (3, 1)))
