"""Reader of HDF5 files, and of NetCDF-4, which is HDF5 with the CF conventions; needs the extra
``hdf5``.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train._utils import imports
from compss_train.data.conversions import check_complete
from compss_train.data.layout import FileContentError
from compss_train.data.locations import open_binary, openable
from compss_train.data.readers.arrays import ArraysReader
from compss_train.data.readers.base import select_keys

_ATTRIBUTES: dict[str, int | None] = dict.fromkeys(
    ("scale_factor", "add_offset", "valid_min", "valid_max"), 1
)
_ATTRIBUTES |= {"_FillValue": None, "missing_value": None, "valid_range": 2}
"""The attributes of numbers that say how they are packed and which are missing, and how many
numbers they have.
"""
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"
"""In the attribute ``NAME`` of a dimension without values, in NetCDF-4 files."""


class Hdf5Reader(ArraysReader):
    """Reads the requested rows of the data sets of an HDF5 file, including those in groups
    (``group/name``).

    Soft and external links are not followed: data must not choose which of the reader's files are
    read.

    Numbers that are packed by the attributes ``scale_factor``, ``add_offset`` and ``_Unsigned`` are
    unpacked, and those that equal ``_FillValue`` or ``missing_value``, or are outside
    ``valid_min``, ``valid_max`` or ``valid_range``, are missing, which is an error: NetCDF-4 files
    have these attributes (CF Metadata Conventions 1.11, sections 2.5.1 and 8.1). Other attributes
    are not looked at.

    Each call opens and closes the file.
    """

    @contextmanager
    def open(self, path: str, keys: Collection[str] | None) -> Iterator[Mapping[str, Any]]:
        """Open data sets; raise ``FileContentError`` for a key that is a link."""
        h5py = import_h5py()
        with open_binary(path) as file:
            if file.read(4) in (b"CDF\1", b"CDF\2", b"CDF\5"):
                raise FileContentError(
                    "is a NetCDF-3 file: convert it to NetCDF-4, nccopy -k nc4 old.nc new.nc"
                )
        with openable(path) as source, h5py.File(source, "r") as file:
            hard: list[str] = []
            links: list[str] = []

            # A return value other than None would end the iteration.
            def visit(name: str, link: Any) -> None:
                (hard if isinstance(link, h5py.HardLink) else links).append(name)

            file.visititems_links(visit)
            if followed := [
                link for link in links for key in keys or () if f"{key}/".startswith(f"{link}/")
            ]:
                raise FileContentError(
                    f"has {followed[0]!r}, a link, which is not followed: copy the data here"
                )
            items = {name: item for name in hard if isinstance(item := file[name], h5py.Dataset)}
            names = [
                name
                for name, item in items.items()
                if item.shape is not None and _NO_VARIABLE not in str(item.attrs.get("NAME"))
            ]
            yield {key: _opened(items[key], key) for key in select_keys(keys, names)}


def import_h5py() -> Any:
    """Return h5py; raise ``ModuleNotFoundError`` with installation instructions."""
    return imports.import_optional("h5py", extra="hdf5", needed_by="the HDF5 format")


def _opened(data: Any, name: str) -> Any:
    """Return a data set; raise ``FileContentError`` if its data are in other files."""
    others = [other for other, *_ in data.external or ()]
    if data.is_virtual:
        others += [source.file_name for source in data.virtual_sources() if source.file_name != "."]
    if others:
        raise FileContentError(
            f"has {name!r}, whose data are in another file, {others[0]}; copy them into this one"
        )
    return _Unpacked(data, name)


class _Unpacked:
    """A data set, whose rows are numbers as they were before they were packed."""

    def __init__(self, data: Any, name: str) -> None:
        h5py = import_h5py()
        if data.dtype.hasobject and h5py.check_string_dtype(data.dtype) is not None:
            raise FileContentError(
                f"holds text in {name!r}; save the numbers of its classes instead"
            )
        if h5py.check_vlen_dtype(data.dtype) is not None:
            raise FileContentError(f"holds sequences of different lengths in {name!r}; pad them")
        if h5py.check_ref_dtype(data.dtype) is not None:
            raise FileContentError(f"holds references in {name!r}; save what they refer to instead")
        self._data = data
        self._name = name
        attributes = data.attrs
        stored, inner = data.dtype.subdtype or (data.dtype, ())
        self.shape = (*data.shape, *inner)
        _check_filters(data, name)
        # Text has a _FillValue, too.
        keys = [key for key in _ATTRIBUTES if key in attributes and stored.kind in "iuf"]
        found = {key: np.ravel(attributes[key]) for key in keys}
        for key, value in found.items():
            if value.dtype.kind not in "iuf" or _ATTRIBUTES[key] not in (None, value.size):
                raise FileContentError(
                    f"has {name!r} with a {key} of {value.tolist()}, which is no number"
                )
        packed = {
            key: found[key].reshape(()) for key in ("scale_factor", "add_offset") if key in found
        }
        self._scale = packed.get("scale_factor")
        self._offset = packed.get("add_offset")
        unsigned = (
            str(np.asarray(attributes.get("_Unsigned", b"false")).astype(str)).lower() == "true"
        )
        self._stored = (
            np.dtype(f"u{stored.itemsize}") if unsigned and stored.kind == "i" else stored
        )
        self.dtype = np.result_type(*packed.values()) if packed else self._stored
        if packed and self.dtype.kind != "f":  # of attributes that are integers
            self.dtype = np.dtype(np.float64)
        self._marks = [
            self._mark(found[key]) for key in ("_FillValue", "missing_value") if key in found
        ]
        if (
            not self._marks
            and stored.kind in "iuf"
            and stored.itemsize > 1
            and np.any(data.fillvalue != 0)
        ):
            # Of values that were never written.
            self._marks = [self._mark(np.ravel(data.fillvalue))]
        least, *_, largest = found.get("valid_range", (None, None))
        bounds = (found.get("valid_min", least), found.get("valid_max", largest))
        self._bounds = [None if bound is None else self._mark(np.ravel(bound)) for bound in bounds]

    def _mark(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return numbers of an attribute as they are compared with stored ones."""
        if (
            numbers.dtype.kind == "i"
            and numbers.dtype.itemsize == self._stored.itemsize
            and self._stored.kind == "u"
        ):
            return numbers.view(self._stored)
        return numbers.astype(self._stored) if self._stored.kind == "f" else numbers

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        values: NDArray[Any] = self._data[rows]
        if values.dtype != self._stored:
            values = values.view(self._stored)
        stored = values
        if self._scale is not None or self._offset is not None:
            values = values.astype(self.dtype)
            values *= 1 if self._scale is None else self._scale
            values += 0 if self._offset is None else self._offset
        if self._marks or any(bound is not None for bound in self._bounds):
            absent: Any = self._absent(stored, values).reshape(len(values), -1)
            check_complete(self._name, absent.any(axis=1), rows.start or 0)
        return values

    def _absent(self, stored: NDArray[Any], values: NDArray[Any]) -> NDArray[np.bool_]:
        absent = np.zeros(stored.shape, np.bool_)
        for marks in self._marks:
            absent |= np.isin(stored, marks)
            if stored.dtype.kind == "f" and np.isnan(marks).any():
                absent |= np.isnan(stored)
        for bound, is_outside in zip(self._bounds, (np.less, np.greater), strict=True):
            if bound is not None:  # of packed numbers, unless only unpacked ones can have its type
                is_unpacked = bound.dtype.kind == "f" and stored.dtype.kind != "f"
                absent |= is_outside(values if is_unpacked else stored, bound)
        return absent


def _check_filters(data: Any, name: str) -> None:
    """Raise ``FileContentError`` for a filter of HDF5, such as a compression, that is not
    installed.
    """
    filters = data.id.get_create_plist()
    for number in range(filters.get_nfilters()):
        code, _, _, label = filters.get_filter(number)
        if not import_h5py().h5z.filter_avail(code):
            raise FileContentError(
                f"has {name!r}, compressed with HDF5's filter {code} "
                f"({label.decode(errors='replace')}), which is not installed: set "
                "HDF5_PLUGIN_PATH to a folder with it, such as hdf5plugin.PLUGIN_PATH, or "
                "compress it with gzip"
            )
