"""What is in many files, from their headers: read in threads, and remembered in a small file if asked to."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import cloudpickle

from compss_train.data.layout import Description, Field
from compss_train.data.readers import Reader
from compss_train.data.reading import naming
from compss_train.exceptions import BadFileError

_VERSION = 1
_BEGINNING = b'{"version": '
_CHUNK = 16  # files that a thread takes at a time
_THREADS = 8  # headers read at a time: a slow store answers many as fast as one


class FileIndex:
    """Descriptions of files, by path. One is valid as long as the file's size and time of change are the same.

    Parameters
    ----------
    path:
        A JSON file that keeps them for the next time; ``None`` forgets them. One that cannot be read is replaced.

    Raises ``ValueError`` where ``path`` cannot be a file, or is one of something else.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path).absolute()
        if self._path is not None and (self._path.is_dir() or not self._path.parent.is_dir()):
            raise ValueError(f"index={str(path)!r}: give the name of a file in a folder that is there")
        self._known = self._load()
        self._changed = False

    def describe(
        self, files: Sequence[str], reader: Reader, keys: Collection[str] | None = None
    ) -> list[Description | BadFileError]:
        """Return each file's description, or what is wrong with it."""
        kind = "" if self._path is None else _kind(reader, keys)

        def describe(some: Sequence[str]) -> list[Description | BadFileError]:
            return [self._describe(file, reader, keys, kind) for file in some]

        chunks = [files[start : start + _CHUNK] for start in range(0, len(files), _CHUNK)]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="file-headers") as threads:
            found = list(chain.from_iterable(threads.map(describe, chunks)))
        self._save()
        return found

    def _describe(
        self, file: str, reader: Reader, keys: Collection[str] | None, kind: str
    ) -> Description | BadFileError:
        try:
            with naming(file):
                stamp = _stamp(file)
                known = self._known.get(file)
                if known is not None and known["stamp"] == [kind, *stamp]:
                    return _description(known)
                description = reader.describe(file, keys)
                if kind and stamp:
                    self._known[file] = {"stamp": [kind, *stamp], **asdict(description)}
                    self._changed = True
                return description
        except BadFileError as error:
            return error

    def _load(self) -> dict[str, Any]:
        if self._path is None or not self._path.exists():
            return {}
        content = self._path.read_bytes()
        if content and not content.startswith(_BEGINNING):
            raise ValueError(f"index={str(self._path)!r} is something else than an index; give another name")
        try:
            index = json.loads(content)
            known: dict[str, Any] = index["files"] if index["version"] == _VERSION else {}
            for entry in known.values():
                _description(entry), entry["stamp"]
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
            return {}  # cut short, or not right
        return known

    def _save(self) -> None:
        if self._path is None or not self._changed:
            return
        written = self._path.with_name(f"{self._path.name}.{uuid.uuid4().hex}")
        try:
            written.write_text(json.dumps({"version": _VERSION, "files": self._known}))
            written.replace(self._path)  # whole or not at all, whoever else writes it
        except BaseException:
            written.unlink(missing_ok=True)
            raise


def _kind(reader: Reader, keys: Collection[str] | None) -> str:
    """Return what tells one way of reading from another; nothing where that cannot be told."""
    try:
        content = hashlib.sha256(cloudpickle.dumps(reader)).hexdigest()[:16]
    except Exception:
        return ""
    return f"{type(reader).__qualname__} {content} {None if keys is None else sorted(keys)}"


def _stamp(file: str) -> list[int]:
    """Return what changes with a file; nothing where the name is of the reader's own kind."""
    try:
        status = os.stat(file)
    except FileNotFoundError:
        if "://" in file:
            return []
        raise
    return [status.st_size, status.st_mtime_ns]


def _description(entry: dict[str, Any]) -> Description:
    layout = entry["layout"]
    if layout is not None:
        layout = {key: Field(field["dtype"], tuple(field["shape"])) for key, field in layout.items()}
    return Description(int(entry["rows"]), layout)
