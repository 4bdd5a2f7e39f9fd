"""Files: atomic writes, locks of folders, and temporary folders that are removed after a kill."""

import errno
import fcntl
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from compss_train._utils import files
from compss_train._utils.files import FolderLock, TemporaryFolder, atomic_path, remove_abandoned
from compss_train.callbacks import Callback, Checkpoint
from compss_train.engines.local import store
from compss_train.engines.local.store import StoreFolders
from tests.helpers.small_fits import fit, trainer_of


def test_a_file_is_replaced_when_it_is_complete(tmp_path):
    path = tmp_path / "file.txt"
    for text in ("first", "second"):
        with atomic_path(path) as temporary:
            assert temporary.suffix == ".txt"
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == "first"
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_the_existing_file_stays_if_writing_fails(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError), atomic_path(path) as temporary:
        temporary.write_text("half\ud800", encoding="utf-8")
    # As writing to an open file raises it: without a name.
    full = OSError(errno.ENOSPC, "No space left on device")
    for error, message in (
        (full, "No space left"),
        (OSError("9 requested and 5 written"), ("is the disk full?")),
    ):
        with pytest.raises(OSError, match=message) as caught, atomic_path(path):
            raise error
        assert caught.value.filename == str(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_an_error_that_names_the_file(tmp_path):
    with (
        pytest.raises(
            FileNotFoundError, match=r"missing does not exist; create it.*missing/plot\.png"
        ),
        atomic_path(tmp_path / "missing" / "plot.png"),
    ):
        pass


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
    with pytest.raises(
        BlockingIOError, match=rf"process {by} on \S+ is writing to this folder; wait"
    ) as caught:
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
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=-1, stdout=-1
    ) as holder:
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
    holders = []
    most = []
    refused = []

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
    with pytest.warns(UserWarning, match="without locks: no other fit may write to it"):
        fit(trainer_of(), Checkpoint(tmp_path / "run"))


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


def test_space_is_checked_without_a_file_that_stays(tmp_path):
    files.check_space(tmp_path, 2**16)
    with pytest.raises(OSError, match=r"No space left|too large"):
        files.check_space(tmp_path, 2**60)
    assert os.listdir(tmp_path) == []


def test_nothing_is_written_where_space_cannot_be_reserved(tmp_path, monkeypatch):
    """As on ext3 or NFS 3, where glibc writes zeros, but to files that are opened to append."""

    def emulated(descriptor, offset, size):
        if not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND:
            pytest.fail(f"{size} bytes would be written")
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(os, "posix_fallocate", emulated)
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_blocks=9, f_bavail=2, f_frsize=512)
    )
    files.check_space(tmp_path, 1024)
    with pytest.raises(OSError, match="No space left") as caught:
        files.check_space(tmp_path, 1025)
    assert caught.value.filename == str(tmp_path)
    monkeypatch.delattr(os, "posix_fallocate")  # as on macOS
    with pytest.raises(OSError, match="No space left"):
        files.check_space(tmp_path, 1025)


def test_the_lock_is_released_after_a_change_of_folder(tmp_path, monkeypatch):
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
    assert not (tmp_path / files.LOCK_FILE).exists()
    with pytest.raises(ZeroDivisionError):
        fit(trainer_of(), Checkpoint(tmp_path), Raising(), resume=True, num_epochs=4)
    assert not (tmp_path / files.LOCK_FILE).exists()
    fit(trainer_of(), Checkpoint(tmp_path), resume=True, num_epochs=4)


class Raising(Callback):
    """Ends a fit."""

    def on_round_start(self, trainer, number):
        raise ZeroDivisionError


@pytest.fixture
def parent(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(files, "MINIMUM_AGE", -1.0)
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
    [(lambda: created(TemporaryFolder()), "remove"), (stored, "remove")],
    ids=["TemporaryFolder", "StoreFolders"],
)
def test_abandoned_folders_are_removed_and_locked_ones_are_not(parent, new, remove):
    left = abandoned(parent)
    first = new()
    assert not left.exists()
    second = new()
    assert len(os.listdir(parent)) == 2
    for held in (first, second):
        getattr(held, remove)()
    assert os.listdir(parent) == []


def test_a_folder_in_use_stays_although_the_file_in_it_was_removed(parent):
    """A cleaner of temporary folders removes files that are some days old."""
    folder = created(TemporaryFolder())
    (parent / folder.path / files.LOCK_FILE).unlink()
    remove_abandoned(str(parent))
    assert os.path.isdir(folder.path)
    descriptor = os.open(folder.path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):  # systemd's leaves what is in a locked folder
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    folder.remove()
    assert os.listdir(parent) == []


@pytest.mark.parametrize("name", ["é", "\udce9", "x" * 200], ids=ascii)
def test_folders_may_have_names_that_the_tracker_does_not_take(tmp_path, monkeypatch, name):
    parent = tmp_path / name / name / name
    parent.mkdir(parents=True)
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(parent))
    folders = stored()
    assert len(os.listdir(parent)) == 1
    folders.remove()
    assert os.listdir(parent) == []


def test_folders_of_a_program_that_is_killed_are_removed_without_a_word(tmp_path):
    code = """
import os
from compss_train.engines.local.store import StoreFolders
folders = StoreFolders()
folders.create()
print(*folders.paths, flush=True)
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    # The tracker has ended, too, as it holds the pipe.
    assert (killed.returncode, killed.stderr) == (-9, "")
    assert not any(map(os.path.exists, killed.stdout.split()))


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
