"""Blocked tensors: construction, shuffling, and fingerprints of their data."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train import BlockedTensor, shuffle
from compss_train.data.blocked import as_blocked
from compss_train.data.remote_block import RemoteBlock, describe
from tests.helpers.tolerances import chance_of


@given(rows=st.integers(1, 5), columns=st.integers(1, 4), extra=st.integers(0, 30))
def test_samples_keep_their_order_and_sizes_differ_by_one(rows, columns, extra):
    array = np.arange((rows * columns + extra) * 2, dtype=np.int16).reshape(-1, 2)
    tensor = BlockedTensor.from_array(array, (rows, columns))
    assert tensor.shape == (rows, columns)
    assert max(tensor.sizes) - min(tensor.sizes) <= 1
    assert tensor.number_samples == len(array)
    assert tensor.dtype == np.int16
    np.testing.assert_array_equal(tensor.collect(), array)
    assert BlockedTensor.from_array(array, rows).shape == (rows, 1)


def test_blocks_are_copies_unless_they_are_mapped(tmp_path):
    array = np.arange(12).reshape(6, 2)
    np.save(tmp_path / "x.npy", array)
    blocked = BlockedTensor.from_array(array, (2, 1))
    array += 1
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    np.testing.assert_array_equal(blocked.collect(), mapped)
    blocked = BlockedTensor.from_array(mapped, (3, 1))
    assert all(isinstance(block, np.memmap) for block in blocked.blocks())
    assert np.shares_memory(blocked.tensors[2][0], mapped)
    np.testing.assert_array_equal(blocked.collect(), mapped)


def read_only(array):
    array.flags.writeable = False
    return array


def test_blocks_of_a_fit_share_an_arrays_memory_unless_tasks_would_copy_them_again():
    array = np.arange(12.0).reshape(6, 2)
    for shared in (array, torch.from_numpy(array), torch.from_numpy(array).requires_grad_()):
        assert all(np.shares_memory(block, array) for block in as_blocked(shared, 3).blocks())
    for other in (np.asfortranarray(array), array[:, ::-1], read_only(array.copy())):
        blocks = list(as_blocked(other, 3).blocks())
        assert not any(np.shares_memory(block, other) for block in blocks)
        np.testing.assert_array_equal(np.concatenate(blocks), other)
    assert not any(
        block.is_conj() for block in as_blocked(torch.tensor(array + 1j).conj(), 3).blocks()
    )


@pytest.mark.parametrize(
    ("blocks", "name"),
    [
        ((4, 2), "8 blocks of 7 samples"),
        ((0, 1), "blocks=0"),
        ((2, -1), "blocks=-1"),
        (8, "blocks=8 makes 8 blocks of 7 samples"),
        (0, "blocks=0"),
        (True, "blocks=True"),
        ((2, 1, 1), "is not a grid"),
        ((1.5, 1), "blocks=1.5"),
    ],
)
def test_impossible_grids_are_errors(blocks, name, raises):
    with raises(ValueError, name):
        BlockedTensor.from_array(np.zeros((7, 2)), blocks)


@pytest.mark.parametrize(
    "array", [np.array(["a", "b"]), np.array([object(), 3]), np.zeros(3, ">f4")]
)
def test_dtypes_that_torch_cannot_hold_are_errors(array):
    with pytest.raises(TypeError, match="torch cannot hold dtype"):
        BlockedTensor.from_array(array, (1, 1))


@pytest.mark.parametrize(
    ("grid", "name"),
    [
        ([[np.zeros(2)], [np.zeros(2), np.zeros(2)]], "ragged"),
        ([], "empty"),
        ([[np.zeros(2), np.zeros(0)]], "block 1 has no samples"),
        ([[np.zeros(2), np.zeros(2, np.float32)]], "block 1 holds samples of float32"),
        ([[3.0]], "scalar"),
    ],
)
def test_blocks_that_do_not_fit_together_are_errors(grid, name, raises):
    with raises(ValueError, name):
        BlockedTensor(grid)


def test_files_that_cannot_be_mapped_are_errors(tmp_path):
    np.save(tmp_path / "f.npy", np.asfortranarray(np.ones((3, 2))))
    with pytest.raises(ValueError, match="Fortran order"):
        BlockedTensor.from_files([tmp_path / "f.npy"])
    with pytest.raises(
        ValueError, match=r"files with the suffixes '\.txt': give files of one format"
    ):
        BlockedTensor.from_files([tmp_path / "x.txt"])
    with pytest.raises(FileNotFoundError):
        BlockedTensor.from_files([tmp_path / "none.npy"])


class Elsewhere(RemoteBlock):
    home = "elsewhere"

    def __init__(self, block):
        super().__init__(*describe(block))
        self.block = block
        self.loads = 0

    def load(self):
        self.loads += 1
        return self.block


def test_the_grid_is_that_of_the_blocks_that_are_there_now():
    tensor = BlockedTensor.from_array(np.ones((6, 2)), (2, 1))
    tensor.tensors = [[np.ones((4, 2)), np.ones((3, 2))]]
    assert (tensor.sizes, tensor.shape, tensor.number_samples) == ((4, 3), (1, 2), 7)


def test_remote_blocks_are_known_without_being_loaded():
    blocks = [Elsewhere(np.arange(6.0).reshape(3, 2)), Elsewhere(np.ones((2, 2)))]
    tensor = BlockedTensor([[block] for block in blocks])
    assert (tensor.sizes, tensor.sample_shape, tensor.dtype) == ((3, 2), (2,), np.float64)
    assert [block.loads for block in blocks] == [0, 0]
    assert tensor.collect().tolist() == [[0, 1], [2, 3], [4, 5], [1, 1], [1, 1]]
    with pytest.raises(ValueError, match="all blocks must agree"):
        BlockedTensor([[blocks[0]], [np.ones((2, 3))]])


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
        assert chance_of(np.bincount(places, minlength=9)) > 1e-4
