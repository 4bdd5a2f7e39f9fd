"""Invalid or inconsistent files and options: errors that say what is wrong, or files skipped with a warning."""

import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from compss_train import BadFileError, FileDataset
from compss_train.data.layout import Field
from tests.data.npz_files import FILES, reader
from tests.data.readers.checks import names

LENGTHS = {"0.npz": 1, "1.npz": 2, "2.npz": 3}
X = np.zeros((3, 2), np.float32)


def spoil(*files):
    for name in files:
        Path(name).write_bytes(b"no zip")


WRONG = [
    (3, {}, TypeError, "files=3: give the name of a file"),
    ([None], {}, TypeError, "NoneType"),
    ([], {}, ValueError, "no files found"),
    (iter([]), {}, ValueError, "no files found"),
    ("none/*.npz", {}, ValueError, "no files found"),
    (Path("."), {}, BadFileError, r"is a folder without images .*; give its files, for example '\*\.npz'"),
    ("9.npz", {}, BadFileError, r"9\.npz does not exist"),
    (["**/*.npz"], {}, BadFileError, "does not exist; give a pattern as a string, not in a list"),
    (["0.npz", Path("[0-2].npz")], {}, BadFileError, "does not exist; give a pattern as a string, not in a list"),
    (["0.npz", Path("0.npz")], {}, ValueError, r"^/.*/0\.npz occurs more than once; name each file once"),
    (["0.npz", "a/../0.npz"], {}, ValueError, r"0\.npz occurs more than once"),
    (["store://a", "store://a"], {"reader": reader}, ValueError, "^store://a occurs more than once"),
    (["0.npz", "t.pt"], {}, ValueError, "give files of one format"),
    (["t.txt"], {}, ValueError, "give files of one format"),
    (
        "*.npz",
        {"files_len": [1, 2]},
        TypeError,
        r"^files_len=\[1, 2\]: give a dict from names to numbers of samples",
    ),
    (
        "*.npz",
        {"files_len": {"0.npz": 1}},
        ValueError,
        r"files_len lacks 1\.npz; give a number of samples for each file",
    ),
    ("*.npz", {"files_len": {**LENGTHS, "0.npz": 5}}, BadFileError, "has 1 samples, but files_len has 5"),
    ("*.npz", {"files_len": {**LENGTHS, "0.npz": 5}, "reader": reader}, BadFileError, "but files_len has 5"),
    ("*.npz", {"keys": "xy"}, TypeError, r"keys='xy': give a list of names, for example \['xy'\]"),
    ("*.npz", {"keys": []}, ValueError, r"^keys=\[\]: give the names of the arrays to read"),
    ("*.npz", {"keys": ["x", None]}, ValueError, r"^keys=\['x', None\]: give the names of the arrays to read"),
    ("*.npz", {"on_bad_file": "ignore"}, ValueError, "on_bad_file=.*: choose one of 'raise', 'skip'"),
    ("*.npz", {"on_bad_file": ["skip"]}, ValueError, "on_bad_file=.*: choose one of 'raise', 'skip'"),
]


@pytest.mark.parametrize(("files", "options", "error", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_arguments_are_errors_that_say_what_to_give(folder, files, options, error, message):
    torch.save(torch.zeros(3), "t.pt")
    Path("t.txt").touch()
    (folder / "a").mkdir()
    with pytest.raises(error, match=message):
        FileDataset(files, **options)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": X}, r"holds arrays 'x', but 0\.npz holds 'x', 'y'"),
        ({"x": np.zeros((3, 3), "f4"), "y": np.arange(3)}, r"of float32 \(3,\) in 'x', but 0\.npz"),
        ({"x": np.zeros((3, 2)), "y": np.arange(3)}, r"of float64 \(2,\) in 'x', but 0\.npz of float32"),
        ({"x": X, "y": np.zeros(4, int)}, "different lengths"),
    ],
)
def test_a_file_that_is_not_like_the_first_is_an_error_before_training(folder, arrays, reason):
    np.savez("2.npz", **arrays)
    with names(folder / "2.npz", reason) as caught:
        FileDataset("*.npz")
    assert caught.value.file == str(folder / "2.npz")


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_bad_file_is_skipped_with_a_warning_and_reported(folder, bad):
    spoil(FILES[bad])
    path = str(folder / FILES[bad])
    with pytest.warns(UserWarning, match=f"skipped {re.escape(path)} cannot be read: BadZipFile") as caught:
        dataset = FileDataset("*.npz", on_bad_file="skip")
    assert [warning.filename for warning in caught] == [__file__]
    assert dataset.files == [name for name in FILES if name != FILES[bad]]
    assert dataset.number_samples == 6 - (bad + 1)
    assert list(dataset.skipped) == [path]
    assert dataset.skipped[path].startswith("cannot be read: BadZipFile")
    with names(path):
        FileDataset("*.npz")


def test_files_that_do_not_fit_are_skipped_and_the_first_good_one_is_the_model(folder):
    spoil("0.npz")
    np.savez("2.npz", x=np.zeros(3))
    with pytest.warns(UserWarning, match="skipped") as caught:
        dataset = FileDataset("*.npz", on_bad_file="skip")
    assert [str(warning.message) for warning in caught] == [f"skipped {f} {r}" for f, r in dataset.skipped.items()]
    assert list(map(os.path.basename, dataset.skipped)) == ["0.npz", "2.npz"]
    assert dataset.files == ["1.npz"]
    assert dataset.skipped[str(folder / "2.npz")] == "holds arrays 'x', but 1.npz holds 'x', 'y'"


def test_nothing_is_skipped_where_all_is_well(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FileDataset("*.npz", on_bad_file="skip").skipped == {}


@pytest.mark.parametrize("files_len", [None, LENGTHS])
def test_files_that_are_all_invalid_are_an_error_that_names_one(folder, files_len):
    spoil(*FILES)
    # Without a warning for each, which would be an error here.
    with pytest.raises(ValueError, match="all 3 files were skipped; the last one cannot be read: BadZipFile"):
        FileDataset("*.npz", files_len=files_len, on_bad_file="skip")


@pytest.mark.parametrize("bad", [0, 1])
def test_bad_first_files_are_skipped_with_files_len_too(folder, bad):
    spoil(*FILES[: bad + 1])
    with pytest.warns(UserWarning, match="skipped") as caught:
        dataset = FileDataset("*.npz", files_len=LENGTHS, on_bad_file="skip")
    assert {warning.filename for warning in caught} == {__file__}
    assert dataset.files == FILES[bad + 1 :]
    assert list(dataset.skipped) == [str(folder / name) for name in FILES[: bad + 1]]
    assert dataset.layout == {"x": Field("float32", (2,)), "y": Field("int64", ())}


def test_a_first_file_of_another_length_is_skipped(folder):
    with pytest.warns(UserWarning, match="has 1 samples, but files_len has 4"):
        dataset = FileDataset("*.npz", files_len={**LENGTHS, "0.npz": 4}, on_bad_file="skip")
    assert dataset.sizes == (2, 3)


def test_bad_names_that_are_no_files_are_skipped(folder):
    def only_b(filename, get_data=False):
        if filename != "store://b":
            raise OSError("no such key")
        return 3

    with pytest.warns(UserWarning, match="skipped store://a cannot be read: OSError: no such key"):
        dataset = FileDataset(["store://a", "store://b"], only_b, on_bad_file="skip")
    assert (dataset.files, list(dataset.skipped)) == (["store://b"], ["store://a"])


@pytest.mark.filterwarnings("ignore:skipped")
def test_a_first_file_that_only_reading_finds_bad_is_skipped(folder):
    def failing(filename, get_data=False):
        if get_data and filename.endswith("0.npz"):
            raise OSError("torn")
        return reader(filename, get_data)

    assert FileDataset("*.npz", failing, on_bad_file="skip").training_keys() == ("x", "y")
