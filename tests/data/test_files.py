"""File data sets: names, numbers of samples, and parts."""

import os
import pickle
import re
import subprocess
import sys
from collections import UserDict
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from compss_train import BadFileError, FileDataset, PartialShuffleSampler
from compss_train.data.layout import Field
from compss_train.data.locations import file_names
from compss_train.data.readers import CustomReader, NpzReader
from compss_train.data.row_ranges import RowRange
from tests.data.npz_files import FILES, reader, write
from tests.data.readers.checks import names
from tests.helpers.models import named

# Names


@pytest.mark.parametrize(
    "files",
    [
        FILES,
        tuple(FILES),
        "*.npz",
        "[0-2].npz",
        "?.npz",
        Path("*.npz"),
        map(Path, FILES),
        dict.fromkeys(FILES),
        "**/*.npz",
    ],
    ids=named,
)
def test_files_are_given_by_list_or_pattern(folder, files):
    dataset = FileDataset(files)
    assert dataset.files == FILES
    assert dataset.files_len == {"0.npz": 1, "1.npz": 2, "2.npz": 3}
    assert dataset.sizes == (1, 2, 3)
    assert len(dataset) == dataset.number_samples == 6


def test_a_list_keeps_its_order_and_a_pattern_sorts(folder):
    for number in (10, 9):
        write(f"{number}.npz", 1)
    assert FileDataset(FILES[::-1]).sizes == (3, 2, 1)
    assert FileDataset("*.npz").files == ["0.npz", "1.npz", "10.npz", "2.npz", "9.npz"]


@pytest.mark.parametrize("file", ["1.npz", Path("1.npz"), "./1.npz"])
def test_a_single_file_is_given_by_its_name(folder, file):
    assert FileDataset(file).files == [os.fspath(file)]
    assert FileDataset(file).sizes == (2,)


def test_a_file_whose_name_looks_like_a_pattern_is_found(folder):
    write("[0].npz", 7)
    assert FileDataset("[0].npz").sizes == (7,)
    assert FileDataset(["[0].npz"]).sizes == (7,)


def test_folders_below_are_searched_with_two_stars(folder):
    (folder / "a" / "b").mkdir(parents=True)
    write("a/b/3.npz", 4)
    assert FileDataset("**/*.npz").sizes == (1, 2, 3, 4)


@pytest.mark.parametrize("given", [".", Path(".")])
def test_a_folder_is_an_error_that_says_how_to_name_its_files(folder, given):
    with pytest.raises(BadFileError, match=r"is a folder without images .*; give its files, for example '\*\.npz'"):
        FileDataset(given)


@pytest.mark.parametrize("files", [[], (), "*.pt", "none/*.npz", iter([])])
def test_no_files_are_an_error(folder, files):
    with pytest.raises(ValueError, match="no files found"):
        FileDataset(files)


def test_a_name_without_a_pattern_that_does_not_exist_is_a_bad_file(folder):
    with names(folder / "9.npz", "does not exist"):
        FileDataset("9.npz")


@pytest.mark.parametrize("pattern", ["*.npz", "[0-2].npz", "?.npz", "**/*.npz", "none/*.npz"])
def test_a_pattern_in_a_list_is_an_error_that_says_what_to_give(folder, pattern):
    for files in ([pattern], ["0.npz", Path(pattern)]):
        with names(folder / pattern, "does not exist; give a pattern as a string, not in a list"):
            FileDataset(files)


@pytest.mark.parametrize("other", ["0.npz", Path("0.npz"), "./0.npz", "a/../0.npz", os.path.abspath])
def test_a_file_that_occurs_twice_under_any_names_is_an_error_with_its_path(folder, other):
    (folder / "a").mkdir()
    path = re.escape(str(folder / "0.npz"))
    with pytest.raises(ValueError, match=f"^{path} occurs more than once; name each file once"):
        FileDataset(["0.npz", "1.npz", other("0.npz") if callable(other) else other])


def test_a_name_of_the_readers_own_kind_that_comes_twice_is_an_error():
    with pytest.raises(ValueError, match=r"^store://a occurs more than once"):
        FileDataset(["store://a", "store://b", "store://a"], lambda filename, get_data=False: 3)


@pytest.mark.parametrize("files", [3, None, [3], [None]])
def test_what_is_no_name_is_an_error(files):
    with pytest.raises(TypeError):
        FileDataset(files)


def test_file_names_are_strings(folder):
    assert file_names([Path("a/../b"), "s3://c"]) == ["a/../b", "s3://c"]
    assert all(type(name) is str for name in file_names(Path("*.npz")))


def test_relative_names_are_those_of_the_folder_where_the_dataset_was_made(folder, tmp_path_factory, monkeypatch):
    dataset = FileDataset("*.npz")
    monkeypatch.chdir(elsewhere := tmp_path_factory.mktemp("elsewhere"))
    np.savez(elsewhere / "1.npz", x=np.zeros((2, 2), np.float32), y=np.arange(2))
    for part in (dataset.part([1]), pickle.loads(pickle.dumps(dataset)).part([1])):
        assert part.files == {1: str(folder / "1.npz")}
        assert part.read(RowRange(1, 0, 2))["x"].tolist() == [[2, 2], [2, 2]]


def test_the_relative_names_of_a_part_keep_working_elsewhere(folder, tmp_path_factory, monkeypatch):
    part = FileDataset("*.npz").part([1])
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert part.read(RowRange(1, 0, 2))["x"].tolist() == [[2, 2], [2, 2]]


def test_names_that_are_no_files_stay_as_they_are(folder):
    dataset = FileDataset(["store://a", "store://b"], lambda filename, get_data=False: 3)
    assert dataset.files == ["store://a", "store://b"]
    assert dataset.part([1]).files == {1: "store://b"}


def test_the_reader_that_is_given_is_taken(folder):
    assert isinstance(FileDataset("*.npz", reader).reader, CustomReader)
    assert FileDataset("*.npz", own := NpzReader()).reader is own
    assert isinstance(FileDataset("*.npz").reader, NpzReader)


# files_len


@pytest.mark.parametrize("count", [int, np.int64, np.uint8])
def test_files_len_is_believed_and_one_file_opened(folder, count):
    for number in (1, 2):
        Path(f"{number}.npz").write_text("not looked at")
    dataset = FileDataset(FILES, files_len={name: count(rows) for rows, name in enumerate(FILES, 1)})
    assert dataset.sizes == (1, 2, 3)
    assert all(type(size) is int for size in dataset.sizes)
    assert dataset.layout == {"x": Field("float32", (2,)), "y": Field("int64", ())}


def test_files_len_may_be_any_mapping_and_know_other_files(folder):
    files_len = UserDict({"2.npz": 3, "other.npz": 5, "0.npz": 1, "1.npz": 2})
    assert FileDataset("*.npz", files_len=files_len).files_len == {"0.npz": 1, "1.npz": 2, "2.npz": 3}


def test_files_len_that_is_wrong_for_the_first_file_is_an_error_at_once(folder):
    with names(folder / "0.npz", "has 1 samples, but files_len has 5"):
        FileDataset("*.npz", files_len={"0.npz": 5, "1.npz": 2, "2.npz": 3})


@pytest.mark.parametrize("wrong", [1, 2, 4, 1000])
def test_files_len_that_is_wrong_for_a_later_file_is_an_error_when_it_is_read(folder, wrong):
    dataset = FileDataset("*.npz", files_len={"0.npz": 1, "1.npz": 2, "2.npz": wrong})
    part = dataset.part([0, 1, 2])
    for number in (0, 1):
        part.read(RowRange(number, 0, number + 1))
    with names(folder / "2.npz", f"has 3 samples, but {wrong} were expected"):
        part.read(RowRange(2, 0, 1))


def test_files_len_without_a_file_is_an_error_that_names_it(folder):
    with pytest.raises(ValueError, match=r"files_len lacks 1\.npz \(2 in all\)"):
        FileDataset("*.npz", files_len={"0.npz": 1})


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "2", None, True, np.float32(2), [2], np.int64(0)], ids=repr)
def test_files_len_of_something_else_is_an_error_that_names_the_file(folder, wrong):
    with pytest.raises(
        ValueError, match=rf"^files_len has {re.escape(repr(wrong))} for 1\.npz; give integers of at"
    ):
        FileDataset("*.npz", files_len={"0.npz": 1, "1.npz": wrong, "2.npz": 3})


def test_files_len_with_a_users_reader_counts_the_first_file_only(folder):
    asked = []

    def counting(filename, get_data=False):
        asked.append(os.path.basename(filename))
        return reader(filename, get_data)

    FileDataset("*.npz", counting, {"0.npz": 1, "1.npz": 2, "2.npz": 3})
    assert asked == ["0.npz"]
    with names(folder / "0.npz", "has 1 samples, but files_len has 2"):
        FileDataset("*.npz", reader, dict.fromkeys(FILES, 2))


# part


def test_a_part_has_some_files_by_number_and_what_they_must_hold(folder):
    dataset = FileDataset("*.npz")
    part = dataset.part([2, 0])
    assert part.files == {2: str(folder / "2.npz"), 0: str(folder / "0.npz")}
    assert part.sizes == {2: 3, 0: 1}
    assert (part.keys, part.layout, part.reference, part.skip) == (None, dataset.layout, "0.npz", False)
    assert dataset.part([1], ("y",)).layout == {"y": Field("int64", ())}
    assert dataset.part([1], ("y",)).keys == ("y",)
    assert FileDataset("*.npz", keys=["x"]).part([1]).keys == ("x",)
    assert FileDataset("*.npz", keys=["x"]).part([1]).layout == {"x": Field("float32", (2,))}
    assert FileDataset("*.npz", on_bad_file="skip").part([1]).skip
    assert FileDataset("*.npz", reader).part([1], ("y",)).layout is None


def test_a_part_does_not_grow_with_the_files_of_others(folder):
    for number in range(100):
        write(f"m{number}.npz", 1)
    dataset = FileDataset("*.npz")
    assert len(pickle.dumps(dataset.part([0]))) < 1_000 < len(pickle.dumps(dataset.part(range(100))))


@pytest.mark.parametrize("own", [None, reader])
def test_a_dataset_is_pickled(folder, own):
    dataset = FileDataset("*.npz", own, keys=["y", "x"], x="y", y="x", on_bad_file="skip")
    again = pickle.loads(pickle.dumps(dataset))
    for attribute in ("files", "files_len", "sizes", "layout", "keys", "x", "y", "on_bad_file", "skipped"):
        assert getattr(again, attribute) == getattr(dataset, attribute)
    assert again.part([1]).read(RowRange(1, 0, 2))["y"].tolist() == [0, 1]
    assert again.training_keys() == ("y", "x")


def test_repr_says_how_much_there_is(folder):
    assert repr(FileDataset("*.npz")) == "FileDataset(3 files, 6 samples, keys ['x', 'y'])"
    assert repr(FileDataset("*.npz", reader)) == "FileDataset(3 files, 6 samples, keys [])"


def test_samples_have_no_index_but_batches_pass(folder):
    dataset = FileDataset("*.npz")
    dataset.reset()
    for batch in ({"x": 1}, [{"x": 1}, None, []]):
        assert dataset[batch] is batch
    for index in (0, slice(2), "x", (1, 2)):
        with pytest.raises(TypeError, match="samples in files have no index; use"):
            dataset[index]


def test_a_dataset_that_is_unpickled_elsewhere_reads_the_files_of_where_it_was_made(folder, tmp_path_factory):
    pickled = pickle.dumps(FileDataset("*.npz"))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    code = (
        "import pickle, sys; from compss_train.data.row_ranges import RowRange; "
        "dataset = pickle.load(sys.stdin.buffer); "
        "print(dataset.files, dataset.part([1]).read(RowRange(1, 0, 2))['y'].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickled, cwd=elsewhere, capture_output=True)
    assert done.stdout.decode().strip() == f"{FILES} [0, 1]", done.stderr.decode()


# In torch


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"batch_size": 2, "num_workers": 1}], ids=str)
def test_a_data_loader_that_would_make_batches_of_batches_is_an_error_that_says_how_to_make_it(folder, options):
    dataset = FileDataset("*.npz")
    loader = DataLoader(dataset, sampler=PartialShuffleSampler(dataset), **options)
    with pytest.raises(TypeError, match=r"whole batches; use DataLoader\(dataset, sampler=.*, batch_size=None\)"):
        next(iter(loader))
    with pytest.raises(TypeError, match=r"samples in files have no index; use .*batch_size=None"):
        next(iter(DataLoader(dataset, batch_size=None)))
