"""Temporary folders, locked while their program lives; the next program removes those that killed ones left."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

NEW = 60.0
"""Seconds within which a folder may not be locked yet."""


class LockedFolder:
    """A new folder in ``parent``, the system's temporary folder by default; abandoned ones there are removed."""

    def __init__(self, parent: str | None = None) -> None:
        parent = parent or tempfile.gettempdir()
        remove_abandoned(parent)
        self.path = tempfile.mkdtemp(prefix=f"compss_train-{os.getpid()}-", dir=parent)
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
    try:
        import fcntl
    except ModuleNotFoundError:  # not on POSIX
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
