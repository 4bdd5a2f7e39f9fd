"""Reader of HDF5 files; needs h5py (extra ``hdf5``)."""

import posixpath
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from compss_train._utils.imports import import_optional
from compss_train.data.locations import openable
from compss_train.data.readers.arrays import ArraysReader
from compss_train.data.readers.base import select_keys
from compss_train.exceptions import BadFileError


class Hdf5Reader(ArraysReader):
    """Reads the requested rows of the data sets of an HDF5 file, including those in groups (``group/name``).

    External links are not followed: data must not choose which of the reader's files are read.

    Each call opens and closes the file.
    """

    stored_name = "hdf5"

    @contextmanager
    def open(self, path: str, keys: Collection[str] | None) -> Iterator[Mapping[str, Any]]:
        """Open data sets; raise ``BadFileError`` for a key that leads into another file."""
        h5py = import_h5py()
        with openable(path) as source, h5py.File(source, "r") as file:
            for key in keys or ():
                if (other := _external(file, key)) is not None:
                    raise BadFileError(
                        path,
                        f"has {key!r}, a link into another file, {other}, which is not followed: copy the data "
                        "here",
                    )
            yield {key: _opened(path, file[key], key) for key in select_keys(keys, _names(file))}


def import_h5py() -> Any:
    """Return h5py; raise ``ModuleNotFoundError`` with installation instructions."""
    return import_optional("h5py", extra="hdf5", needed_by="the HDF5 format")


def _external(file: Any, path: str, links: int = 16) -> str | None:
    """Return the other file that a path leads to by external links, also behind soft links, or ``None``."""
    h5py, walked = import_h5py(), ""
    for part in path.strip("/").split("/"):
        link = file.get(posixpath.join(walked, part), getlink=True)
        if isinstance(link, h5py.ExternalLink):
            return str(link.filename)
        if isinstance(link, h5py.SoftLink) and links:
            found = _external(file, posixpath.join(walked, link.path), links - 1)
            if found is not None:
                return found
        walked = posixpath.join(walked, part)
    return None


def _opened(path: str, data: Any, name: str) -> Any:
    """Return a data set; raise ``BadFileError`` if its data are in other files."""
    others = [other for other, *_ in data.external or ()]
    if data.is_virtual:
        others += [source.file_name for source in data.virtual_sources() if source.file_name != "."]
    if others:
        raise BadFileError(
            path, f"has {name!r}, whose data are in another file, {others[0]}; copy them into this one"
        )
    return data


def _names(file: Any) -> list[str]:
    """Return the names of the data sets, including those in groups and behind the root group's links."""
    found: dict[str, Any] = {}

    def record(name: str, item: Any) -> None:  # a return value other than None would end the iteration
        found[name] = item

    file.visititems(record)
    for name in file:
        if _external(file, name) is None:
            with suppress(RuntimeError):  # a link to itself
                found[name] = file.get(name)
    return [
        name for name, item in found.items() if isinstance(item, import_h5py().Dataset) and item.shape is not None
    ]
