"""The folders of the local engine's store."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from loky.backend import resource_tracker

from compss_train.temporary import LockedFolder

SHARED_MEMORY = Path("/dev/shm")


class Folders:
    """The folders that values are written to: shared memory first, the temporary folder where that is full.

    Loky's resource tracker, a process of its own, removes them if this process is killed. Where that is killed with
    it, the next program removes them: the system gives up the lock on a folder with the process that held it.
    """

    def __init__(self) -> None:
        self._folders: list[LockedFolder] = []

    def make(self) -> None:
        """Make the folders; ``remove`` may be called whenever this has been interrupted."""
        parents = [str(SHARED_MEMORY)] if os.access(SHARED_MEMORY, os.W_OK) else []
        for parent in [*parents, tempfile.gettempdir()]:
            folder = LockedFolder(parent)
            resource_tracker.register(folder.path, "folder")
            self._folders.append(folder)
            folder.make()

    @property
    def paths(self) -> list[str]:
        """Where the folders are, in the order of preference; none once they are removed."""
        return [folder.path for folder in self._folders]

    def remove(self) -> None:
        """Remove the folders and all in them; a second call does nothing."""
        for folder in self._folders:
            folder.remove()
            resource_tracker.unregister(folder.path, "folder")
        self._folders = []
