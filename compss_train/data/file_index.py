"""Descriptions of many files, read from their headers in threads and optionally cached in a file,
an index.
"""

import json
import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compss_train._utils.files import write_atomic
from compss_train.data.layout import Description, Field
from compss_train.data.readers import TableReader
from compss_train.data.readers.base import Reader, reader_id
from compss_train.data.reading import bad_file_errors
from compss_train.data.text_columns import text_among_numbers
from compss_train.exceptions import BadFileError

_VERSION = 2
_MAGIC = b'{"version": '
_THREADS = 8  # concurrent reads of headers, which hide the latency of a slow file system


def describe_files(
    files: Sequence[str],
    reader: Reader,
    keys: Collection[str] | None = None,
    index: str | os.PathLike[str] | None = None,
) -> list[Description | BadFileError]:
    """Return the description of each file, or the error raised by reading it.

    ``index`` is a JSON file that caches the descriptions by path, ``None`` (default) for no cache.
    An entry is valid while the file's size and modification time are the same. An unreadable cache
    is replaced.

    Raises ``ValueError`` if ``index`` cannot be a file, or is a file but not an index.
    """
    path = None if index is None else Path(index).absolute()
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise ValueError(f"index={str(index)!r}: give the name of a file in an existing folder")
    entries = {} if path is None else _load(path)
    new = {}
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
                    new[file] = {"stamp": [identity, *stamp], **asdict(description)}
                return description
        except BadFileError as error:
            return error

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="file-headers") as threads:
        found = list(threads.map(describe, files))
    if path is not None and new:
        write_atomic(path, json.dumps({"version": _VERSION, "files": {**entries, **new}}))
    return found


def describe_tables(
    files: Sequence[str],
    reader: TableReader,
    keys: Collection[str] | None = None,
    index: str | os.PathLike[str] | None = None,
) -> tuple[TableReader, list[Description | BadFileError]]:
    """Return what ``describe_files`` does, and a reader to which each column is the same in all
    files.

    If a column has strings in one file of a format without types, its numbers in other files are
    strings, too. Raises ``BadFileError`` for a value that is no number in a column in which most
    distinct values are numbers.
    """
    found = describe_files(files, reader, keys, index)
    good = {number: each for number, each in enumerate(found) if isinstance(each, Description)}
    texts = {name for each in good.values() for name in each.classes}
    if not reader.is_typed and (
        others := [number for number, each in good.items() if texts - each.classes.keys()]
    ):
        reader = reader.with_texts(sorted(texts))
        again = describe_files([files[number] for number in others], reader, keys, index)
        for number, each in zip(others, again, strict=True):
            found[number] = each
            if isinstance(each, Description):
                good[number] = each
    for name in sorted(texts):
        wrong = text_among_numbers(
            {value for each in good.values() for value in each.classes.get(name, ())}
        )
        if wrong is not None:
            number = next(
                number for number, each in good.items() if wrong in each.classes.get(name, ())
            )
            raise BadFileError(
                files[number], str(reader.text_among_numbers_error(files[number], name, wrong))
            )
    return reader, found


def _load(path: Path) -> dict[str, Any]:
    content = path.read_bytes() if path.exists() else b""
    if content and not content.startswith(_MAGIC):
        raise ValueError(f"index={str(path)!r} is not a file index; give another name")
    try:
        index = json.loads(content)
        entries: dict[str, Any] = index["files"] if index["version"] == _VERSION else {}
        for entry in entries.values():
            _description(entry), entry["stamp"]
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return {}  # truncated or invalid
    return entries


def _description(entry: dict[str, Any]) -> Description:
    layout = entry["layout"]
    if layout is not None:
        layout = {
            key: Field(field["dtype"], tuple(field["shape"])) for key, field in layout.items()
        }
    classes = {name: tuple(values) for name, values in entry.get("classes", {}).items()}
    blocks, integers = (tuple(entry.get(name, ())) for name in ("blocks", "integers"))
    unread = int(entry.get("unread_frames", 0))
    return Description(
        int(entry["rows"]), layout, blocks, classes, integers=integers, unread_frames=unread
    )
