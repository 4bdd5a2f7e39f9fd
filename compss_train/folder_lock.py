"""A lock on a folder that a run writes to, so that two runs do not mix their files."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

NAME = ".lock"


class FolderLock:
    """Held while a program writes to a folder; of one that was killed, the system gives it up.

    It is an ``flock`` of a file in the folder, which network file systems know as well, from node to node. Where
    there are no locks nothing is held.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock; raise ``BlockingIOError`` where another program has it, or another fit of this one."""
        try:
            import fcntl
        except ModuleNotFoundError:  # not on POSIX
            return
        while self._file is None:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_still(file):
                    self._file = file
                    os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
            except BlockingIOError as error:
                raise self._held(file) from error
            except OSError:  # a file system without locks
                self._path.unlink(missing_ok=True)
                return
            finally:
                if self._file is None:
                    os.close(file)

    def _is_still(self, file: int) -> bool:
        """Tell whether the file has not been removed by who held the lock until now."""
        try:
            return os.path.samestat(os.fstat(file), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _held(self, file: int) -> BlockingIOError:
        by = os.pread(file, 200, 0).decode(errors="replace") or "another program"
        told = f"{by} is writing to this folder; wait for its end, or give another folder"
        return BlockingIOError(errno.EWOULDBLOCK, told, str(self._path.parent))

    def release(self) -> None:
        """Give the lock up, also for processes that were forked meanwhile; a second call does nothing."""
        if self._file is None:
            return
        import fcntl

        self._path.unlink(missing_ok=True)
        fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)
        self._file = None
