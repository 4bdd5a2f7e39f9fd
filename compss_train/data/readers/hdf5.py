"""HDF5 files, by way of h5py, which the extra ``hdf5`` installs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from compss_train._utils.optional_imports import import_optional
from compss_train.data.layout import Description
from compss_train.data.readers.base import Arrays, Reader, described, select


class Hdf5Reader(Reader):
    """Reads the data sets of an HDF5 file, also those in groups (``group/name``); only the rows asked for.

    Files are opened where they are read, in the worker, and closed again.
    """

    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return the data sets' shapes and dtypes."""
        with h5py().File(path, "r") as file:
            names = _names(file)
            return described({key: file[key] for key in select(keys, names)})

    def read(self, path: str, start: int, stop: int, keys: Collection[str] | None = None) -> tuple[Arrays, int]:
        """Return the rows."""
        with h5py().File(path, "r") as file:
            chosen = {key: file[key] for key in select(keys, _names(file))}
            rows = described(chosen).rows
            return {key: data[start:stop] for key, data in chosen.items()}, rows


def h5py() -> Any:
    """Return the module ``h5py``; raise ``ModuleNotFoundError`` if it is not installed."""
    return import_optional("h5py", extra="hdf5", needed_by="the HDF5 format")


def _linked(file: Any, name: str) -> Any:
    try:
        return file.get(name)
    except RuntimeError:  # a link that leads to itself
        return None


def _names(file: Any) -> list[str]:
    """Return the names of the data sets: those in groups, too, and those that the file's own links lead to."""
    found: dict[str, Any] = {}

    def note(name: str, item: Any) -> None:  # anything else than None would end the visit
        found[name] = item

    file.visititems(note)
    found |= {name: _linked(file, name) for name in file}
    return [name for name, item in found.items() if isinstance(item, h5py().Dataset) and item.shape is not None]
