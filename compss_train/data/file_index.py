"""What is in many files, from their headers: read in threads, and remembered in a small file if asked to."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compss_train.data.layout import Description, Field
from compss_train.data.readers import CustomReader, Reader
from compss_train.data.reading import naming
from compss_train.exceptions import BadFileError

_THREADS = 8  # headers read at a time: a slow store answers many as fast as one


class FileIndex:
    """Descriptions of files, by path. One is valid as long as the file's size and time of change are the same.

    Parameters
    ----------
    path:
        A JSON file that keeps them for the next time; ``None`` forgets them. One that cannot be read is replaced.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._known = self._load()

    def describe(
        self, files: Sequence[str], reader: Reader, keys: Collection[str] | None = None
    ) -> list[Description | BadFileError]:
        """Return each file's description, or what is wrong with it."""
        kind = _kind(reader, keys)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="file-headers") as threads:
            found = list(threads.map(lambda file: self._describe(file, reader, keys, kind), files))
        self._save()
        return found

    def _describe(
        self, file: str, reader: Reader, keys: Collection[str] | None, kind: str
    ) -> Description | BadFileError:
        try:
            with naming(file):
                stamp = [kind, *_stamp(file)]
                known = self._known.get(file)
                if known is None or known["stamp"] != stamp:
                    known = {"stamp": stamp, **asdict(reader.describe(file, keys))}
                    self._known[file] = known
                return _description(known)
        except BadFileError as error:
            self._known.pop(file, None)
            return error

    def _load(self) -> dict[str, Any]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            known: dict[str, Any] = json.loads(self._path.read_text())["files"]
            for entry in known.values():
                _description(entry), entry["stamp"]
        except (ValueError, TypeError, KeyError, AttributeError):  # written by something else, or cut short
            return {}
        return known

    def _save(self) -> None:
        if self._path is None:
            return
        written = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        written.write_text(json.dumps({"version": 1, "files": self._known}))
        written.replace(self._path)  # whole or not at all, whoever else writes it


def _kind(reader: Reader, keys: Collection[str] | None) -> str:
    name = reader.name if isinstance(reader, CustomReader) else type(reader).__qualname__
    return name if keys is None else f"{name} {sorted(keys)}"


def _stamp(file: str) -> list[int]:
    if not os.path.exists(file) and "://" in file:
        return []  # the reader's own kind of name
    status = os.stat(file)
    return [status.st_size, status.st_mtime_ns]


def _description(entry: dict[str, Any]) -> Description:
    layout = entry["layout"]
    if layout is not None:
        layout = {key: Field(field["dtype"], tuple(field["shape"])) for key, field in layout.items()}
    return Description(int(entry["rows"]), layout)
