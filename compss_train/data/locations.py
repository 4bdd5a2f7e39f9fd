"""Where files are: names and patterns, of local files and of those that ``fsspec`` reaches."""

import glob
import hashlib
import json
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, BinaryIO, TypeAlias

from compss_train.data.layout import FileContentError

FileNames: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_VERSIONS = {
    "etag",
    "lastmodified",
    "modified",
    "mtime",
    "created",
    "updated",
    "generation",
    "version",
    "versionid",
    "blobid",
    "md5",
    "md5hash",
    "contentmd5",
    "crc32c",
    "sha256",
}
"""The stores' names for the version of a file, in lower case."""


def is_remote(name: str) -> bool:
    """Return whether a name is that of a file in another store: ``s3://bucket/train.parquet``."""
    return "://" in name


def absolute(name: str) -> str:
    """Return an absolute path; the names of remote files, with ``://``, are returned unchanged.

    The archive of ``zip://train.npz::archive.zip`` is a local file.
    """
    if not is_remote(name):
        return os.path.abspath(name)
    file, separator, archive = name.rpartition("::")
    if separator and not is_remote(archive):
        return f"{file}::{os.path.abspath(archive)}"
    return name


def suffix_of(name: str) -> str:
    """Return the suffix of a name in lower case, with the dot; a URL's query is no part of it."""
    if is_remote(name):
        file, _, archive = name.partition("::")
        name = (file if is_remote(file) else archive).partition("?")[0]
    return PurePath(name).suffix.lower()


def file_names(files: FileNames) -> list[str]:
    """Return the names as a list.

    Raises ``ValueError`` if there are none, or one occurs twice, and ``TypeError`` for what is no
    name.
    """
    if isinstance(files, str | os.PathLike):
        names = _matches(os.fspath(files))
    else:
        try:
            names = [os.fspath(file) for file in files]
        except TypeError:
            raise TypeError(
                f"files={files!r}: give names of files, or a pattern such as 'data/*.npz'"
            ) from None
    if not names:
        raise ValueError(
            f"files={files!r}: no files found; give names, or a pattern that matches some"
        )
    counts = Counter(absolute(name) for name in names)
    if len(counts) < len(names):
        raise ValueError(
            f"{counts.most_common(1)[0][0]} occurs more than once; name each file once"
        )
    return names


def _matches(pattern: str) -> list[str]:
    if is_remote(pattern):
        return _remote_matches(pattern)
    if os.path.exists(pattern) or not glob.has_magic(pattern):
        return [pattern]
    return sorted(glob.glob(pattern, recursive=True))


def _remote_matches(pattern: str) -> list[str]:
    is_http = pattern.startswith("http")
    if not glob.has_magic(pattern.partition("?")[0] if is_http else pattern):
        return [pattern]
    system, path = file_system(pattern)
    if not is_http and system.exists(path):  # brackets may be part of a name
        return [pattern]
    folder = re.split(r"[*?[]", path)[0].rpartition("/")[0]
    matches = [match for match in system.glob(path) if not is_hidden(match.removeprefix(folder))]
    file, separator, archive = pattern.partition("::")
    if separator and is_remote(file):  # in an archive
        protocol = file.partition("://")[0]
        return [f"{protocol}://{match}::{archive}" for match in sorted(matches)]
    return sorted(map(system.unstrip_protocol, matches))


def is_folder(name: str) -> bool:
    """Return whether this is a folder with subfolders, as folders of images are."""
    if not is_remote(name):
        return os.path.isdir(name)
    system, path = file_system(name)
    return bool(system.isdir(path))


def is_hidden(name: str) -> bool:
    """Return whether a file, or a folder in its path, is hidden or belongs to a system."""
    parts = (part for part in name.split("/") if part not in (".", ".."))
    return any(part.startswith(".") or part in ("__MACOSX", "@eaDir") for part in parts)


def files_below(folder: str) -> list[str]:
    """Return the files below a folder that are not hidden, relative to it and with slashes.

    Links are followed, but each folder is listed once: links in a circle end.
    """
    if is_remote(folder):
        system, path = file_system(folder)
        prefix = path.rstrip("/") + "/" if path else ""  # an archive's root has none
        names = [file.removeprefix(prefix) for file in system.find(path) if file.startswith(prefix)]
        return [name for name in names if not is_hidden(name)]
    names = []
    listed = set[tuple[int, int]]()
    subfolders = deque([""])
    while subfolders:
        subfolder = subfolders.popleft()
        path = os.path.join(folder, subfolder)
        status = os.stat(path)
        if (status.st_dev, status.st_ino) in listed:
            continue
        listed.add((status.st_dev, status.st_ino))
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if is_hidden(entry.name):
                    continue
                if entry.is_dir():
                    subfolders.append(f"{subfolder}{entry.name}/")
                else:
                    names.append(f"{subfolder}{entry.name}")
    return names


def open_binary(path: str) -> BinaryIO | Any:
    """Open a local or remote file for reading."""
    if not is_remote(path):
        _check_regular(path)
        return open(path, "rb")
    system, name = file_system(path)
    file = system.open(name, "rb")
    if "::" in path:
        file.archive = system  # which closes its files with the last reference to it
    return file


@contextmanager
def openable(path: str) -> Iterator[str | BinaryIO | Any]:
    """Yield what libraries that open files take: a local file's path, or an open remote file."""
    if not is_remote(path):
        _check_regular(path)
        yield path
        return
    with open_binary(path) as file:
        yield file


def _check_regular(path: str) -> None:
    """Raise ``FileContentError`` for a pipe, socket or device, which could block for ever."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise FileContentError("is no regular file")


def file_stamp(file: str) -> list[int] | None:
    """Return the size and version of a file; a local file's version is its modification time.

    ``None`` if its store has no version, checksum or time.
    """
    if not is_remote(file):
        status = os.stat(file)
        return [status.st_size, status.st_mtime_ns]
    system, name = file_system(file)
    info = system.info(name)
    versions = {}
    for key in sorted(info):
        plain_key = key.lower().replace("_", "").replace("-", "")
        if plain_key in _VERSIONS and info[key] is not None:
            versions[key] = str(info[key])
    if not versions:
        return None
    digest = hashlib.sha256(json.dumps(versions).encode()).hexdigest()
    return [int(info.get("size") or 0), int(digest[:15], 16)]


def file_system(path: str) -> tuple[Any, str]:
    """Return the file system of fsspec, and the name in it; options are from its configuration.

    Raises ``ImportError``, which names the package to install, if the store needs one that is
    missing, and ``ValueError`` for ``reference://``: a file of references chooses which other files
    are read.
    """
    if any(part.partition("://")[0] == "reference" for part in path.split("::")):
        raise ValueError(f"{path}: files of references are not read; name the files themselves")
    import fsspec

    system: Any
    name: str
    system, name = fsspec.core.url_to_fs(path)
    return system, name
