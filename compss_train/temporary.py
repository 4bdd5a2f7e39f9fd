"""Temporary folders, locked while their program lives; the next program removes those that killed ones left."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from compss_train.folder_lock import lock

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
