"""File indexes: each file is opened once as long as it does not change."""

import functools
import os
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from compss_train import BadFileError, FileDataset
from compss_train.data.file_index import FileIndex
from compss_train.data.layout import Description, Field
from compss_train.data.readers import READERS, CustomReader, Hdf5Reader, NpyReader, NpzReader, TorchReader
from tests.data.recording_readers import ALL, Opened, Other, opened


def test_files_are_opened_once_as_long_as_they_stay_the_same(files, index):
    assert opened(files, index) == ALL
    assert opened(files, index) == []
    assert opened(files[::-1], index) == []


def test_without_an_index_they_are_opened_each_time(files):
    assert opened(files, None) == ALL
    assert opened(files, None) == ALL


def test_new_files_are_opened_and_old_ones_remembered(files, index):
    assert opened(files[:2], index) == ALL[:2]
    assert opened(files, index) == ALL[2:]
    assert opened(files[1:], index) == []
    assert opened(files, index) == []


def test_a_file_whose_size_changed_is_opened_again(files, index):
    opened(files, index)
    status = os.stat(files[1])
    np.savez(files[1], x=np.zeros((50, 2), np.float16), y=np.arange(50))
    os.utime(files[1], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert opened(files, index) == ["1.npz"]
    assert opened(files, index) == []


@pytest.mark.parametrize("later", [1, -1, 10**9])
def test_a_file_whose_time_changed_is_opened_again(files, index, later):
    opened(files, index)
    status = os.stat(files[2])
    os.utime(files[2], ns=(status.st_atime_ns, status.st_mtime_ns + later))
    assert opened(files, index) == ["2.npz"]
    assert opened(files, index) == []


@pytest.mark.parametrize("kind", [NpzReader, NpyReader, TorchReader, Hdf5Reader])
def test_an_index_stays_valid_when_a_reader_moves_to_another_module(kind, index, tmp_path, monkeypatch):
    file = str(tmp_path / "a.bin")
    Path(file).write_bytes(b"content")
    describe = mock.Mock(return_value=Description(3, None))
    monkeypatch.setattr(kind, "describe", describe)
    FileIndex(index).describe([file], kind())
    monkeypatch.setattr(kind, "__module__", "elsewhere.readers")
    assert FileIndex(index).describe([file], kind()) == [Description(3, None)]
    assert describe.call_count == 1


def test_readers_of_the_package_have_names_of_their_own_in_an_index():
    names = [kind.stored_name for kind in {*READERS.values(), CustomReader}]
    assert sorted(names) == ["arrow", "csv", "custom", "hdf5", "npy", "npz", "parquet", "torch"]


def test_relative_and_absolute_names_share_an_entry(files, index, tmp_path, monkeypatch):
    opened(files, index)
    monkeypatch.chdir(tmp_path)
    assert opened(ALL, index) == []
    assert opened(["./0.npz"], "index.json") == []


def test_other_readers_and_other_keys_open_files_themselves(files, index):
    assert opened(files, index) == ALL
    assert opened(files, index, kind=Other) == ALL
    assert opened(files, index, keys=["x"]) == ALL
    assert opened(files, index, keys=["y"]) == ALL
    assert opened(files, index, keys=["x", "y"]) == ALL
    assert opened(files, index, keys=["y", "x"]) == []


def with_rows(rows):
    def reader(filename, get_data=False):
        return ({"x": np.zeros(rows)}, rows) if get_data else rows

    return reader


def counted(rows, filename, get_data=False):
    return rows


class Counting:
    def __init__(self, rows):
        self.rows = rows

    def __call__(self, filename, get_data=False):
        return self.rows


def one(filename, get_data=False):
    return 1


def two(filename, get_data=False):
    return 2


def test_functions_of_other_names_do_not_use_each_others_numbers(files, index):
    assert FileDataset(files, one, index=index).number_samples == 3
    assert FileDataset(files, two, index=index).number_samples == 6


@pytest.mark.parametrize(
    "make", [with_rows, Counting, lambda n: functools.partial(counted, n), lambda n: lambda f, get_data=False: n]
)
def test_functions_of_the_same_name_do_not_use_each_others_numbers(files, index, make):
    assert FileDataset(files, make(1), index=index).number_samples == 3
    assert FileDataset(files, make(2), index=index).number_samples == 6


ASKED = []


def asked_reader(filename, get_data=False):
    ASKED.append(filename)
    return 3


@pytest.mark.parametrize(
    "make", [lambda: asked_reader, lambda: functools.partial(asked_reader, get_data=False), lambda: with_rows(3)]
)
def test_a_users_reader_is_asked_once_however_often_it_is_made(files, index, make, monkeypatch):
    ASKED.clear()
    for _ in range(2):
        dataset = FileDataset(files, make(), index=index)
        assert (dataset.sizes, dataset.layout) == ((3, 3, 3), None)
        status = index.stat()
    assert sorted(ASKED) in (files, [])
    FileDataset(files, make(), index=index)
    assert index.stat() == status


def test_a_reader_that_cannot_be_pickled_is_not_remembered(files, index):
    lock = threading.Lock()

    def reader(filename, get_data=False):
        with lock:
            asked.append(filename)
        return 3

    asked = []
    for _ in range(2):
        FileDataset(files, reader, index=index)
    assert sorted(asked) == sorted(files * 2)
    assert not index.exists()


def test_files_len_opens_one_file_and_remembers_it(files, index):
    files_len = dict(zip(files, (1, 2, 3), strict=True))
    for expected in (["0.npz"], []):
        FileDataset(files, reader := Opened(), files_len, index=index)
        assert reader.files == expected


def test_invalid_files_are_opened_again_and_valid_ones_remembered(files, index):
    opened(files, index)
    good = Path(files[1]).read_bytes()
    with open(files[1], "wb") as file:
        file.write(b"no zip")
    for _ in range(2):
        with pytest.raises(BadFileError, match=r"1\.npz cannot be read: BadZipFile"):
            FileDataset(files, Opened(), index=index)
    assert opened(files[::2], index) == []
    Path(files[1]).write_bytes(good)
    assert opened(files, index) == ["1.npz"]
    assert opened(files, index) == []


def test_files_that_are_good_are_remembered_although_another_is_bad(files, index):
    with open(files[1], "wb") as file:
        file.write(b"no zip")
    with pytest.raises(BadFileError):
        FileDataset(files, Opened(), index=index)
    assert opened(files[::2], index) == []


def test_a_file_that_is_gone_is_not_remembered(files, index):
    opened(files, index)
    os.remove(files[1])
    with pytest.raises(BadFileError, match=r"1\.npz does not exist"):
        FileDataset(files, Opened(), index=index)
    assert opened(files[::2], index) == []


def test_remembered_files_are_still_compared(files, index):
    np.savez(files[2], x=np.zeros(3))
    for _ in range(2):
        with pytest.raises(BadFileError, match=r"2\.npz holds arrays 'x', but .*0\.npz holds 'x', 'y'"):
            FileDataset(files, index=index)


def test_files_are_described_in_order_good_or_bad(files, tmp_path):
    found = FileIndex().describe([files[2], str(tmp_path / "no.npz"), *files[:2]], NpzReader())
    layout = {"x": Field("float16", (2,)), "y": Field("int64", ())}
    assert found[0] == Description(3, layout)
    assert isinstance(found[1], BadFileError)
    assert found[2:] == [Description(1, layout), Description(2, layout)]


def test_shapes_come_back_as_they_were(files, index):
    first, second = (FileDataset(files, index=index).layout for _ in range(2))
    assert first == second == {"x": Field("float16", (2,)), "y": Field("int64", ())}
    assert type(second["x"].shape) is tuple


def test_any_file_name_is_remembered(tmp_path, index):
    for name in ('"q".npz', "new\nline.npz", "ünï.npz", os.fsdecode(b"\xff.npz")):
        np.savez(os.path.join(tmp_path, name), x=np.zeros((1, 2)), y=np.zeros(1))
        assert opened([os.path.join(tmp_path, name)], index) == [name]
        assert opened([os.path.join(tmp_path, name)], index) == []
