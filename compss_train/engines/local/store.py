"""The local engine's store: one file a value in shared memory, written once and mapped by whoever reads it."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from loky.backend import resource_tracker

from compss_train._utils.locking import TemporaryFolder
from compss_train.engines.codec import decode, encode, map_file

INLINE = 32 * 1024
"""Bytes up to which a value travels in messages instead of in a file."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a value is: in a file, or here if it is small."""

    path: str | None
    inline: bytes | None = None

    def load(self) -> Any:
        """Return the value; arrays of a file are mapped copy-on-write, not read."""
        if self.path is not None:
            return decode(map_file(self.path))
        return decode(np.frombuffer(bytearray(self.inline or b""), np.uint8))


def store(value: object, name: str, folders: Sequence[str]) -> Stored:
    """Write a value to the first of the folders that has room for it, or keep it inline if it is small."""
    chunks = encode(value)
    if sum(chunk.nbytes for chunk in chunks) <= INLINE:
        return Stored(None, b"".join(chunks))
    for folder in folders[:-1]:
        try:
            return _write(chunks, os.path.join(folder, name))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    try:
        return _write(chunks, os.path.join(folders[-1], name))
    except OSError as error:
        needed = sum(chunk.nbytes for chunk in chunks)
        error.add_note(f"{needed:,} bytes had to be written to one of {', '.join(folders)}; make room there")
        raise


def _write(chunks: Sequence[memoryview], path: str) -> Stored:
    try:
        with open(path, "wb", buffering=0) as file:
            for chunk in chunks:
                _write_all(file.fileno(), chunk)
    except BaseException:
        discard(path)
        raise
    return Stored(path)


def _write_all(descriptor: int, chunk: memoryview) -> None:
    chunk = chunk.cast("B") if chunk.ndim != 1 or chunk.format != "B" else chunk
    while chunk.nbytes:
        chunk = chunk[os.write(descriptor, chunk) :]


def discard(path: str | None) -> None:
    """Remove a file if it is there; whoever has mapped it keeps the contents."""
    if path is not None:
        Path(path).unlink(missing_ok=True)


def discard_all(names: Sequence[str], folders: Sequence[str]) -> None:
    """Remove what a task that did not end well has stored so far."""
    for folder in folders:
        for name in names:
            discard(os.path.join(folder, name))


SHARED_MEMORY = Path("/dev/shm")


class Folders:
    """The folders that values are written to: shared memory first, the temporary folder where that is full.

    Loky's resource tracker, a process of its own, removes them if this process is killed. Where that is killed with
    it, the next program removes them: the system gives up the lock on a folder with the process that held it.
    """

    def __init__(self) -> None:
        self._folders: list[TemporaryFolder] = []

    def make(self) -> None:
        """Make the folders; ``remove`` may be called whenever this has been interrupted."""
        parents = [str(SHARED_MEMORY)] if os.access(SHARED_MEMORY, os.W_OK) else []
        for parent in [*parents, tempfile.gettempdir()]:
            folder = TemporaryFolder(parent)
            resource_tracker.register(folder.path, "folder")
            self._folders.append(folder)
            folder.create()

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
