"""Reader of HDF5 files; needs h5py (extra ``hdf5``)."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from compss_train._utils.imports import import_optional
from compss_train.data.layout import FileContentError
from compss_train.data.locations import openable
from compss_train.data.readers.arrays import ArraysReader
from compss_train.data.readers.base import select_keys


class Hdf5Reader(ArraysReader):
    """Reads the requested rows of the data sets of an HDF5 file, including those in groups (``group/name``).

    Soft and external links are not followed: data must not choose which of the reader's files are read.

    Each call opens and closes the file.
    """

    stored_name = "hdf5"

    @contextmanager
    def open(self, path: str, keys: Collection[str] | None) -> Iterator[Mapping[str, Any]]:
        """Open data sets; raise ``FileContentError`` for a key that is a link."""
        h5py = import_h5py()
        with openable(path) as source, h5py.File(source, "r") as file:
            hard: list[str] = []
            links: list[str] = []

            def visit(name: str, link: Any) -> None:  # a return value other than None would end the iteration
                (hard if isinstance(link, h5py.HardLink) else links).append(name)

            file.visititems_links(visit)
            if followed := [link for link in links for key in keys or () if f"{key}/".startswith(f"{link}/")]:
                raise FileContentError(f"has {followed[0]!r}, a link, which is not followed: copy the data here")
            items = {name: item for name in hard if isinstance(item := file[name], h5py.Dataset)}
            names = [name for name, item in items.items() if item.shape is not None]
            yield {key: _opened(items[key], key) for key in select_keys(keys, names)}


def import_h5py() -> Any:
    """Return h5py; raise ``ModuleNotFoundError`` with installation instructions."""
    return import_optional("h5py", extra="hdf5", needed_by="the HDF5 format")


def _opened(data: Any, name: str) -> Any:
    """Return a data set; raise ``FileContentError`` if its data are in other files."""
    others = [other for other, *_ in data.external or ()]
    if data.is_virtual:
        others += [source.file_name for source in data.virtual_sources() if source.file_name != "."]
    if others:
        raise FileContentError(
            f"has {name!r}, whose data are in another file, {others[0]}; copy them into this one"
        )
    return data
