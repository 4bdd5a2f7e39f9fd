"""The folders of the local engine's store, and those that killed programs have left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from loky.backend import resource_tracker

SHARED_MEMORY = Path("/dev/shm")
NEW = 60.0
"""Seconds within which a folder may not be locked yet."""


class Folders:
    """The folders that values are written to: shared memory first, the temporary folder where that is full.

    Loky's resource tracker, a process of its own, removes them if this process is killed. Where that is killed with
    it, the next program removes them: the system gives up the lock on a folder with the process that held it.
    """

    def __init__(self) -> None:
        parents = [str(SHARED_MEMORY)] if os.access(SHARED_MEMORY, os.W_OK) else []
        parents.append(tempfile.gettempdir())
        remove_abandoned(parents)
        self.paths = [tempfile.mkdtemp(prefix=f"compss_train-{os.getpid()}-", dir=parent) for parent in parents]
        self._locks = [_locked(path) for path in self.paths]
        for path in self.paths:
            resource_tracker.register(path, "folder")

    def remove(self) -> None:
        """Remove the folders and all in them; a second call does nothing."""
        for path in self.paths:
            shutil.rmtree(path, ignore_errors=True)
            resource_tracker.unregister(path, "folder")
        for lock in self._locks:
            if lock is not None:
                os.close(lock)
        self.paths, self._locks = [], []


def remove_abandoned(parents: Sequence[str]) -> None:
    """Remove folders of this user's that no living process has locked, as far as that can be told."""
    if not hasattr(os, "getuid"):
        return
    for parent in parents:
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
