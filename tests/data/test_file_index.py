import functools
import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from compss_train import BadFileError, FileDataset
from compss_train.data.file_index import FileIndex
from compss_train.data.layout import Description, Field
from compss_train.data.readers import NpzReader


class Opened(NpzReader):
    """Remembers what it described."""

    def __init__(self):
        self.files = []

    def describe(self, path, keys=None):
        self.files.append(os.path.basename(path))
        return super().describe(path, keys)


class Other(Opened):
    pass


@pytest.fixture
def files(tmp_path):
    for number in range(3):
        np.savez(tmp_path / f"{number}.npz", x=np.zeros((number + 1, 2), np.float16), y=np.arange(number + 1))
    return sorted(map(str, tmp_path.glob("*.npz")))


@pytest.fixture
def index(tmp_path):
    return tmp_path / "index.json"


def opened(files, index, keys=None, kind=Opened):
    """Return what a dataset had to open."""
    reader = kind()
    dataset = FileDataset(files, reader, keys=keys, index=index)
    fresh = FileDataset(files, keys=keys)
    assert (dataset.files_len, dataset.layout) == (fresh.files_len, fresh.layout)
    return sorted(reader.files)


ALL = ["0.npz", "1.npz", "2.npz"]


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


def test_an_index_in_which_nothing_changes_is_not_written(files, index, tmp_path):
    opened(files, index)
    before = index.stat(), tmp_path.stat().st_mtime_ns
    assert opened(files, index) == opened(files[::-1], index) == opened(files[1:], index) == []
    with open(files[1], "wb") as file:
        file.write(b"no zip")
    with pytest.raises(BadFileError):
        FileDataset(files, Opened(), index=index)
    assert (index.stat(), tmp_path.stat().st_mtime_ns) == before


@pytest.mark.parametrize("place", [".", "none/index.json", "0.npz/index.json"])
def test_an_index_that_cannot_be_written_is_an_error_before_a_file_is_opened(files, tmp_path, place):
    reader = Opened()
    with pytest.raises(ValueError, match="give the name of a file in a folder that is there"):
        FileDataset(files, reader, index=tmp_path / place)
    assert reader.files == []


def test_a_relative_index_is_that_of_the_folder_where_the_dataset_is_made(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert opened(files, "index.json") == ALL
    assert opened(files, tmp_path / "index.json") == []


def test_files_len_opens_one_file_and_remembers_it(files, index):
    files_len = dict(zip(files, (1, 2, 3), strict=True))
    for expected in (["0.npz"], []):
        FileDataset(files, reader := Opened(), files_len, index=index)
        assert reader.files == expected


ODD = [
    b"",
    b'{"version": ',
    b'{"version": }',
    b'{"version": 1}',
    b'{"version": null, "files": {}}',
    b'{"version": 1, "files": {}} {}',
    b'{"version": 2, "files": {"a": {"stamp": [], "rows": 3, "layout": null}}}',
    b'{"version": ' + b"[" * 100_000,
    b'{"files": []}',
    b'{"files": 3}',
    b'{"files": {"a": 3}}',
    b'{"files": {"a": {}}}',
    b'{"files": {"a": {"rows": 3, "layout": null}}}',
    b'{"files": {"a": {"stamp": [], "layout": null}}}',
    b'{"files": {"a": {"stamp": [], "rows": 3}}}',
    b'{"files": {"a": {"stamp": [], "rows": "?", "layout": null}}}',
    b'{"files": {"a": {"stamp": [], "rows": null, "layout": null}}}',
    b'{"files": {"a": {"stamp": [], "rows": NaN, "layout": null}}}',
    b'{"files": {"a": {"stamp": [], "rows": 3, "layout": {"x": 3}}}}',
    b'{"files": {"a": {"stamp": [], "rows": 3, "layout": {"x": {"dtype": "f4", "shape": 3}}}}}',
]
ODD = [content.replace(b'{"files"', b'{"version": 1, "files"') for content in ODD]


def is_replaced(files, index):
    assert opened(files, index) == ALL
    assert opened(files, index) == []


@pytest.mark.parametrize("content", ODD, ids=lambda content: str(content[:60]))
def test_an_index_that_is_odd_is_replaced(files, index, content):
    index.write_bytes(content)
    is_replaced(files, index)


def test_an_index_with_bytes_that_are_no_text_is_replaced(files, index):
    opened(files, index)
    content = bytearray(index.read_bytes())
    content[len(content) // 2] |= 128
    index.write_bytes(content)
    is_replaced(files, index)


OTHERS = [b"{", b"3", b"null", b"[]", b"{}", b'{"files": {}}', b" ", b'{"versions": 1}', b"a diary"]
BINARIES = [b"\x80\x04binary\xff\x00", '{"version": 1}'.encode("utf-16"), b"\x93NUMPY\x01\x00"]


@pytest.mark.parametrize("content", [*OTHERS, *BINARIES])
def test_a_file_of_something_else_is_refused_as_an_index_and_stays(files, index, content):
    index.write_bytes(content)
    reader = Opened()
    with pytest.raises(ValueError, match=r"^index='.*index\.json' is something else than an index; give another"):
        FileDataset(files, reader, index=index)
    assert (index.read_bytes(), reader.files) == (content, [])


def test_one_of_the_files_is_refused_as_an_index_and_stays(files):
    before = Path(files[0]).read_bytes()
    with pytest.raises(ValueError):
        FileDataset(files, index=files[0])
    assert Path(files[0]).read_bytes() == before


def test_an_index_cut_short_anywhere_is_replaced_or_of_use(files, index):
    opened(files, index)
    content = index.read_bytes()
    for cut in (0, *range(len('{"version": '), len(content), 17)):
        index.write_bytes(content[:cut])
        assert opened(files, index) == ALL


def test_an_entry_of_another_stamp_is_not_believed(files, index):
    opened(files, index)
    known = json.loads(index.read_text())
    for stamp in (None, [], ["Opened"], 3, {}):
        known["files"][files[0]]["stamp"] = stamp
        index.write_text(json.dumps(known))
        assert opened(files, index) == ["0.npz"]


@pytest.mark.parametrize("part", ["stamp", "rows", "layout"])
def test_an_index_with_half_an_entry_is_replaced(files, index, part):
    opened(files, index)
    known = json.loads(index.read_text())
    del known["files"][files[0]][part]
    index.write_text(json.dumps(known))
    is_replaced(files, index)


def test_the_index_is_small_json_by_absolute_name(files, index):
    opened(files, index)
    known = json.loads(index.read_text())
    assert set(known["files"]) == set(files)
    assert index.stat().st_size < 3 * 500


def test_the_index_is_written_whole_or_not_at_all(files, index, tmp_path, monkeypatch):
    opened(files, index)
    before, replaced = index.read_bytes(), []

    def replace(written, target):
        replaced.append((json.loads(Path(written).read_text()), target, index.read_bytes()))
        os.rename(written, target)

    monkeypatch.setattr(os, "replace", replace)
    np.savez(files[0], x=np.zeros((9, 2), np.float16), y=np.arange(9))
    assert opened(files, index) == ["0.npz"]
    (written, target, at_that_time), *others = replaced
    assert not others
    assert (set(written["files"]), target, at_that_time) == (set(files), index, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*ALL, "index.json"]


def test_no_other_files_stay(files, index, tmp_path):
    for _ in range(2):
        opened(files, index)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*ALL, "index.json"]


def test_datasets_of_one_process_that_write_an_index_at_a_time_do_not_hinder_each_other(files, index, monkeypatch):
    def replace(written, target):
        monkeypatch.undo()
        FileDataset(files, index=index)  # as another thread might between writing and this
        os.replace(written, target)

    monkeypatch.setattr(os, "replace", replace)
    FileDataset(files, index=index)
    assert set(json.loads(index.read_text())["files"]) == set(files)


def test_bad_files_are_looked_at_again_and_good_ones_remembered(files, index):
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


def test_an_index_has_the_rights_that_any_new_file_has(files, index, tmp_path):
    opened(files, index)
    (tmp_path / "plain").touch()
    assert index.stat().st_mode == (tmp_path / "plain").stat().st_mode


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


def test_an_index_that_could_not_be_put_in_its_place_leaves_no_other_file(files, index, tmp_path, monkeypatch):
    def replace(written, target):
        raise OSError("no")

    monkeypatch.setattr(os, "replace", replace)
    with suppress(OSError):
        FileDataset(files, index=index)
    assert sorted(path.name for path in tmp_path.iterdir()) == ALL


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
