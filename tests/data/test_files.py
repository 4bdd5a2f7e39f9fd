import os
import pickle
import re
import subprocess
import sys
import warnings
from collections import UserDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from compss_train import FileDataset, PartialShuffleSampler
from compss_train.data.files import file_names
from compss_train.data.layout import Field
from compss_train.data.readers import CustomReader, NpzReader
from compss_train.data.stretches import Stretch
from tests.data.readers.checks import names
from tests.models import named


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with files of 1, 2 and 3 samples."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        write(f"{number}.npz", number + 1)
    return tmp_path


def write(name, rows, **more):
    np.savez(name, x=np.full((rows, 2), rows, np.float32), y=np.arange(rows), **more)


FILES = ["0.npz", "1.npz", "2.npz"]


def reader(filename, get_data=False):
    with np.load(filename) as npz:
        arrays = dict(npz)
    return (arrays, len(arrays["x"])) if get_data else len(arrays["x"])


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
    with pytest.raises(ValueError, match=r"^\. is a folder; name its files, for example '\./\*\.npz'$"):
        FileDataset(given)


@pytest.mark.parametrize("files", [[], (), "*.pt", "none/*.npz", iter([])])
def test_no_files_are_an_error(folder, files):
    with pytest.raises(ValueError, match="there are no such files"):
        FileDataset(files)


def test_a_name_without_a_pattern_that_does_not_exist_is_a_bad_file(folder):
    with names(folder / "9.npz", "does not exist"):
        FileDataset("9.npz")


@pytest.mark.parametrize("pattern", ["*.npz", "[0-2].npz", "?.npz", "**/*.npz", "none/*.npz"])
def test_a_pattern_in_a_list_is_an_error_that_says_what_to_give(folder, pattern):
    for files in ([pattern], ["0.npz", Path(pattern)]):
        with names(folder / pattern, "does not exist where it is read; a pattern is given alone, not in a list"):
            FileDataset(files)


@pytest.mark.parametrize("other", ["0.npz", Path("0.npz"), "./0.npz", "a/../0.npz", os.path.abspath])
def test_a_file_that_comes_twice_by_whatever_names_is_an_error_that_gives_its_path(folder, other):
    (folder / "a").mkdir()
    path = re.escape(str(folder / "0.npz"))
    with pytest.raises(ValueError, match=f"^{path} is named more than once; each file is read once an epoch"):
        FileDataset(["0.npz", "1.npz", other("0.npz") if callable(other) else other])


def test_a_name_of_the_readers_own_kind_that_comes_twice_is_an_error():
    with pytest.raises(ValueError, match=r"^store://a is named more than once"):
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
        assert part.read(Stretch(1, 0, 2))["x"].tolist() == [[2, 2], [2, 2]]


def test_the_relative_names_of_a_part_keep_working_elsewhere(folder, tmp_path_factory, monkeypatch):
    part = FileDataset("*.npz").part([1])
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert part.read(Stretch(1, 0, 2))["x"].tolist() == [[2, 2], [2, 2]]


def test_names_that_are_no_files_stay_as_they_are(folder):
    dataset = FileDataset(["store://a", "store://b"], lambda filename, get_data=False: 3)
    assert dataset.files == ["store://a", "store://b"]
    assert dataset.part([1]).files == {1: "store://b"}


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


def test_keys_that_are_not_read_may_differ(folder):
    write("1.npz", 2, z=np.zeros((2, 4)))
    assert FileDataset("*.npz", keys=["y", "x"]).layout == {"y": Field("int64", ()), "x": Field("float32", (2,))}


@pytest.mark.parametrize("files", [["0.npz", "t.pt"], ["0.npz", "t.csv"], ["t.csv"]])
def test_files_of_several_or_unknown_kinds_are_errors(folder, files):
    torch.save(torch.zeros(3), "t.pt")
    Path("t.csv").touch()
    with pytest.raises(ValueError, match="give files of one kind"):
        FileDataset(files)


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
    with names(folder / "0.npz", "has 1 samples, files_len says 5"):
        FileDataset("*.npz", files_len={"0.npz": 5, "1.npz": 2, "2.npz": 3})


@pytest.mark.parametrize("wrong", [1, 2, 4, 1000])
def test_files_len_that_is_wrong_for_a_later_file_is_an_error_when_it_is_read(folder, wrong):
    dataset = FileDataset("*.npz", files_len={"0.npz": 1, "1.npz": 2, "2.npz": wrong})
    part = dataset.part([0, 1, 2])
    for number in (0, 1):
        part.read(Stretch(number, 0, number + 1))
    with names(folder / "2.npz", f"has 3 samples, {wrong} were expected"):
        part.read(Stretch(2, 0, 1))


def test_files_len_without_a_file_is_an_error_that_names_it(folder):
    with pytest.raises(ValueError, match=r"files_len has no number of samples for 1\.npz \(2 such files\)"):
        FileDataset("*.npz", files_len={"0.npz": 1})


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "2", None, True, np.float32(2), [2], np.int64(0)], ids=repr)
def test_files_len_of_something_else_is_an_error_that_names_the_file(folder, wrong):
    with pytest.raises(
        ValueError, match=rf"^files_len says {re.escape(repr(wrong))} for 1\.npz; give integers of at"
    ):
        FileDataset("*.npz", files_len={"0.npz": 1, "1.npz": wrong, "2.npz": 3})


def test_files_len_with_a_users_reader_counts_the_first_file_only(folder):
    asked = []

    def counting(filename, get_data=False):
        asked.append(os.path.basename(filename))
        return reader(filename, get_data)

    FileDataset("*.npz", counting, {"0.npz": 1, "1.npz": 2, "2.npz": 3})
    assert asked == ["0.npz"]
    with names(folder / "0.npz", "has 1 samples, files_len says 2"):
        FileDataset("*.npz", reader, dict.fromkeys(FILES, 2))


# keys


def test_keys_chooses_what_is_known_and_read(folder):
    dataset = FileDataset("*.npz", keys=["y"])
    assert list(dataset.layout) == ["y"]
    assert list(dataset.part([0]).read(Stretch(0, 0, 1))) == ["y"]


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
    assert again.part([1]).read(Stretch(1, 0, 2))["y"].tolist() == [0, 1]
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
        "import pickle, sys; from compss_train.data.stretches import Stretch; "
        "dataset = pickle.load(sys.stdin.buffer); "
        "print(dataset.files, dataset.part([1]).read(Stretch(1, 0, 2))['y'].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickled, cwd=elsewhere, capture_output=True)
    assert done.stdout.decode().strip() == f"{FILES} [0, 1]", done.stderr.decode()


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


def test_files_that_are_all_bad_are_an_error_that_tells_of_one(folder):
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
    with pytest.warns(UserWarning, match="has 1 samples, files_len says 4"):
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


# In torch


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"batch_size": 2, "num_workers": 1}], ids=str)
def test_a_data_loader_that_would_make_batches_of_batches_is_an_error_that_says_how_to_make_it(folder, options):
    dataset = FileDataset("*.npz")
    loader = DataLoader(dataset, sampler=PartialShuffleSampler(dataset), **options)
    with pytest.raises(TypeError, match=r"whole batches; use DataLoader\(dataset, sampler=.*, batch_size=None\)"):
        next(iter(loader))
    with pytest.raises(TypeError, match=r"samples in files have no index; use .*batch_size=None"):
        next(iter(DataLoader(dataset, batch_size=None)))


@pytest.mark.parametrize("choice", ["ignore", None, True, "", ["skip"]])
def test_other_choices_are_errors(folder, choice):
    with pytest.raises(ValueError, match=r"on_bad_file=.*: choose one of 'raise', 'skip'"):
        FileDataset("*.npz", on_bad_file=choice)
