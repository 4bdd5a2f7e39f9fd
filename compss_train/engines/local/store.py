"""The local engine's store: a file in shared memory for each large value, mapped by readers."""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from loky.backend import resource_tracker

from compss_train._utils import PickledByFields
from compss_train._utils.files import SHARED_MEMORY, TemporaryFolder
from compss_train.engines.codec import decode, encode, map_file

_QUIET = "ignore:resource_tracker"
"""A filter of warnings for the process of loky's resource tracker."""

_REMOVED = (
    "Another program has removed a file of the local engine. In /dev/shm systemd-logind does so "
    "when the last session of a user ends, as an ssh to a node of a batch job; RemoveIPC=no in "
    "/etc/systemd/logind.conf or loginctl enable-linger prevents it."
)
"""A hint for the error of a missing file."""

MAX_INLINE_BYTES = 32 * 1024
"""Values up to this size travel in messages instead of in files."""


@dataclass(frozen=True, slots=True)
class StoredValue(PickledByFields):
    """An encoded value: the path of its file, or its bytes if it is small."""

    path: str | None
    inline: bytes | None = None

    def load(self) -> Any:
        """Return the value; arrays of a file are mapped copy-on-write, not read."""
        if self.path is not None:
            try:
                return decode(map_file(self.path))
            except FileNotFoundError as error:
                error.add_note(_REMOVED)
                raise
        return decode(np.frombuffer(bytearray(self.inline or b""), np.uint8))

    def discard(self) -> None:
        """Remove the file; processes that have mapped it keep its contents."""
        if self.path is not None:
            discard(self.path)


def loaded(argument: Any) -> Any:
    """Return the value of a stored argument of a task, and any other argument unchanged."""
    return argument.load() if isinstance(argument, StoredValue) else argument


def store(value: object, name: str, folders: Sequence[str]) -> StoredValue:
    """Encode a value, and write it as ``written`` does, or keep it inline if it is small."""
    chunks = encode(value)
    if sum(chunk.nbytes for chunk in chunks) <= MAX_INLINE_BYTES:
        return StoredValue(None, b"".join(chunks))
    return StoredValue(written(chunks, name, folders))


def written(chunks: Sequence[memoryview], name: str, folders: Sequence[str]) -> str:
    """Write a file to the first of the folders that takes it, and return its path.

    Raises the ``OSError`` of the last folder if none takes it: all are full, for example.
    """
    for folder in folders:
        path = os.path.join(folder, name)
        try:
            with open(path, "wb", buffering=0) as file:
                for chunk in chunks:
                    is_flat = chunk.ndim == 1 and chunk.format == "B"
                    unwritten = chunk if is_flat else chunk.cast("B")
                    while unwritten.nbytes:
                        size = os.write(file.fileno(), unwritten)
                        unwritten = unwritten[size:]
            return path
        except BaseException as error:
            discard(path)
            if not isinstance(error, OSError):
                raise
            if folder == folders[-1]:
                size = sum(chunk.nbytes for chunk in chunks)
                error.add_note(
                    f"{size:,} bytes had to be written to one of {', '.join(folders)}; make "
                    "room for them there"
                )
                raise
    raise ValueError("values need a folder for their files")


def discard(path: str) -> None:
    """Remove a file if it exists."""
    Path(path).unlink(missing_ok=True)


def discard_all(names: Sequence[str], folders: Sequence[str]) -> None:
    """Remove what a failed task has stored."""
    for folder in folders:
        for name in names:
            discard(os.path.join(folder, name))


def _untracked() -> AbstractContextManager[None]:
    """Return a context for a path that the tracker may not take: it reads short lines of ASCII.

    The next program removes such a folder, if this one is killed.
    """
    return suppress(ValueError)


class StoreFolders:
    """The folders for values: in shared memory, or in the temporary folder if that is full.

    Loky's resource tracker, a separate process, removes them if this process is killed. If the
    tracker is killed as well, the next program removes them: the system releases the lock on a
    folder with the process that held it.
    """

    def __init__(self) -> None:
        self._folders: list[TemporaryFolder] = []

    def create(self) -> None:
        """Create the folders; ``remove`` may be called even if this was interrupted."""
        # The tracker would warn of folders that it removes, as it should if this is killed.
        sys.warnoptions.append(_QUIET)
        try:
            resource_tracker.ensure_running()
        finally:
            sys.warnoptions.remove(_QUIET)
        parents = [str(SHARED_MEMORY)] if os.access(SHARED_MEMORY, os.W_OK) else []
        for parent in [*parents, tempfile.gettempdir()]:
            folder = TemporaryFolder(parent)
            with _untracked():
                resource_tracker.register(folder.path, "folder")
            self._folders.append(folder)
            folder.create()

    @property
    def paths(self) -> list[str]:
        """The paths of the folders in the order of preference; empty after ``remove``."""
        return [folder.path for folder in self._folders]

    def remove(self) -> None:
        """Remove the folders and their contents; further calls do nothing."""
        for folder in self._folders:
            folder.remove()
            with _untracked():
                resource_tracker.unregister(folder.path, "folder")
        self._folders = []
