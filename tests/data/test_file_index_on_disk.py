"""The file of an index: written atomically, replaced if invalid; other files are never overwritten."""

import json
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from compss_train import BadFileError, FileDataset
from tests.data.recording_readers import ALL, Opened, opened


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
    with pytest.raises(ValueError, match="give the name of a file in an existing folder"):
        FileDataset(files, reader, index=tmp_path / place)
    assert reader.files == []


def test_a_relative_index_is_that_of_the_folder_where_the_dataset_is_made(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert opened(files, "index.json") == ALL
    assert opened(files, tmp_path / "index.json") == []


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
    with pytest.raises(ValueError, match=r"^index='.*index\.json' is not a file index; give another"):
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


def test_an_index_has_the_rights_that_any_new_file_has(files, index, tmp_path):
    opened(files, index)
    (tmp_path / "plain").touch()
    assert index.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_index_that_could_not_be_replaced_leaves_no_other_file(files, index, tmp_path, monkeypatch):
    def replace(written, target):
        raise OSError("no")

    monkeypatch.setattr(os, "replace", replace)
    with suppress(OSError):
        FileDataset(files, index=index)
    assert sorted(path.name for path in tmp_path.iterdir()) == ALL
