"""Invalid or inconsistent files: errors that name them, or skipped with a warning."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from compss_train import FileDataset
from compss_train.data.layout import Field
from tests.data.npz_files import FILES, reader
from tests.data.readers.checks import names

# Files that do not fit together


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": np.zeros((3, 2), np.float32)}, r"holds arrays 'x', but 0\.npz holds 'x', 'y'"),
        (
            {"x": np.zeros((3, 3), np.float32), "y": np.arange(3)},
            r"holds samples of float32 \(3,\) in 'x', but 0\.npz",
        ),
        (
            {"x": np.zeros((3, 2)), "y": np.arange(3)},
            r"holds samples of float64 \(2,\) in 'x', but 0\.npz of float32",
        ),
        ({"x": np.zeros((3, 2), np.float32), "y": np.zeros(4, int)}, "different lengths"),
    ],
)
def test_a_file_that_is_not_like_the_first_is_an_error_before_training(folder, arrays, reason):
    np.savez("2.npz", **arrays)
    with names(folder / "2.npz", reason) as caught:
        FileDataset("*.npz")
    assert caught.value.file == str(folder / "2.npz")


@pytest.mark.parametrize("files", [["0.npz", "t.pt"], ["0.npz", "t.txt"], ["t.txt"]])
def test_files_of_several_or_unknown_kinds_are_errors(folder, files):
    torch.save(torch.zeros(3), "t.pt")
    Path("t.txt").touch()
    with pytest.raises(ValueError, match="give files of one format"):
        FileDataset(files)


# on_bad_file


def spoil(name):
    Path(name).write_bytes(b"no zip")


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


def test_files_that_do_not_fit_are_skipped_and_the_first_good_one_is_what_others_are_like(folder):
    spoil("0.npz")
    np.savez("2.npz", x=np.zeros(3))
    with pytest.warns(UserWarning, match="skipped") as caught:
        dataset = FileDataset("*.npz", on_bad_file="skip")
    assert [re.search(r"\d\.npz", str(warning.message))[0] for warning in caught] == ["0.npz", "2.npz"]
    assert dataset.files == ["1.npz"]
    assert dataset.skipped[str(folder / "2.npz")] == "holds arrays 'x', but 1.npz holds 'x', 'y'"


def test_nothing_is_skipped_where_all_is_well(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FileDataset("*.npz", on_bad_file="skip").skipped == {}


def test_files_that_are_all_invalid_are_an_error_that_names_one(folder):
    for name in FILES:
        spoil(name)
    lengths = dict.fromkeys(FILES, 3)
    for files_len in (None, lengths):
        # Without a warning for each, which would be an error here.
        with pytest.raises(ValueError, match="all 3 files were skipped; the last one cannot be read: BadZipFile"):
            FileDataset("*.npz", files_len=files_len, on_bad_file="skip")


@pytest.mark.parametrize("bad", [0, 1])
def test_bad_first_files_are_skipped_with_files_len_too(folder, bad):
    for name in FILES[: bad + 1]:
        spoil(name)
    with pytest.warns(UserWarning, match="skipped"):
        dataset = FileDataset("*.npz", files_len={"0.npz": 1, "1.npz": 2, "2.npz": 3}, on_bad_file="skip")
    assert dataset.files == FILES[bad + 1 :]
    assert list(dataset.skipped) == [str(folder / name) for name in FILES[: bad + 1]]
    assert dataset.layout == {"x": Field("float32", (2,)), "y": Field("int64", ())}
    assert dataset.training_keys() == ("x", "y")


def test_a_first_file_of_another_length_is_skipped(folder):
    with pytest.warns(UserWarning, match="has 1 samples, but files_len has 4"):
        dataset = FileDataset("*.npz", files_len={"0.npz": 4, "1.npz": 2, "2.npz": 3}, on_bad_file="skip")
    assert dataset.sizes == (2, 3)


def test_bad_names_that_are_no_files_are_skipped(folder):
    def only_b(filename, get_data=False):
        if filename != "store://b":
            raise OSError("no such key")
        return 3

    with pytest.warns(UserWarning, match="skipped store://a cannot be read: OSError: no such key"):
        dataset = FileDataset(["store://a", "store://b"], only_b, on_bad_file="skip")
    assert (dataset.files, list(dataset.skipped)) == (["store://b"], ["store://a"])


def test_a_skipped_first_file_with_files_len_is_reported_where_the_dataset_is_made(folder):
    spoil("0.npz")
    with pytest.warns(UserWarning, match="skipped") as caught:
        FileDataset("*.npz", files_len={"0.npz": 1, "1.npz": 2, "2.npz": 3}, on_bad_file="skip")
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.filterwarnings("ignore:skipped")
def test_a_first_file_that_only_reading_finds_bad_does_not_stop_a_training_that_skips(folder):
    def failing(filename, get_data=False):
        if get_data and filename.endswith("0.npz"):
            raise OSError("torn")
        return reader(filename, get_data)

    assert FileDataset("*.npz", failing, on_bad_file="skip").training_keys() == ("x", "y")


def test_each_file_that_was_skipped_is_reported_once_in_order(folder):
    for name in ("0.npz", "2.npz"):
        spoil(name)
    for files_len in (None, dict.fromkeys(FILES, 2)):
        with pytest.warns(UserWarning, match="skipped") as caught:
            dataset = FileDataset("*.npz", files_len=files_len, on_bad_file="skip")
        told = [f"skipped {file} {reason}" for file, reason in dataset.skipped.items()]
        assert [str(warning.message) for warning in caught] == told
        assert len(told) == (2 if files_len is None else 1)  # later ones are found when they are read


@pytest.mark.parametrize("choice", ["ignore", None, True, "", ["skip"]])
def test_other_choices_are_errors(folder, choice):
    with pytest.raises(ValueError, match=r"on_bad_file=.*: choose one of 'raise', 'skip'"):
        FileDataset("*.npz", on_bad_file=choice)
