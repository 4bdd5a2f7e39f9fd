"""Reader of HDF5 files, and of NetCDF-4: HDF5 with the CF conventions. Needs the extra ``hdf5``."""

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

_ATTRIBUTES: dict[str, int | None] = {
    "scale_factor": 1,
    "add_offset": 1,
    "valid_min": 1,
    "valid_max": 1,
    "valid_range": 2,
    "_FillValue": None,
    "missing_value": None,
}
"""The attributes that say how numbers are packed and which are missing, and how many each has."""
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"
"""In the attribute ``NAME`` of a dimension without values, in NetCDF-4 files."""


class Hdf5Reader(ArraysReader):
    """Reads rows of the data sets of an HDF5 file, including those in groups (``group/name``).

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
            links: dict[str, Any] = {}

            # A return value other than None would end the iteration.
            def visit(name: str, link: Any) -> None:
                links[name] = link

            file.visititems_links(visit)
            items = {}
            for name, link in links.items():
                if isinstance(link, h5py.HardLink):
                    items[name] = file[name]
                elif any(f"{key}/".startswith(f"{name}/") for key in keys or ()):
                    raise FileContentError(
                        f"has {name!r}, a link, which is not followed: copy the data here"
                    )
            data_sets = {
                name: item
                for name, item in items.items()
                if isinstance(item, h5py.Dataset)
                and item.shape is not None
                and _NO_VARIABLE not in str(item.attrs.get("NAME"))
            }
            selected = select_keys(keys, data_sets)
            yield {key: _unpacked(data_sets[key], key) for key in selected}


def import_h5py() -> Any:
    """Return h5py; raise ``ModuleNotFoundError`` with installation instructions."""
    return imports.import_optional("h5py", extra="hdf5", needed_by="the HDF5 format")


def _unpacked(data: Any, name: str) -> "_UnpackedData":
    """Return a data set of numbers; raise ``FileContentError`` for others, or data elsewhere."""
    files = [file for file, *_ in data.external or ()]
    if data.is_virtual:
        files += [source.file_name for source in data.virtual_sources() if source.file_name != "."]
    if files:
        raise FileContentError(
            f"has {name!r}, whose data are in another file, {files[0]}; copy them into this one"
        )
    h5py = import_h5py()
    if data.dtype.hasobject and h5py.check_string_dtype(data.dtype) is not None:
        raise FileContentError(f"holds text in {name!r}; save the numbers of its classes instead")
    if h5py.check_vlen_dtype(data.dtype) is not None:
        raise FileContentError(f"holds sequences of different lengths in {name!r}; pad them")
    if h5py.check_ref_dtype(data.dtype) is not None:
        raise FileContentError(f"holds references in {name!r}; save what they refer to instead")
    _check_filters(data, name)
    return _UnpackedData(data, name)


def _number_attributes(data: Any, name: str) -> dict[str, NDArray[Any]]:
    """Return those of ``_ATTRIBUTES`` that a data set of numbers has."""
    attributes = {
        key: np.ravel(data.attrs[key])
        for key in _ATTRIBUTES
        if key in data.attrs and data.dtype.base.kind in "iuf"  # text has a _FillValue, too
    }
    for key, numbers in attributes.items():
        if numbers.dtype.kind not in "iuf" or _ATTRIBUTES[key] not in (None, numbers.size):
            raise FileContentError(
                f"has {name!r} with a {key} of {numbers.tolist()}, which is no number"
            )
    return attributes


class _UnpackedData:
    """A data set, whose rows are numbers as they were before they were packed."""

    def __init__(self, data: Any, name: str) -> None:
        self._data = data
        self._name = name
        stored, inner = data.dtype.subdtype or (data.dtype, ())
        self.shape = (*data.shape, *inner)
        attributes = _number_attributes(data, name)
        unsigned = np.asarray(data.attrs.get("_Unsigned", b"false")).astype(str)
        self._stored = stored
        if stored.kind == "i" and str(unsigned).lower() == "true":
            self._stored = np.dtype(f"u{stored.itemsize}")
        packing = {
            key: attributes[key].reshape(())
            for key in ("scale_factor", "add_offset")
            if key in attributes
        }
        self._scale = packing.get("scale_factor")
        self._offset = packing.get("add_offset")
        self.dtype = np.result_type(*packing.values()) if packing else self._stored
        if packing and self.dtype.kind != "f":  # the attributes are integers
            self.dtype = np.dtype(np.float64)
        self._marks = [
            self._comparable(attributes[key])
            for key in ("_FillValue", "missing_value")
            if key in attributes
        ]
        if not self._marks and stored.kind in "iuf" and stored.itemsize > 1:
            unwritten = np.ravel(data.fillvalue)
            if np.any(unwritten != 0):
                self._marks = [self._comparable(unwritten)]
        least = attributes.get("valid_min")
        largest = attributes.get("valid_max")
        if "valid_range" in attributes:
            range_start, range_end = np.split(attributes["valid_range"], 2)
            least = range_start if least is None else least
            largest = range_end if largest is None else largest
        self._bounds = [
            None if bound is None else self._comparable(bound) for bound in (least, largest)
        ]

    def _comparable(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return numbers of an attribute as they are compared with stored ones."""
        stored = self._stored
        is_signed = numbers.dtype.kind == "i" and numbers.dtype.itemsize == stored.itemsize
        if is_signed and stored.kind == "u":
            return numbers.view(stored)
        return numbers.astype(stored) if stored.kind == "f" else numbers

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
            is_missing: Any = self._is_missing(stored, values).reshape(len(values), -1)
            check_complete(self._name, is_missing.any(axis=1), rows.start or 0)
        return values

    def _is_missing(self, stored: NDArray[Any], values: NDArray[Any]) -> NDArray[np.bool_]:
        is_missing = np.zeros(stored.shape, np.bool_)
        for marks in self._marks:
            is_missing |= np.isin(stored, marks)
            if stored.dtype.kind == "f" and np.isnan(marks).any():
                is_missing |= np.isnan(stored)
        for bound, is_outside in zip(self._bounds, (np.less, np.greater), strict=True):
            if bound is not None:  # of packed numbers, unless only unpacked ones can have its type
                is_unpacked = bound.dtype.kind == "f" and stored.dtype.kind != "f"
                is_missing |= is_outside(values if is_unpacked else stored, bound)
        return is_missing


def _check_filters(data: Any, name: str) -> None:
    """Raise ``FileContentError`` for a filter of HDF5, such as a compression, that is missing."""
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
