"""File data sets: names, numbers of samples, parts, and the arrays that are trained on."""

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

from compss_train import FileDataset, PartialShuffleSampler
from compss_train.data.layout import Field
from compss_train.data.locations import file_names
from compss_train.data.order import RowRange
from compss_train.data.readers import NpzReader
from tests.data.npz_files import FILES, reader, write
from tests.helpers.models import named

LAYOUT = {"x": Field("float32", (2,)), "y": Field("int64", ())}


@pytest.mark.parametrize(
    "files",
    [FILES, "*.npz", "[0-2].npz", Path("*.npz"), map(Path, FILES), dict.fromkeys(FILES), "**/*.npz"],
    ids=named,
)
def test_files_are_given_by_list_or_pattern(folder, files):
    dataset = FileDataset(files)
    assert dataset.files == FILES
    assert dataset.files_len == {"0.npz": 1, "1.npz": 2, "2.npz": 3}
    assert dataset.sizes == (1, 2, 3)
    assert len(dataset) == dataset.number_samples == 6
    assert repr(dataset) == "FileDataset(3 files, 6 samples, keys ['x', 'y'])"


def test_a_list_keeps_its_order_and_a_pattern_sorts(folder):
    for number in (10, 9):
        write(f"{number}.npz", 1)
    assert FileDataset(FILES[::-1]).sizes == (3, 2, 1)
    assert FileDataset("*.npz").files == ["0.npz", "1.npz", "10.npz", "2.npz", "9.npz"]
    assert file_names([Path("a/../b"), "s3://c"]) == ["a/../b", "s3://c"]


@pytest.mark.parametrize("file", ["1.npz", Path("1.npz"), "./1.npz", "[0].npz", ["[0].npz"], "a/**/*.npz"])
def test_a_single_file_is_found_by_its_name_or_below_a_folder(folder, file):
    (folder / "a" / "b").mkdir(parents=True)
    write("[0].npz", 2)
    write("a/b/3.npz", 2)
    assert FileDataset(file).sizes == (2,)


def test_names_are_those_of_the_folder_where_the_dataset_was_made(folder, tmp_path_factory, monkeypatch):
    dataset = FileDataset("*.npz")
    made = dataset.part([1])
    monkeypatch.chdir(elsewhere := tmp_path_factory.mktemp("elsewhere"))
    np.savez(elsewhere / "1.npz", x=np.zeros((2, 2), np.float32), y=np.arange(2))
    for part in (made, dataset.part([1]), pickle.loads(pickle.dumps(dataset)).part([1])):
        assert part.blocks[1].path == str(folder / "1.npz")
        assert part.read(RowRange(1, 0, 2))["x"].tolist() == [[2, 2], [2, 2]]
    code = (
        "import pickle, sys; from compss_train.data.order import RowRange; "
        "dataset = pickle.load(sys.stdin.buffer); "
        "print(dataset.files, dataset.part([1]).read(RowRange(1, 0, 2))['y'].tolist())"
    )
    pickled = pickle.dumps(dataset)
    done = subprocess.run([sys.executable, "-c", code], input=pickled, cwd=elsewhere, capture_output=True)
    assert done.stdout.decode().strip() == f"{FILES} [0, 1]", done.stderr.decode()


# files_len


@pytest.mark.parametrize("count", [int, np.int64, np.uint8])
def test_files_len_is_believed_and_one_file_opened(folder, count):
    for number in (1, 2):
        Path(f"{number}.npz").write_text("not looked at")
    files_len = UserDict({"other.npz": 5, **{name: count(rows) for rows, name in enumerate(FILES, 1)}})
    dataset = FileDataset(FILES, files_len=files_len)
    assert dataset.files_len == {"0.npz": 1, "1.npz": 2, "2.npz": 3}
    assert all(type(size) is int for size in dataset.sizes)
    assert dataset.layout == LAYOUT


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "2", None, True, np.float32(2), [2], np.int64(0)], ids=repr)
def test_files_len_of_something_else_is_an_error_that_names_the_file(folder, wrong):
    told = rf"^files_len\['1\.npz'\]={re.escape(repr(wrong))}: give an integer of at least 1"
    with pytest.raises(ValueError, match=told):
        FileDataset("*.npz", files_len={"0.npz": 1, "1.npz": wrong, "2.npz": 3})


# part


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


# keys


def test_keys_chooses_what_is_known_and_read(folder):
    write("1.npz", 2, z=np.zeros((2, 4)))
    dataset = FileDataset("*.npz", keys=["y", "x"])
    assert list(dataset.layout.items()) == list(LAYOUT.items())[::-1]
    assert list(dataset.part([1]).read(RowRange(1, 0, 1))) == ["y", "x"]
    assert FileDataset("*.npz", keys=["x"]).training_keys() == ("x",)
    assert FileDataset("*.npz", keys=["y"], x="y", y=None).training_keys() == ("y",)


def arrays(*keys, rows=3):
    np.savez("f.npz", **{key: np.zeros((rows, number + 1)) for number, key in enumerate(keys)})


@pytest.mark.parametrize(
    ("held", "options", "targets", "expected"),
    [
        ("yxz", {}, True, ("x", "y")),
        ("xy", {}, False, ("x",)),
        ("xy", {"y": None}, True, ("x",)),
        ("ab", {"x": "b", "y": "a"}, True, ("b", "a")),
        ("ab", {"x": "b", "y": "a"}, False, ("b",)),
        ("ab", {"x": "a"}, False, ("a",)),
        ("a", {}, True, ("a",)),
        ("a", {}, False, ("a",)),
        ("a", {"x": "a"}, True, ("a",)),
        ("a", {"y": None}, True, ("a",)),
        ("y", {"x": "y", "y": None}, True, ("y",)),
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
        ("y", {}, False, "'x' for x"),
        ("a", {"y": "a"}, True, "'x' for x"),
        ("ab", {"x": "c", "y": "a"}, True, "'c' for x"),
        ("ab", {"y": None}, True, "'x' for x"),
        ("a", {"x": "a", "y": "labels"}, True, "'labels' for y"),
    ],
)
def test_arrays_to_train_on_that_are_not_there_are_an_error(folder, held, options, targets, missing):
    arrays(*held)
    told = rf"^f\.npz has no array {missing}, it has '{held[0]}'.*FileDataset\(\.\.\., x="
    with pytest.raises(ValueError, match=told):
        FileDataset("f.npz", **options).training_keys(targets=targets)


def test_a_users_reader_reads_the_first_file_once_to_see_its_arrays(folder):
    asked = []

    def watched(filename, get_data=False):
        asked.append((os.path.basename(filename), get_data))
        return reader(filename, get_data)

    dataset = FileDataset("*.npz", watched)
    assert sorted(asked) == [(name, False) for name in FILES]
    for _ in range(2):
        assert dataset.training_keys() == ("x", "y")
    assert asked[3:] == [("0.npz", True)]
    assert dataset.layout == LAYOUT


# In torch


def test_samples_have_no_index_but_batches_pass(folder):
    dataset = FileDataset("*.npz")
    dataset.reset()
    for batch in ({"x": 1}, [{"x": 1}, None, []]):
        assert dataset[batch] is batch
    for index in (0, slice(2), "x", (1, 2)):
        with pytest.raises(TypeError, match="samples in files have no index; use"):
            dataset[index]


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"batch_size": 2, "num_workers": 1}], ids=str)
def test_a_loader_that_makes_batches_of_batches_is_an_error(folder, options):
    dataset = FileDataset("*.npz")
    loader = DataLoader(dataset, sampler=PartialShuffleSampler(dataset), **options)
    with pytest.raises(TypeError, match=r"whole batches; use DataLoader\(dataset, sampler=.*, batch_size=None\)"):
        next(iter(loader))
    with pytest.raises(TypeError, match=r"samples in files have no index; use .*batch_size=None"):
        next(iter(DataLoader(dataset, batch_size=None)))
