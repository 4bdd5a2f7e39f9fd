"""Folders of the store: locked while a program lives, and removed by the next one when it was killed."""

import os
import subprocess
import sys
import time

import pytest

from compss_train.engines import folders
from compss_train.engines.folders import Folders, remove_abandoned

HOLDER = """
import sys
from compss_train.engines.folders import Folders
held = Folders()
print(*held.paths, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(folders, "NEW", -1.0)
    return tmp_path


def abandoned(parent, name="compss_train-123-abcd"):
    (parent / name).mkdir()
    (parent / name / "value").write_bytes(bytes(100))
    return parent / name


def test_what_was_left_behind_is_removed_and_what_is_held_is_not(parent):
    left, first = abandoned(parent), Folders()
    assert not left.exists()
    second = Folders()
    assert all(map(os.path.isdir, [*first.paths, *second.paths]))
    for held in (first, second):
        held.remove()
    assert os.listdir(parent) == []


def test_what_is_new_or_of_others_stays(parent, monkeypatch):
    others = [abandoned(parent, name) for name in ("compss_train-online-1", "other-123-abcd")]
    new = abandoned(parent)
    monkeypatch.setattr(folders, "NEW", 60.0)
    remove_abandoned([str(parent)])
    assert new.is_dir()
    os.utime(new, times=(time.time() - 61,) * 2)
    monkeypatch.setattr(os, "getuid", lambda: new.stat().st_uid + 1)
    remove_abandoned([str(parent)])
    assert new.is_dir()
    monkeypatch.undo()
    remove_abandoned([str(parent)])
    assert not new.exists()
    assert all(path.is_dir() for path in others)


def test_a_lock_ends_with_the_process_and_not_before(parent):
    environment = {**os.environ, "TMPDIR": str(parent)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=-1, stdout=-1, text=True, env=environment, start_new_session=True
    ) as holder:
        paths = holder.stdout.readline().split()
        mine = next(path for path in paths if path.startswith(str(parent)))
        remove_abandoned([str(parent)])
        assert os.path.isdir(mine)
        os.killpg(holder.pid, 9)
        holder.wait(30)
    remove_abandoned([str(parent)])
    assert not os.path.exists(mine)
    for path in paths:  # in shared memory
        remove_abandoned([os.path.dirname(path)])
