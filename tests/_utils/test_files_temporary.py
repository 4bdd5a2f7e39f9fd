"""Temporary folders: locked while a program lives, and removed by the next one when it was killed."""

import os
import subprocess
import sys
import time

import pytest

from compss_train._utils import files
from compss_train._utils.files import TemporaryFolder, remove_abandoned, remove_abandoned_semaphores
from compss_train.engines.local import store
from compss_train.engines.local.store import StoreFolders
from compss_train.online.workers import CheckpointStore


@pytest.fixture
def parent(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(files, "MINIMUM_AGE", -1.0)
    monkeypatch.setattr(files, "MINIMUM_AGE_OF_SEMAPHORES", -1.0)
    return tmp_path


def abandoned(parent, name="compss_train-123-abcd"):
    (parent / name).mkdir()
    (parent / name / "value").write_bytes(bytes(100))
    return parent / name


def created(folder):
    folder.create()
    return folder


def stored():
    folders = StoreFolders()
    folders.create()
    return folders


@pytest.mark.parametrize(
    ("new", "remove"),
    [(lambda: created(TemporaryFolder()), "remove"), (stored, "remove"), (CheckpointStore, "close")],
    ids=["TemporaryFolder", "StoreFolders", "CheckpointStore"],
)
def test_abandoned_folders_are_removed_and_locked_ones_are_not(parent, new, remove):
    left, first = abandoned(parent), new()
    assert not left.exists()
    second = new()
    assert len(os.listdir(parent)) == 2
    for held in (first, second):
        getattr(held, remove)()
    assert os.listdir(parent) == []


STARTED_AND_KILLED = """
import os, signal
from loky import ProcessPoolExecutor
executor = ProcessPoolExecutor(1)
print(os.getpid(), flush=True)
os.killpg(0, signal.SIGKILL)
"""


def test_semaphores_of_programs_that_were_killed_with_all_their_processes_are_removed(parent):
    """Loky removes them itself if its resource tracker is left."""
    program = [sys.executable, "-c", STARTED_AND_KILLED]
    killed = subprocess.run(program, stdout=subprocess.PIPE, text=True, start_new_session=True)
    left = [path.name for path in files.SHARED_MEMORY.glob(f"sem.loky-{int(killed.stdout)}-*")]
    own = f"sem.loky-{os.getpid()}-abc"
    (shared := parent / "shm").mkdir()
    for name in (*left, own):
        (shared / name).touch()
    assert len(left) > 3
    stored().remove()
    assert [path.name for path in shared.iterdir()] == [own]
    remove_abandoned_semaphores()
    assert not [name for name in left if (files.SHARED_MEMORY / name).exists()]


@pytest.mark.parametrize("step", ["mkdir", "open"])
def test_a_folder_whose_creation_was_interrupted_is_removed(parent, monkeypatch, step):
    real = getattr(os, step)

    def interrupted(path, *options, **more):
        done = real(path, *options, **more)
        if str(path).startswith(str(parent)):
            if step == "open":
                os.close(done)
            raise KeyboardInterrupt
        return done

    folders = StoreFolders()
    with monkeypatch.context() as patched:
        patched.setattr(files.os, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            folders.create()
    assert os.listdir(parent) != []
    folders.remove()
    assert os.listdir(parent) == []


def test_new_folders_and_those_of_others_stay(parent, monkeypatch):
    others = [abandoned(parent, name) for name in ("compss_train-online-1", "other-123-abcd")]
    new = abandoned(parent)
    monkeypatch.setattr(files, "MINIMUM_AGE", 60.0)
    remove_abandoned(str(parent))
    assert new.is_dir()
    os.utime(new, times=(time.time() - 61,) * 2)
    monkeypatch.setattr(os, "getuid", lambda: new.stat().st_uid + 1)
    remove_abandoned(str(parent))
    assert new.is_dir()
    monkeypatch.undo()
    remove_abandoned(str(parent))
    assert not new.exists()
    assert all(path.is_dir() for path in others)


def test_removing_twice_does_nothing_more(parent):
    first = created(TemporaryFolder(str(parent)))
    first.remove()
    second = created(TemporaryFolder(str(parent)))
    first.remove()
    remove_abandoned(str(parent))
    assert os.path.isdir(second.path)
    second.remove()
