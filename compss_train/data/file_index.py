"""Descriptions of many files, from their headers, or from an index: a file that caches them."""

import json
import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compss_train._utils.files import write_atomic
from compss_train.data.layout import Description, Field
from compss_train.data.readers.base import Reader, reader_id
from compss_train.data.reading import bad_file_errors
from compss_train.exceptions import BadFileError

_VERSION = 2
_MAGIC = b'{"version": '
_THREADS = 8  # concurrent reads of headers, which hide the latency of a slow file system


def describe_files(
    files: Sequence[str],
    reader: Reader,
    keys: Collection[str] | None = None,
    *,
    index: str | os.PathLike[str] | None = None,
) -> dict[str, Description | BadFileError]:
    """Return the description of each file by path, or the error raised by reading it.

    ``index`` is a JSON file that caches the descriptions by path, ``None`` (default) for no cache.
    An entry is valid while the file's size and modification time are the same. An unreadable cache
    is replaced.

    Raises ``ValueError`` if ``index`` cannot be a file, or is a file but not an index.
    """
    path = None if index is None else _index_path(index)
    entries = {} if path is None else _load(path)
    new_entries = {}
    name = "" if path is None else reader_id(reader)
    identity = f"{name} {None if keys is None else sorted(keys)}"

    def describe(file: str) -> Description | BadFileError:
        try:
            with bad_file_errors(file):
                stamp = reader.stamp(file, 0, 0)
                entry = entries.get(file)
                if entry is not None and stamp and entry["stamp"] == [identity, *stamp]:
                    return _description(entry)
                description = reader.describe(file, keys)
                if name and stamp:
                    new_entries[file] = {"stamp": [identity, *stamp], **asdict(description)}
                return description
        except BadFileError as error:
            return error

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="file-headers") as threads:
        descriptions = list(threads.map(describe, files))
    if path is not None and new_entries:
        write_atomic(path, json.dumps({"version": _VERSION, "files": entries | new_entries}))
    return dict(zip(files, descriptions, strict=True))


def _index_path(index: str | os.PathLike[str]) -> Path:
    path = Path(index).absolute()
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"index={str(index)!r}: give the name of a file in an existing folder")
    return path


def _load(path: Path) -> dict[str, Any]:
    content = path.read_bytes() if path.exists() else b""
    if content and not content.startswith(_MAGIC):
        raise ValueError(f"index={str(path)!r} is not a file index; give another name")
    try:
        index = json.loads(content)
        entries: dict[str, Any] = index["files"] if index["version"] == _VERSION else {}
        for entry in entries.values():
            _description(entry)
            entry["stamp"]
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return {}  # truncated or invalid
    return entries


def _description(entry: dict[str, Any]) -> Description:
    layout = entry["layout"]
    if layout is not None:
        layout = {
            key: Field(field["dtype"], tuple(field["shape"])) for key, field in layout.items()
        }
    return Description(
        rows=int(entry["rows"]),
        layout=layout,
        blocks=tuple(entry.get("blocks", ())),
        classes={name: tuple(values) for name, values in entry.get("classes", {}).items()},
        integers=tuple(entry.get("integers", ())),
        unread_frames=int(entry.get("unread_frames", 0)),
    )
