"""File indexes: each file is opened once as long as it does not change; other files are never
overwritten.
"""

import functools
import json
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from compss_train import FileDataset
from compss_train.data.readers import NpzReader

ALL = ["0.npz", "1.npz", "2.npz"]


class Opened(NpzReader):
    """Records the files that it described."""

    def __init__(self):
        self.files = []

    def describe(self, path, keys=None):
        self.files.append(os.path.basename(path))
        return super().describe(path, keys)


class Other(Opened):
    pass


def opened(files, index, keys=None, kind=Opened):
    """Return the files that a new data set opens."""
    reader = kind()
    dataset = FileDataset(files, reader, keys=keys, index=index)
    fresh = FileDataset(files, keys=keys)
    assert (dataset.files_len, dataset.layout) == (fresh.files_len, fresh.layout)
    return sorted(reader.files)


def test_files_that_stay_the_same_are_opened_once(files, index, tmp_path, monkeypatch):
    assert opened(files[:2], index) == ALL[:2]
    assert opened(files, index) == ALL[2:]
    before = index.stat().st_mtime_ns
    monkeypatch.chdir(tmp_path)
    for again in (files, files[::-1], files[1:], ALL, ["./0.npz"]):
        assert opened(again, "index.json") == []
    assert index.stat().st_mtime_ns == before
    assert opened(files, None) == opened(files, None) == ALL
    assert sorted(path.name for path in tmp_path.iterdir()) == [*ALL, "index.json"]


@pytest.mark.parametrize("later", [0, 1, -1, 10**9])
def test_a_file_of_another_size_or_time_is_opened_again(files, index, later):
    opened(files, index)
    status = os.stat(files[1])
    if not later:
        np.savez(files[1], x=np.zeros((50, 2), np.float16), y=np.arange(50))
    os.utime(files[1], ns=(status.st_atime_ns, status.st_mtime_ns + later))
    assert opened(files, index) == ["1.npz"]
    assert opened(files, index) == []


def test_other_readers_and_other_keys_open_files_themselves(files, index):
    for options in ({}, {"kind": Other}, {"keys": ["x"]}, {"keys": ["y"]}, {"keys": ["x", "y"]}):
        assert opened(files, index, **options) == ALL
    assert opened(files, index, keys=["y", "x"]) == []


def with_rows(rows):
    return lambda filename, get_data=False: rows


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


@pytest.mark.parametrize(
    "make",
    [lambda n: [one, two][n - 1], with_rows, Counting, lambda n: functools.partial(counted, n)],
)
def test_functions_do_not_use_each_others_numbers(files, index, make):
    assert FileDataset(files, make(1), index=index).number_samples == 3
    assert FileDataset(files, make(2), index=index).number_samples == 6


ASKED = []


def asked_reader(filename, get_data=False):
    ASKED.append(filename)
    return 3


@pytest.mark.parametrize(
    "make", [lambda: asked_reader, lambda: functools.partial(asked_reader, get_data=False)]
)
def test_a_users_reader_is_asked_once(files, index, make):
    ASKED.clear()
    for _ in range(2):
        dataset = FileDataset(files, make(), index=index)
        assert dataset.sizes == (3, 3, 3)
    assert sorted(ASKED) == files


@pytest.mark.parametrize("place", [".", "none/index.json", "0.npz/index.json"])
def test_an_unwritable_index_is_an_error_before_opening_files(files, tmp_path, place):
    with pytest.raises(ValueError, match="give the name of a file in an existing folder"):
        FileDataset(files, reader := Opened(), index=tmp_path / place)
    assert reader.files == []


START = b'{"version": 1, "files": {"a": {"stamp": [], '
ODD = [
    b"",
    b'{"version": ',
    b'{"version": 1}',
    b'{"version": 1, "files": 3}',
    b'{"version": 1, "files": {"a": 3}}',
    b'{"version": 1, "files": {}} {}',
    b'{"version": 2, "files": {"a": {"stamp": [], "rows": 3, "layout": null}}}',
    b'{"version": ' + b"[" * 100_000,
    START + b'"layout": null}}}',
    START + b'"rows": "?", "layout": null}}}',
    START + b'"rows": NaN, "layout": null}}}',
    START + b'"rows": 3, "layout": {"x": 3}}}}',
    START.replace(b'"stamp": [], ', b"") + b'"rows": 3, "layout": null}}}',
    START + b'\xff"rows": 3, "layout": null}}}',
]


@pytest.mark.parametrize("content", ODD, ids=lambda content: str(content[:60]))
def test_an_index_that_is_odd_is_replaced(files, index, content):
    index.write_bytes(content)
    assert opened(files, index) == ALL
    assert opened(files, index) == []


@pytest.mark.parametrize(
    "content",
    [
        b"3",
        b"{}",
        b'{"files": {}}',
        b" ",
        b"a diary",
        b"\x80\x04binary\xff\x00",
        b"\x93NUMPY\x01\x00",
    ],
)
def test_a_file_of_something_else_is_refused_and_stays(files, index, content):
    index.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"^index='.*index\.json' is not a file index; give another"
    ):
        FileDataset(files, reader := Opened(), index=index)
    assert (index.read_bytes(), reader.files) == (content, [])


def test_an_index_is_written_whole_or_not_at_all(files, index, tmp_path, monkeypatch):
    opened(files, index)
    before = index.read_bytes()

    def replace(written, target):
        assert set(json.loads(Path(written).read_text())["files"]) == set(files)
        assert (target, index.read_bytes()) == (index, before)
        raise OSError("no")

    monkeypatch.setattr(os, "replace", replace)
    np.savez(files[0], x=np.zeros((9, 2), np.float16), y=np.arange(9))
    with suppress(OSError):
        FileDataset(files, index=index)
    assert index.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [*ALL, "index.json"]
