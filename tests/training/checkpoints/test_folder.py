"""A folder of checkpoints: the newest is found, an older good one offered, and what is not ours left alone."""

import os
import re
import socket
import subprocess
import sys

import pytest

from compss_train import BadCheckpointError
from compss_train.training.checkpoints import checkpoints, newest, write
from compss_train.training.checkpoints.folder import path_of, purge


@pytest.fixture
def folder(tmp_path):
    for number in (2, 10, 9, 1_000_000):
        write(path_of(tmp_path, number), {"number": number})
    return tmp_path


def damage(path):
    (path / "arrays.safetensors").write_bytes(b"")


FOREIGN = ["round-5", "round-0000005", "round-abc", "best", ".round-000001", "round-000001.bak", "round-000003.d"]


@pytest.fixture
def foreign(folder):
    """Names that a user may have given to other things in the same folder."""
    for name in FOREIGN:
        (folder / name).mkdir()
        (folder / name / "mine").touch()
    (folder / "round-000004").touch()
    (folder / "notes.txt").touch()
    return {*FOREIGN, "round-000004", "notes.txt"}


def test_checkpoints_are_found_by_number_the_oldest_first(folder, foreign):
    found = checkpoints(folder)
    assert list(found) == [2, 9, 10, 1_000_000]
    assert [path.name for path in found.values()] == [
        "round-000002",
        "round-000009",
        "round-000010",
        "round-1000000",
    ]
    assert checkpoints(folder / "nowhere") == checkpoints(folder / "notes.txt") == {}


def test_the_newest_is_given_and_so_is_one_that_is_named(folder, foreign):
    assert newest(folder) == (folder / "round-1000000", {"number": 1_000_000})
    assert newest(str(folder / "round-000009")) == (folder / "round-000009", {"number": 9})
    (folder / "round-000009").rename(folder / "renamed")
    assert newest(folder / "renamed") == (folder / "renamed", {"number": 9})


def test_a_folder_of_checkpoints_may_be_called_as_one(folder):
    inside = folder / "round-000077"
    write(path_of(inside, 3), {"number": 3})
    assert newest(inside) == (inside / "round-000003", {"number": 3})


def test_where_there_is_none_it_is_said(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(FileNotFoundError, match=rf"no checkpoint in {re.escape(str(path))}; .*Checkpoint"):
            newest(path)
        (tmp_path / "file").touch()


def test_a_bad_one_is_an_error_that_offers_the_newest_good_one(folder):
    damage(folder / "round-1000000")
    damage(folder / "round-000010")
    for asked in (folder, folder / "round-000010"):
        with pytest.raises(BadCheckpointError, match=r"round-000009 is good: resume from that folder") as caught:
            newest(asked)
        assert caught.value.good == folder / "round-000009"
    assert newest(caught.value.good)[1] == {"number": 9}
    for number in (9, 2):
        damage(path_of(folder, number))
    with pytest.raises(BadCheckpointError) as caught:
        newest(folder)
    assert caught.value.good is None
    assert "is good" not in str(caught.value)


def test_one_that_is_not_there_is_an_error_that_offers_another(folder):
    with pytest.raises(BadCheckpointError, match=r"round-000003 cannot be used: .*round-1000000 is good"):
        newest(folder / "round-000003")


def test_purge_keeps_what_it_is_told_to_and_what_is_not_ours(folder, foreign):
    purge(folder, {10, None, 77})
    assert set(os.listdir(folder)) == {"round-000010", *foreign}
    assert all((folder / name / "mine").exists() for name in FOREIGN)


def test_purge_removes_what_dead_processes_of_this_machine_have_left(folder):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host, living = socket.gethostname(), os.getppid()
    gone = [f".round-000011.{host}.{dead.pid}.new", f".round-000002.{host}.{dead.pid}.old"]
    kept = [f".round-000011.{host}.{living}.new", f".round-000011.other.{host}.x.new", f".round-1.x.{dead.pid}.new"]
    for name in (*gone, *kept):
        (folder / name).mkdir()
        (folder / name / "state.json").touch()
    before = checkpoints(folder)
    purge(folder, before)
    assert checkpoints(folder) == before
    assert {name for name in os.listdir(folder) if name.startswith(".")} == set(kept)
