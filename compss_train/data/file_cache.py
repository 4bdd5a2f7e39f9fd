"""``FileCache``: keeps the arrays of files of a slow store, in memory or on a local disk."""

import atexit
import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from compss_train._utils.files import SHARED_MEMORY, TemporaryFolder, atomic_path, check_private
from compss_train._utils.validation import check_count
from compss_train.data.block import Block, DType
from compss_train.data.block_bytes import rows_of_bytes
from compss_train.data.layout import Field, Layout
from compss_train.data.readers import Arrays, NpzReader
from compss_train.data.readers.arrays import write_npz

_LOG = logging.getLogger(__name__)

MEMORY_BYTES = 2**30
"""How much ``cache="memory"`` holds by default."""
FOLDER_BYTES = 10 * 2**30
"""How much a folder holds by default."""

_SUFFIX = ".npz"
_LOCK_FILE = "writing.lock"
_LOCK_SECONDS = 10.0
"""How long to wait for another process that writes; then the file is not kept."""
_HEADER_BYTES = 1024
"""Of an entry, and of each array in it: more than numpy's and zip's headers take."""


def make_cache(cache: str | os.PathLike[str] | None, max_bytes: int | None) -> "FileCache | None":
    """Return the cache in ``"memory"`` or a folder, limited to ``max_bytes``; ``None`` for none.

    Raises ``ValueError`` for a limit without a cache or below 1, a path that cannot be a folder,
    and a folder that others may write to, ``TypeError`` for other values.
    """
    if cache is None:
        if max_bytes is not None:
            raise ValueError(
                f"cache_bytes={max_bytes}: name a cache, 'memory' or a folder on a local disk"
            )
        return None
    if not isinstance(cache, str | os.PathLike) or not os.fspath(cache):
        raise TypeError(f"cache={cache!r}: give 'memory', a folder on a local disk, or None")
    default = MEMORY_BYTES if cache == "memory" else FOLDER_BYTES
    max_bytes = default if max_bytes is None else check_count("cache_bytes", max_bytes)
    if cache == "memory":
        return _memory_cache(max_bytes)
    path = Path(cache)
    folder_cache = FileCache(str(path.absolute() / f"compss_train-files-{os.getuid()}"), max_bytes)
    try:
        folder_cache.open()
    except OSError as error:
        hint = "give a folder on a local disk that you may write to"
        raise ValueError(f"cache={str(path)!r} cannot be used: {error}; {hint}") from error
    return folder_cache


def _memory_cache(max_bytes: int) -> "FileCache":
    free = shutil.disk_usage(SHARED_MEMORY).free if os.access(SHARED_MEMORY, os.W_OK) else 0
    folder = TemporaryFolder(str(SHARED_MEMORY) if free >= max_bytes else tempfile.gettempdir())
    folder.create()
    memory_cache = FileCache(folder.path, max_bytes, temporary=True)
    weakref.finalize(memory_cache, _remove, folder, process=os.getpid())
    return memory_cache


@dataclass(frozen=True)
class FileCache:
    """A folder with the arrays of files, shared by all processes of a machine that read them.

    An entry is one npz file, written under another name and renamed, with a checksum for each
    array. A damaged entry is removed, and its file read again. Before an entry is written, the
    least recently used ones are removed until it fits into ``max_bytes``. The folder belongs to the
    user alone, and nothing in it is unpickled.
    """

    folder: str
    max_bytes: int
    temporary: bool = False
    """Whether the folder is removed when the process that created it exits."""

    def open(self) -> Path:
        """Return the folder; create it where it is missing, as on another node."""
        folder = Path(self.folder)
        if not folder.is_dir() and self.temporary:
            temporary = TemporaryFolder(str(folder.parent), folder.name)
            with suppress(FileExistsError):  # another process of this machine was faster
                temporary.create()
                atexit.register(_remove, temporary, os.getpid())
        elif not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return check_private(folder)

    def entry(
        self, file: str, stamp: list[int], reader: str, *, rows: int, layout: Layout
    ) -> "CacheEntry | None":
        """Return the entry of a file with these arrays, or ``None`` if the cache cannot hold it.

        A file with another size or modification time (its ``stamp``), or another reader, has a
        different entry.
        """
        if entry_bytes(rows, layout) > self.max_bytes:
            return None
        fields = sorted((key, field.dtype, field.shape) for key, field in layout.items())
        identity = json.dumps([file, stamp, reader, rows, fields])
        digest = hashlib.sha256(identity.encode()).hexdigest()
        return CacheEntry(self, digest[:40] + _SUFFIX, rows=rows, layout=layout)

    def make_room(self, size: int) -> None:
        """Remove the least recently used entries until another of ``size`` bytes fits."""
        entries = []
        for entry in os.scandir(self.folder):
            if not entry.name.endswith(_SUFFIX):
                continue
            if entry.name.startswith("."):  # a killed process left it: living ones hold the lock
                os.unlink(entry)
            else:
                status = entry.stat()
                entries.append((status.st_mtime_ns, status.st_size, entry.path))
        excess = sum(entry_size for _, entry_size, _ in entries) + size - self.max_bytes
        for _, entry_size, path in sorted(entries):
            if excess <= 0:
                return
            Path(path).unlink(missing_ok=True)
            excess -= entry_size


@dataclass(frozen=True)
class CacheEntry:
    """The place of one file's arrays in a cache."""

    cache: FileCache
    name: str
    rows: int
    layout: Layout

    def load(self) -> Arrays | None:
        """Return the arrays in the order of the layout; ``None`` if they are missing or damaged."""
        path = self.cache.open() / self.name
        try:
            stored, _ = NpzReader().read(str(path), 0, self.rows)
            names = self._names()
            arrays = {
                key: _decoded(stored[names[key]], self.rows, field)
                for key, field in self.layout.items()
            }
            os.utime(path)  # it is used now
        except FileNotFoundError:
            return None
        except Exception as error:
            _LOG.warning("an entry of the cache in %s is read again: %s", self.cache.folder, error)
            with suppress(OSError):
                path.unlink()
            return None
        return arrays

    def store(self, arrays: Arrays) -> None:
        """Store all rows of these arrays; if that is impossible, as on a full disk, log the reason.

        Does nothing if another thread or process has already stored the file.
        """
        folder = self.cache.open()
        try:
            with FileLock(folder / _LOCK_FILE, timeout=_LOCK_SECONDS, fallback_to_soft=False):
                if (folder / self.name).exists():
                    return
                self.cache.make_room(entry_bytes(self.rows, self.layout))
                stored = {name: rows_of_bytes(arrays[key]) for key, name in self._names().items()}
                with atomic_path(folder / self.name) as temporary:
                    write_npz(temporary, stored)
        except OSError as error:
            _LOG.warning("a file is not kept in the cache in %s: %s", folder, error)

    def _names(self) -> dict[str, str]:
        """Return the names of arrays in the entry: numbers, because any string may be a key."""
        return {key: str(number) for number, key in enumerate(sorted(self.layout))}


def entry_bytes(rows: int, layout: Layout) -> int:
    """Return the maximum size in bytes of an entry with these arrays."""
    row_bytes = sum(_dtype_of(field).itemsize * math.prod(field.shape) for field in layout.values())
    return _HEADER_BYTES * (1 + len(layout)) + rows * row_bytes


def _dtype_of(field: Field) -> DType:
    name = field.dtype.removeprefix("torch.")
    torch_dtype: torch.dtype = getattr(torch, name, torch.uint8)
    return np.dtype(name) if name == field.dtype else torch_dtype


def _decoded(stored: Block, rows: int, field: Field) -> Block:
    """Return an array of its stored bytes: numpy has no name for some dtypes of tensors."""
    dtype = _dtype_of(field)
    flat = np.asarray(stored).reshape(-1)
    if isinstance(dtype, torch.dtype):
        return torch.from_numpy(flat).view(dtype).reshape(rows, *field.shape)
    array: Block = flat.view(dtype).reshape(rows, *field.shape)
    return array


def _remove(folder: TemporaryFolder, process: int) -> None:
    """Remove the folder, but not in a process forked from the one that created it."""
    if os.getpid() == process:
        folder.remove()
