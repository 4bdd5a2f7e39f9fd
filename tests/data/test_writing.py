"""Written files are read back unchanged; invalid arguments and failures leave no files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compss_train import BlockedTensor, FileDataset, write_files
from compss_train.data.writing import FORMATS, write_parts

AWKWARD = ["file", "allow_pickle", "self", "args", "x.npy", "x", "compression", "a/b", "ünï", "two words"]


def whole(files, key="x"):
    return np.asarray(BlockedTensor.from_files(files, key).collect())


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "npy"])
@settings(max_examples=12)
@given(samples=st.integers(1, 30), rows=st.integers(1, 12))
def test_what_is_written_is_read_again_in_order(tmp_path_factory, format, samples, rows):
    x, y = np.random.default_rng(0).normal(size=(samples, 2, 3)).astype(np.float32), np.arange(samples)
    names = write_files(tmp_path_factory.mktemp("files"), {"x": x, "y": y}, rows=rows, format=format)
    files = FileDataset(names)
    assert files.sizes == tuple(min(rows, samples - start) for start in range(0, samples, rows))
    np.testing.assert_array_equal(whole(names), x)
    np.testing.assert_array_equal(whole(names, "y"), y)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 9))
def test_blocks_are_split_again(tmp_path_factory, sizes, rows):
    x = np.arange(2 * sum(sizes)).reshape(-1, 2)
    cuts = np.cumsum(sizes)[:-1]
    for block in (np.asarray, torch.from_numpy):
        tensor = BlockedTensor([[block(part)] for part in np.split(x, cuts)])
        names = write_files(tmp_path_factory.mktemp("files"), {"x": tensor}, rows=rows)
        np.testing.assert_array_equal(whole(names), x)


def test_one_array_can_be_npy_files_which_are_mapped(tmp_path):
    names = write_files(tmp_path, {"x": np.arange(12)}, rows=1, format="npy")
    assert names == [str(tmp_path / f"part-{number:06d}.npy") for number in range(12)]
    tensor = BlockedTensor.from_files(f"{tmp_path}/*.npy")
    assert all(isinstance(block, np.memmap) for block in tensor.blocks())
    assert tensor.collect().tolist() == list(range(12))


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("format", FORMATS)
def test_a_failure_midway_leaves_no_files_but_those_that_were_there(tmp_path, format, error):
    def parts():
        yield {"x": np.arange(3)}
        yield {"x": np.arange(3)}
        raise error

    (tmp_path / "notes.txt").touch()
    with pytest.raises(type(error)):
        write_parts(tmp_path, parts(), format=format)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    write_parts(tmp_path, [{"x": np.arange(3)}], format=format)  # which another try may


@pytest.mark.parametrize("format", FORMATS)
def test_a_part_that_cannot_be_written_leaves_no_files(tmp_path, format):
    with pytest.raises((ValueError, TypeError)):
        write_parts(tmp_path, [{"x": np.arange(3)}, {"x": np.array([object()] * 3)}], format=format)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "npy"])
def test_arrays_may_have_any_name(tmp_path, format):
    arrays = {name: np.arange(3) + number for number, name in enumerate(AWKWARD)}
    files = write_files(tmp_path, arrays, rows=2, format=format)
    for name, array in arrays.items():
        np.testing.assert_array_equal(whole(files, name), array)
    assert set(FileDataset(files).layout) == set(AWKWARD)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"x": np.ones(3), "y": np.ones(4)}, {}, "different lengths: 'x' 3, 'y' 4"),
        ({}, {}, "no arrays"),
        ({"x": np.ones((0, 2))}, {}, "no samples"),
        ({"x": np.ones(3)}, {"rows": 0}, "rows=0"),
        ({"x": np.ones(3)}, {"format": "csv"}, "format='csv': choose one of 'npz'"),
        ({"x": np.ones(3), "y": np.ones(3)}, {"format": "npy"}, "use the format npz"),
    ],
)
def test_what_cannot_be_written_is_an_error(tmp_path, arrays, options, message):
    with pytest.raises(ValueError, match=message):
        write_files(tmp_path, arrays, **{"rows": 2, **options})
    assert not list(tmp_path.iterdir())


def test_files_of_two_data_sets_do_not_mix(tmp_path):
    write_files(tmp_path, {"x": np.arange(4)}, rows=2)
    with pytest.raises(ValueError, match=r"already contains part-00000\d\.npz"):
        write_files(tmp_path, {"x": np.arange(4)}, rows=2)


def test_a_slice_of_a_tensor_is_written_without_the_rest(tmp_path):
    tensor = torch.zeros(10_000, 10)
    name = write_files(tmp_path, {"x": tensor[:10]}, rows=10, format="pt")[0]
    assert Path(name).stat().st_size < 10_000
