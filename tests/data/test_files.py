"""File data sets: names, numbers of samples, parts, and the arrays that are trained on."""

import os
import re
from collections import UserDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies
from torch.utils.data import DataLoader

from compss_train import BadFileError, FileDataset, PartialShuffleSampler
from compss_train.data.layout import Field
from compss_train.data.locations import file_names
from compss_train.data.order import RowRange
from compss_train.data.readers import NpzReader
from tests.data.npz_files import FILES, reader, write
from tests.data.readers.formats import names
from tests.helpers.models import named

LAYOUT = {"x": Field("float32", (2,)), "y": Field("int64", ())}


@pytest.mark.parametrize(
    "files",
    [
        FILES,
        "*.npz",
        "[0-2].npz",
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
    assert repr(dataset) == "FileDataset(3 files, 6 samples, keys ['x', 'y'])"


class InParts(NpzReader):
    """Describes each file as several parts, as a folder of images is."""

    def describe(self, path, keys=None):
        description = super().describe(path, keys)
        return replace(description, blocks=(1,) * description.rows)


PARTS = ("", "#0", "#1", "#1'", "[0:1]")
NAMES = sorted({f"set{part}{end}" for part in PARTS for end in ("", "#1", "[1:2]")})


@given(strategies.permutations(NAMES), strategies.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_no_part_has_the_name_of_another_file(tmp_path_factory, files, pieces):
    folder = tmp_path_factory.mktemp("named")
    expected = []
    for number, name in enumerate(NAMES):
        values = 10.0 * number + np.arange(3)
        expected += values.tolist()
        with (folder / name).open("wb") as file:
            np.savez(file, x=values)
    paths = [str(folder / name) for name in files]
    for kind in (NpzReader, InParts):
        dataset = FileDataset(paths, reader=kind(), y=None)
        for whole in (dataset, dataset.cut(pieces), dataset[:30].cut(pieces)):
            assert len(set(whole.files)) == len(whole.files) == len(whole.sizes)
            values = [
                value
                for number, rows in enumerate(whole.sizes)
                for value in whole.part([number]).read(RowRange(number, 0, rows))["x"].tolist()
            ]
            assert len(values) == whole.number_samples
            assert sorted(set(values)) == sorted(values)
        assert dataset.number_samples == len(expected)


def test_a_list_keeps_its_order_and_a_pattern_sorts(folder):
    for number in (10, 9):
        write(f"{number}.npz", 1)
    assert FileDataset(FILES[::-1]).sizes == (3, 2, 1)
    assert FileDataset("*.npz").files == ["0.npz", "1.npz", "10.npz", "2.npz", "9.npz"]
    assert file_names([Path("a/../b"), "s3://c"]) == ["a/../b", "s3://c"]


@pytest.mark.parametrize(
    "file", ["1.npz", Path("1.npz"), "./1.npz", "[0].npz", ["[0].npz"], "a/**/*.npz"]
)
def test_files_are_found_by_name_or_below_a_folder(folder, file):
    (folder / "a" / "b").mkdir(parents=True)
    write("[0].npz", 2)
    write("a/b/3.npz", 2)
    assert FileDataset(file).sizes == (2,)


@pytest.mark.parametrize("count", [int, np.int64, np.uint8])
def test_files_len_is_believed_and_one_file_opened(folder, count):
    for number in (1, 2):
        Path(f"{number}.npz").write_text("not looked at")
    files_len = UserDict(
        {"other.npz": 5, **{name: count(rows) for rows, name in enumerate(FILES, 1)}}
    )
    dataset = FileDataset(FILES, files_len=files_len)
    assert dataset.files_len == {"0.npz": 1, "1.npz": 2, "2.npz": 3}
    assert all(type(size) is int for size in dataset.sizes)
    assert dataset.layout == LAYOUT


@pytest.mark.parametrize(
    "wrong", [0, -1, 2.0, "2", None, True, np.float32(2), [2], np.int64(0)], ids=repr
)
def test_wrong_files_len_is_an_error_that_names_the_file(folder, wrong):
    told = rf"^files_len\['1\.npz'\]={re.escape(repr(wrong))}: give an integer of at least 1"
    with pytest.raises(ValueError, match=told):
        FileDataset("*.npz", files_len={"0.npz": 1, "1.npz": wrong, "2.npz": 3})


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
@pytest.mark.parametrize(
    "reader", [None, lambda filename, get_data=False: NpzReader()(filename, get_data)]
)
def test_the_arrays_to_train_on(folder, reader, held, options, targets, expected):
    arrays(*held)
    assert FileDataset("f.npz", reader, **options).training_keys(targets=targets) == expected


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
def test_missing_arrays_to_train_on_are_an_error(folder, held, options, targets, missing):
    arrays(*held)
    told = rf"^f\.npz has no array {missing}, it has '{held[0]}'.*FileDataset\(\.\.\., x="
    with pytest.raises(ValueError, match=told):
        FileDataset("f.npz", **options).training_keys(targets=targets)


def test_a_users_reader_reads_the_first_file_once(folder):
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


def test_samples_have_no_index_but_batches_pass(folder):
    dataset = FileDataset("*.npz")
    dataset.reset()
    for batch in ({"x": 1}, [{"x": 1}, None, []]):
        assert dataset[batch] is batch
    for index in (0, slice(0, 4, 2), "x", (1, 2)):
        with pytest.raises(TypeError, match="samples in files have no index; use"):
            dataset[index]


@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 2}, {"batch_size": 2, "num_workers": 1}], ids=str
)
def test_a_loader_that_makes_batches_of_batches_is_an_error(folder, options):
    dataset = FileDataset("*.npz")
    loader = DataLoader(dataset, sampler=PartialShuffleSampler(dataset), **options)
    with pytest.raises(
        TypeError, match=r"whole batches; use DataLoader\(dataset, sampler=.*, batch_size=None\)"
    ):
        next(iter(loader))
    with pytest.raises(TypeError, match=r"samples in files have no index; use .*batch_size=None"):
        next(iter(DataLoader(dataset, batch_size=None)))


LENGTHS = {"0.npz": 1, "1.npz": 2, "2.npz": 3}
X = np.zeros((3, 2), np.float32)


def spoil(*files):
    for name in files:
        Path(name).write_bytes(b"no zip")


WRONG = [
    (3, {}, TypeError, "files=3"),
    ([None], {}, TypeError, "files=[None]"),
    ([], {}, ValueError, "files="),
    (iter([]), {}, ValueError, "files="),
    ("none/*.npz", {}, ValueError, "files="),
    (Path("."), {}, BadFileError, "is a folder without images"),
    ("9.npz", {}, BadFileError, "9.npz"),
    (["**/*.npz"], {}, BadFileError, "**/*.npz"),
    (["0.npz", Path("[0-2].npz")], {}, BadFileError, "[0-2].npz"),
    (["0.npz", Path("0.npz")], {}, ValueError, "/0.npz occurs more than once"),
    (["0.npz", "a/../0.npz"], {}, ValueError, "/0.npz occurs more than once"),
    (["store://a", "store://a"], {"reader": reader}, ValueError, "store://a"),
    (["0.npz", "t.pt"], {}, ValueError, "'.npz', '.pt'"),
    (["t.txt"], {}, ValueError, "'.txt'"),
    ("*.npz", {"files_len": {"0.npz": 1}}, ValueError, "files_len lacks 1.npz"),
    ("*.npz", {"files_len": {**LENGTHS, "0.npz": 5}}, BadFileError, "files_len has 5"),
    (
        "*.npz",
        {"files_len": {**LENGTHS, "0.npz": 5}, "reader": reader},
        BadFileError,
        ("files_len has 5"),
    ),
    ("*.npz", {"keys": "xy"}, TypeError, "keys='xy'"),
    ("*.npz", {"keys": []}, BadFileError, "holds no arrays"),
    ("*.npz", {"on_bad_file": "ignore"}, ValueError, "on_bad_file='ignore'"),
    ("*.npz", {"on_bad_file": ["skip"]}, ValueError, "on_bad_file=['skip']"),
]


@pytest.mark.parametrize(("files", "options", "error", "name"), WRONG, ids=range(len(WRONG)))
def test_wrong_arguments_are_errors_that_say_what_to_give(
    folder, files, options, error, name, raises
):
    torch.save(torch.zeros(3), "t.pt")
    Path("t.txt").touch()
    (folder / "a").mkdir()
    with raises(error, name):
        FileDataset(files, **options)


@pytest.mark.parametrize(
    ("arrays", "name"),
    [
        ({"x": X}, "holds arrays 'x'"),
        ({"x": np.zeros((3, 3), "f4"), "y": np.arange(3)}, "holds samples of float32 (3,)"),
        ({"x": np.zeros((3, 2)), "y": np.arange(3)}, "holds samples of float64 (2,)"),
        ({"x": X, "y": np.zeros(4, int)}, "holds arrays of different lengths"),
    ],
)
def test_a_file_unlike_the_first_is_an_error_before_training(folder, arrays, name, raises):
    np.savez("2.npz", **arrays)
    with raises(BadFileError, f"{folder / '2.npz'} {name}"):
        FileDataset("*.npz")


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_bad_file_is_skipped_with_a_warning_and_reported(folder, bad):
    spoil(FILES[bad])
    path = str(folder / FILES[bad])
    with pytest.warns(
        UserWarning, match=f"skipped {re.escape(path)} is corrupt: File is"
    ) as caught:
        dataset = FileDataset("*.npz", on_bad_file="skip")
    assert [warning.filename for warning in caught] == [__file__]
    assert dataset.files == [name for name in FILES if name != FILES[bad]]
    assert dataset.number_samples == 6 - (bad + 1)
    assert list(dataset.skipped) == [path]
    assert dataset.skipped[path].startswith("is corrupt: File is")
    with names(path):
        FileDataset("*.npz")


@pytest.mark.parametrize("files_len", [None, LENGTHS])
def test_files_that_are_all_invalid_are_an_error(folder, files_len):
    spoil(*FILES)
    # Without a warning for each, which would be an error here.
    with pytest.raises(
        ValueError, match=("all 3 files were skipped; the last one is corrupt: File is")
    ):
        FileDataset("*.npz", files_len=files_len, on_bad_file="skip")
