"""Files and folders: atomic writes, locks, and folders that are removed even after a kill."""

import errno
import fcntl
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

from filelock import FileLock, Timeout


class Disk:
    """File operations that must survive a kill.

    Tests pass one that fails, or forgets what was not synced.
    """

    def make_folder(self, path: Path) -> None:
        """Create a folder unless it exists."""
        path.mkdir(exist_ok=True)

    def write(self, path: Path, write: Callable[[Path], object]) -> None:
        """Call ``write(path)``, which writes the file."""
        write(path)

    def sync(self, path: Path) -> None:
        """Flush a file, or the entries of a folder, to the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, old: Path, new: Path) -> None:
        """Give a file one more name; raise ``OSError`` where the file system has no hard links."""
        new.hardlink_to(old)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or folder."""
        old.rename(new)

    def remove(self, folder: Path) -> None:
        """Remove a folder, or as much of it as possible."""
        shutil.rmtree(folder, ignore_errors=True)


DISK = Disk()
"""The file system of this machine."""


def make_folders(path: Path, disk: Disk = DISK) -> None:
    """Create a folder and those above it, so that they still exist if the machine stops.

    Existing folders are synced too: the program that created them may have been killed before it
    synced them.
    """
    if not path.exists():
        make_folders(path.parent, disk)
        disk.make_folder(path)
    with suppress(PermissionError):  # a folder that may be written to, but not be listed
        disk.sync(path.parent)


def check_folder(path: Path) -> None:
    """Raise ``FileNotFoundError`` unless the folder of a file exists."""
    if not path.parent.is_dir():
        reason = f"the folder {path.parent} does not exist; create it, or give another path"
        raise FileNotFoundError(errno.ENOENT, reason, str(path))


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to ``path`` after the block.

    The temporary path has the same suffix. If the block raises, the temporary file is removed and
    ``path`` is unchanged. An ``OSError`` about the temporary file, or about no file, is raised as
    one about ``path``. Raises ``FileNotFoundError`` if the folder does not exist.
    """
    path = Path(path)
    check_folder(path)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is None:  # numpy's, after a short write
            raise OSError(errno.EIO, f"{error}; is the disk full?", str(path)) from error
        if error.filename is None or str(error.filename) == str(temporary):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, text: str) -> None:
    """Write a text file under a temporary name, and rename it when it is complete."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_in_memory(path: Path, write: Callable[[BytesIO], object]) -> None:
    """Write a file that ``write`` makes in memory.

    Torch's writer of archives names no full disk, and may abort the program when it is collected.
    """
    content = BytesIO()
    write(content)
    path.write_bytes(content.getbuffer())


def check_private(folder: Path) -> Path:
    """Return a folder that only this user can write to.

    Raises ``ValueError`` for another one, or for a link to one.
    """
    status = folder.lstat()
    is_of_user = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_of_user or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(
            f"{folder}: others could write to it; give (or set TMPDIR to) your own, or remove it"
        )
    return folder


def is_special_file(path: Path) -> bool:
    """Return whether the path exists and is neither a file nor a folder, such as ``/dev/null``."""
    return path.exists() and not (path.is_file() or path.is_dir())


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; raise ``OSError`` for a FIFO, which would be waited for."""
    check_file(path)
    return path.read_bytes()


def check_file(path: Path) -> None:
    """Raise ``OSError`` for what exists and is no file, such as a FIFO, which hangs a reader."""
    if is_special_file(path):
        raise OSError(f"{path} is not a file")


def check_writable(path: Path) -> None:
    """Create an empty file and its folders, unless it exists.

    Raises ``OSError`` if it cannot be written. Special files such as ``/dev/null`` are refused,
    because an atomic write would replace them.
    """
    if is_special_file(path):
        reason = "it exists and is not a regular file; give another path"
        raise FileExistsError(errno.EEXIST, reason, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8"):
        pass


def check_space(folder: Path, size: int) -> None:
    """Raise ``OSError`` if a file of so many bytes does not fit in a folder, without writing them.

    Quotas count where the file system can reserve space; elsewhere the free space of the file
    system counts alone.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        # Where the file system cannot reserve, glibc would write zeros, but not to a file that is
        # opened to append.
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
                return
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.EINVAL, errno.EOPNOTSUPP):
                raise
    system = os.statvfs(folder)
    # Some network file systems say 0 blocks.
    if system.f_blocks and system.f_bavail * system.f_frsize < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


MINIMUM_AGE = 60.0
"""Seconds after which a temporary folder without a lock is abandoned: a new one has none yet."""

LOCK_FILE = ".lock"

SHARED_MEMORY = Path("/dev/shm")
"""An in-memory file system, where one exists."""


class FolderLock:
    """A lock that keeps other programs out of a folder, or of one ``file`` in it.

    It is an ``flock`` of another file in the folder. The system releases it when the program dies,
    and network file systems share it between nodes. On a file system without locks nothing is
    locked.
    """

    def __init__(self, folder: Path, file: str | None = None) -> None:
        self._folder = folder
        self._file = file
        self._lock: FileLock | None = None

    def acquire(self) -> bool:
        """Acquire the lock unless it is held already.

        Returns ``False`` if the file system has no locks. Raises ``BlockingIOError`` if another
        program holds the lock, or another fit of this program.
        """
        if self._lock is not None:
            return True
        lock_file = LOCK_FILE if self._file is None else f".{self._file}{LOCK_FILE}"
        path = self._folder.absolute() / lock_file
        lock = FileLock(path, thread_local=False, fallback_to_soft=False, on_acquired=_write_owner)
        try:
            # The holder may remove the file while we open it.
            lock.acquire(timeout=0.01, poll_interval=0.001)
        except Timeout as error:
            owner = ""
            with suppress(OSError):
                owner = path.read_text(encoding="utf-8", errors="replace")[:200]
            kind = "folder" if self._file is None else "file"
            reason = (
                f"{owner or 'another program'} is writing to this {kind}; "
                "wait until it ends, or choose another"
            )
            locked_path = str(self._folder / (self._file or ""))
            raise BlockingIOError(errno.EWOULDBLOCK, reason, locked_path) from error
        except OSError as error:
            if error.filename is not None:  # the file could not be opened
                raise
            return False
        self._lock = lock
        return True

    def release(self) -> None:
        """Release the lock, also for forked processes, and remove its file.

        Does nothing if it is not held.
        """
        if self._lock is None:
            return
        lock = self._lock
        self._lock = None
        with suppress(OSError):  # a folder that has become read-only
            Path(lock.lock_file).unlink()
        lock.release()


def _write_owner(descriptor: int) -> None:
    """Write the process and host that hold a lock to its file."""
    with suppress(OSError):  # a full disk
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())


class TemporaryFolder:
    """A locked folder, which ``create`` makes in ``parent``, the system's temporary folder.

    The path is known before the folder exists, so that its removal can be registered first: an
    interrupt at any time leaves nothing behind. ``name`` is the name of the same folder on another
    machine; by default a new name.

    The folder itself is locked as well as the file in it, which a cleaner of temporary folders
    removes when it is some days old: systemd's skips what is in a locked folder.
    """

    def __init__(self, parent: str | None = None, name: str | None = None) -> None:
        self._parent = parent or tempfile.gettempdir()
        new_name = f"compss_train-{os.getpid()}-{secrets.token_hex(6)}"
        self.path = os.path.join(self._parent, name or new_name)
        self._lock = FolderLock(Path(self.path))
        self._descriptor: int | None = None
        """That of the folder itself, while it is locked."""

    def create(self) -> None:
        """Remove abandoned folders of the same parent, then create and lock this one."""
        remove_abandoned(self._parent)
        os.mkdir(self.path, mode=0o700)
        self._lock.acquire()
        self._descriptor = _lock_folder(self.path)

    def remove(self) -> None:
        """Remove the folder and its contents; a second call does nothing."""
        if self._descriptor is not None:
            _unlock_folder(self._descriptor)
            self._descriptor = None
        _remove_locked(Path(self.path), self._lock)


def _lock_folder(folder: str | os.PathLike[str]) -> int:
    """Lock a folder itself, where the file system can; return the descriptor that has the lock.

    Raises ``BlockingIOError`` if it is locked.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # of some network file systems
        pass
    return descriptor


def _unlock_folder(descriptor: int) -> None:
    """Unlock a folder, also for forked processes."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def remove_abandoned(parent: str) -> None:
    """Remove the temporary folders of this user that no running process has locked."""
    for path in Path(parent).glob("compss_train-[0-9]*-*"):
        with suppress(OSError):
            status = path.stat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < MINIMUM_AGE:
                continue
            descriptor = _lock_folder(path)
            try:
                lock = FolderLock(path)
                if lock.acquire():
                    _remove_locked(path, lock)
            finally:
                _unlock_folder(descriptor)


def is_running(process: int) -> bool:
    """Return whether a process of this machine has not ended."""
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # it is another user's
    return True


def _remove_locked(folder: Path, lock: FolderLock) -> None:
    """Remove a folder with its lock last: on NFS a folder with an open file cannot be removed."""
    with suppress(FileNotFoundError):
        for entry in list(folder.iterdir()):
            if entry.name == LOCK_FILE:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
    lock.release()
    shutil.rmtree(folder, ignore_errors=True)
