"""The lock on a folder: one program at a time, and none that is left behind."""

import multiprocessing
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from compss_train._utils.files import LOCK_FILE, FolderLock
from compss_train.callbacks import Callback, Checkpoint
from tests.helpers.small_fits import fit, trainer_of

HOLDER = """
import sys
from pathlib import Path
from compss_train._utils.files import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def assert_held(folder, by):
    with pytest.raises(BlockingIOError, match=rf"process {by} on \S+ is writing to this folder; wait") as caught:
        FolderLock(folder).acquire()
    assert caught.value.filename == str(folder)


def test_the_lock_is_exclusive(tmp_path):
    lock = FolderLock(tmp_path)
    for _ in range(2):
        lock.acquire()
        lock.acquire()
        assert_held(tmp_path, os.getpid())
        lock.release()
        lock.release()
        assert os.listdir(tmp_path) == []


def test_a_killed_program_releases_the_lock(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=-1, stdout=-1) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert_held(tmp_path, holder.pid)
        holder.kill()
    lock = FolderLock(tmp_path)
    lock.acquire()
    assert_held(tmp_path, os.getpid())
    lock.release()


def test_a_forked_process_does_not_keep_the_lock(tmp_path):
    lock = FolderLock(tmp_path)
    lock.acquire()
    ended = multiprocessing.get_context("fork").Event()
    child = multiprocessing.get_context("fork").Process(target=ended.wait)
    child.start()
    lock.release()
    other = FolderLock(tmp_path)
    other.acquire()
    other.release()
    ended.set()
    child.join()


def test_one_of_many_threads_holds_the_lock_at_any_time(tmp_path):
    holders, most, refused = [], [], []

    def want(number):
        for _ in range(200):
            lock = FolderLock(tmp_path)
            try:
                lock.acquire()
            except BlockingIOError:
                refused.append(number)
                continue
            holders.append(number)
            most.append(len(holders))
            holders.remove(number)
            lock.release()

    threads = [threading.Thread(target=want, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert len(most) + len(refused) == 800
    assert os.listdir(tmp_path) == []


def test_without_support_for_locks_nothing_is_locked(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError("no locks here")

    monkeypatch.setattr("fcntl.flock", unsupported)
    lock = FolderLock(tmp_path)
    lock.acquire()
    FolderLock(tmp_path).acquire()
    lock.release()


def test_a_full_disk_does_not_prevent_locking(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space")

    lock = FolderLock(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("os.write", full)
        lock.acquire()
    with pytest.raises(BlockingIOError, match="another program is writing"):
        FolderLock(tmp_path).acquire()
    lock.release()
    assert os.listdir(tmp_path) == []


def test_a_lock_in_a_folder_that_became_read_only_is_released(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError

    lock, descriptors = FolderLock(tmp_path), len(os.listdir("/proc/self/fd"))
    lock.acquire()
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.unlink", refused)
        lock.release()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    (tmp_path / LOCK_FILE).write_text("process 123456789 on a-host-with-a-long-name.somewhere")
    lock.acquire()
    assert_held(tmp_path, os.getpid())
    assert "a-host-with-a-long-name" not in (tmp_path / LOCK_FILE).read_text()
    lock.release()


def test_the_lock_is_released_after_a_change_of_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "here" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    lock = FolderLock(Path("run"))
    lock.acquire()
    monkeypatch.chdir(tmp_path)
    lock.release()
    assert os.listdir(tmp_path / "here" / "run") == []


def test_checkpoints_of_two_fits_do_not_mix(tmp_path):
    class Second(Callback):
        """Begins another fit with the same folder."""

        def on_round_end(self, trainer, record):
            if record["round"] == 1:
                with pytest.raises(BlockingIOError, match=re.escape("is writing to this folder")):
                    fit(trainer_of(), Checkpoint(tmp_path), resume=True)

    fit(trainer_of(), Checkpoint(tmp_path), Second())
    assert not (tmp_path / LOCK_FILE).exists()
    with pytest.raises(ZeroDivisionError):
        fit(trainer_of(), Checkpoint(tmp_path), Raising(), resume=True, num_epochs=4)
    assert not (tmp_path / LOCK_FILE).exists()
    fit(trainer_of(), Checkpoint(tmp_path), resume=True, num_epochs=4)


class Raising(Callback):
    """Ends a fit."""

    def on_round_start(self, trainer, number):
        raise ZeroDivisionError
