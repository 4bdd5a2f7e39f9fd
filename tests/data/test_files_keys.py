"""The arrays of files that are read, and those that are used for training."""

import os
import re

import numpy as np
import pytest

from compss_train import FileDataset
from compss_train.data.layout import Field
from compss_train.data.readers import NpzReader
from compss_train.data.row_ranges import RowRange
from tests.data.npz_files import FILES, reader, write
from tests.data.readers.checks import names

# keys


def test_keys_chooses_what_is_known_and_read(folder):
    dataset = FileDataset("*.npz", keys=["y"])
    assert list(dataset.layout) == ["y"]
    assert list(dataset.part([0]).read(RowRange(0, 0, 1))) == ["y"]


def test_keys_that_are_not_read_may_differ(folder):
    write("1.npz", 2, z=np.zeros((2, 4)))
    assert FileDataset("*.npz", keys=["y", "x"]).layout == {"y": Field("int64", ()), "x": Field("float32", (2,))}


@pytest.mark.parametrize("own", [None, reader])
def test_keys_that_are_not_there_are_an_error_that_names_the_file(folder, own):
    with names(folder / "0.npz", "has no array 'z'; it has 'x', 'y'"):
        FileDataset("*.npz", own, keys=["x", "z"]).training_keys()


def test_keys_as_one_string_are_an_error_that_says_what_to_give(folder):
    with pytest.raises(TypeError, match=r"keys='xy': give a list of names, for example \['xy'\]"):
        FileDataset("*.npz", keys="xy")


@pytest.mark.parametrize("keys", [[], (), {}, [3], ["x", None], [b"x"], [("x",)]], ids=repr)
@pytest.mark.parametrize("file", ["0.npz", "f.npy"])
def test_no_keys_and_keys_that_are_no_strings_are_errors(folder, file, keys):
    np.save("f.npy", np.zeros(3))
    with pytest.raises(ValueError, match=rf"^keys={re.escape(repr(keys))}: give the names of the arrays to read"):
        FileDataset(file, keys=keys)


# training_keys


def arrays(*keys, rows=3):
    np.savez("f.npz", **{key: np.zeros((rows, number + 1)) for number, key in enumerate(keys)})


@pytest.mark.parametrize(
    ("held", "options", "targets", "expected"),
    [
        ("xy", {}, True, ("x", "y")),
        ("yxz", {}, True, ("x", "y")),
        ("xy", {}, False, ("x",)),
        ("xy", {"y": None}, True, ("x",)),
        ("xy", {"x": "y", "y": "x"}, True, ("y", "x")),
        ("ab", {"x": "b", "y": "a"}, True, ("b", "a")),
        ("ab", {"x": "b", "y": "a"}, False, ("b",)),
        ("ab", {"x": "a", "y": None}, True, ("a",)),
        ("ab", {"x": "a"}, False, ("a",)),
        ("a", {}, True, ("a",)),
        ("a", {}, False, ("a",)),
        ("x", {}, True, ("x",)),
        ("a", {"x": "a"}, True, ("a",)),
        ("a", {"y": None}, True, ("a",)),
        ("y", {"x": "y", "y": None}, True, ("y",)),
        ("y", {"x": "y"}, False, ("y",)),
        ("abc", {"x": "c", "y": "c"}, True, ("c", "c")),
    ],
)
@pytest.mark.parametrize("own", [None, lambda filename, get_data=False: NpzReader()(filename, get_data)])
def test_the_arrays_to_train_on(folder, own, held, options, targets, expected):
    arrays(*held)
    assert FileDataset("f.npz", own, **options).training_keys(targets=targets) == expected


@pytest.mark.parametrize(
    ("held", "options", "targets", "missing"),
    [
        ("ab", {}, True, "'x' for x"),
        ("xb", {}, True, "'y' for y"),
        ("ay", {}, True, "'x' for x"),
        ("y", {}, True, "'x' for x"),
        ("y", {}, False, "'x' for x"),
        ("a", {"y": "a"}, True, "'x' for x"),
        ("ab", {}, False, "'x' for x"),
        ("ab", {"x": "c", "y": "a"}, True, "'c' for x"),
        ("ab", {"x": "a", "y": "c"}, True, "'c' for y"),
        ("ab", {"y": None}, True, "'x' for x"),
        ("a", {"x": "c"}, True, "'c' for x"),
        ("a", {"x": "a", "y": "labels"}, True, "'labels' for y"),
        ("x", {"y": "labels"}, True, "'labels' for y"),
    ],
)
def test_arrays_to_train_on_that_are_not_there_are_an_error(folder, held, options, targets, missing):
    arrays(*held)
    with pytest.raises(
        ValueError, match=rf"^f\.npz has no array {missing}, it has '{held[0]}'.*FileDataset\(\.\.\., x="
    ):
        FileDataset("f.npz", **options).training_keys(targets=targets)


def test_keys_limits_what_can_be_trained_on(folder):
    assert FileDataset("*.npz", keys=["x"]).training_keys() == ("x",)
    assert FileDataset("*.npz", keys=["y"], x="y", y=None).training_keys() == ("y",)
    write("0.npz", 1, z=np.zeros(1))
    dataset = FileDataset("0.npz", keys=["x", "z"])
    with pytest.raises(ValueError, match=r"0\.npz has no array 'y' for y, it has 'x', 'z'"):
        dataset.training_keys()


def test_a_users_reader_reads_the_first_file_once_to_see_its_arrays(folder):
    asked = []

    def watched(filename, get_data=False):
        asked.append((os.path.basename(filename), get_data))
        return reader(filename, get_data)

    dataset = FileDataset("*.npz", watched)
    assert dataset.layout is None
    assert sorted(asked) == [(name, False) for name in FILES]
    for _ in range(2):
        assert dataset.training_keys() == ("x", "y")
    assert asked[3:] == [("0.npz", True)]
    assert dataset.layout == FileDataset("*.npz").layout
