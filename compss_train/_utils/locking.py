"""A lock on a folder that a run writes to, so that two runs do not mix their files."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path

NAME = ".lock"


def lock(file: int) -> bool:
    """Lock an open file or folder until it is closed; return whether there are such locks here.

    Raises ``BlockingIOError`` where another has locked it.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ModuleNotFoundError, OSError):  # not on POSIX, or a file system without them
        return False
    return True


class FolderLock:
    """Held while a program writes to a folder; of one that was killed, the system gives it up.

    It is an ``flock`` of a file in the folder, which network file systems know as well, from node to node. Where
    there are no locks nothing is held.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / NAME
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock; raise ``BlockingIOError`` where another program has it, or another fit of this one."""
        self._path = self._folder.absolute() / NAME  # whatever folder is the current one when it is given up
        while self._file is None:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if not lock(file):
                    return
                if self._is_still(file):
                    self._file = file
            except BlockingIOError as error:
                raise self._held(file) from error
            finally:
                if self._file is None:
                    os.close(file)
        with suppress(OSError):  # a full disk
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)

    def _is_still(self, file: int) -> bool:
        """Tell whether the file has not been removed by who held the lock until now."""
        try:
            return os.path.samestat(os.fstat(file), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _held(self, file: int) -> BlockingIOError:
        by = os.pread(file, 200, 0).decode(errors="replace") or "another program"
        told = f"{by} is writing to this folder; wait for its end, or give another folder"
        return BlockingIOError(errno.EWOULDBLOCK, told, str(self._folder))

    def release(self) -> None:
        """Give the lock up, also for processes that were forked meanwhile; a second call does nothing."""
        if self._file is None:
            return
        import fcntl

        file, self._file = self._file, None
        with suppress(OSError):  # a folder that has become read-only
            self._path.unlink()
        fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


NEW = 60.0
"""Seconds within which a folder may not be locked yet."""


class LockedFolder:
    """A folder in ``parent``, the system's temporary folder by default; it has a name, and ``make`` makes it.

    These are two steps so that what removes it can be in place before it is there, whenever Ctrl-C comes.
    """

    def __init__(self, parent: str | None = None) -> None:
        self._parent = parent or tempfile.gettempdir()
        self.path = os.path.join(self._parent, f"compss_train-{os.getpid()}-{secrets.token_hex(6)}")
        self._lock: int | None = None

    def make(self) -> None:
        """Make and lock the folder, after removing abandoned ones next to it."""
        remove_abandoned(self._parent)
        os.mkdir(self.path, mode=0o700)
        self._lock = _locked(self.path)

    def remove(self) -> None:
        """Remove the folder and all in it; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_abandoned(parent: str) -> None:
    """Remove folders of this user's that no living process has locked, as far as that can be told."""
    if not hasattr(os, "getuid"):
        return
    for path in Path(parent).glob("compss_train-[0-9]*-*"):
        with suppress(OSError):
            status = path.stat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < NEW:
                continue
            if (lock := _locked(str(path))) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(path: str) -> int | None:
    """Lock a folder; return the descriptor that holds the lock, ``None`` where another does or it cannot be had."""
    if os.name != "posix":  # where folders cannot be opened
        return None
    descriptor = os.open(path, os.O_RDONLY)
    with suppress(BlockingIOError):
        if lock(descriptor):
            return descriptor
    os.close(descriptor)
    return None
