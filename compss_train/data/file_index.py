"""``FileIndex``: descriptions of many files, read from their headers in threads and optionally cached in a file."""

import json
import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from compss_train._utils.files import write_atomic
from compss_train.data.layout import Description, Field
from compss_train.data.readers import Reader
from compss_train.data.readers.base import reader_id
from compss_train.data.reading import bad_file_errors
from compss_train.exceptions import BadFileError

_VERSION = 1
_MAGIC = b'{"version": '
_CHUNK = 16  # files per unit of work of a thread
_THREADS = 8  # concurrent reads of headers, which hide the latency of a slow file system


class FileIndex:
    """Descriptions of files, by path. An entry is valid while the file's size and modification time are the same.

    Parameters
    ----------
    path:
        A JSON file that caches the descriptions; ``None`` for no cache. An unreadable cache is replaced.

    Raises ``ValueError`` if ``path`` cannot be a file, or is another file than an index.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        if not isinstance(path, str | os.PathLike | None):
            raise TypeError(f"index={path!r}: give the name of a file, or None")
        self._path = None if path is None else Path(path).absolute()
        if self._path is not None and (self._path.is_dir() or not self._path.parent.is_dir()):
            raise ValueError(f"index={str(path)!r}: give the name of a file in an existing folder")
        self._entries = self._load()
        self._changed = False

    def describe(
        self, files: Sequence[str], reader: Reader, keys: Collection[str] | None = None
    ) -> list[Description | BadFileError]:
        """Return the description of each file, or the error in reading it."""
        identity = "" if self._path is None else reader_id(reader, keys)

        def describe(chunk: Sequence[str]) -> list[Description | BadFileError]:
            return [self._describe(file, reader, keys, identity) for file in chunk]

        chunks = [files[start : start + _CHUNK] for start in range(0, len(files), _CHUNK)]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="file-headers") as threads:
            found = list(chain.from_iterable(threads.map(describe, chunks)))
        self._save()
        return found

    def _describe(
        self, file: str, reader: Reader, keys: Collection[str] | None, identity: str
    ) -> Description | BadFileError:
        try:
            with bad_file_errors(file):
                stamp = reader.stamp(file, 0, 0)
                entry = self._entries.get(file)
                if entry is not None and stamp and entry["stamp"] == [identity, *stamp]:
                    return _description(entry)
                description = reader.describe(file, keys)
                if identity and stamp:
                    self._entries[file] = {"stamp": [identity, *stamp], **asdict(description)}
                    self._changed = True
                return description
        except BadFileError as error:
            return error

    def _load(self) -> dict[str, Any]:
        if self._path is None or not self._path.exists():
            return {}
        content = self._path.read_bytes()
        if content and not content.startswith(_MAGIC):
            raise ValueError(f"index={str(self._path)!r} is not a file index; give another name")
        try:
            index = json.loads(content)
            entries: dict[str, Any] = index["files"] if index["version"] == _VERSION else {}
            for entry in entries.values():
                _description(entry), entry["stamp"]
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
            return {}  # truncated or invalid
        return entries

    def _save(self) -> None:
        if self._path is None or not self._changed:
            return
        write_atomic(self._path, json.dumps({"version": _VERSION, "files": self._entries}))


def _description(entry: dict[str, Any]) -> Description:
    layout = entry["layout"]
    if layout is not None:
        layout = {key: Field(field["dtype"], tuple(field["shape"])) for key, field in layout.items()}
    classes = {name: tuple(values) for name, values in entry.get("classes", {}).items()}
    return Description(int(entry["rows"]), layout, tuple(entry.get("blocks", ())), classes)
