"""Readers of arrays as numpy (npz, npy) and torch (pt) save them, and a writer of npz files."""

import io
import math
import os
import pickle
import threading
import zipfile
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy_format

from compss_train._utils import validation
from compss_train.data.block import Block
from compss_train.data.layout import Description, FileContentError
from compss_train.data.locations import is_remote, open_binary, openable
from compss_train.data.readers.base import (
    Arrays,
    Reader,
    check_no_objects,
    describe_arrays,
    select_keys,
)


class ArraysReader(Reader):
    """Reads files whose arrays can be described, and sliced by rows, without reading the rest."""

    @abstractmethod
    def open(
        self, path: str, keys: Collection[str] | None
    ) -> AbstractContextManager[Mapping[str, Any]]:
        """Open these arrays, all by default; slicing them reads the rows."""

    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return the shapes and dtypes of the arrays."""
        with self.open(path, keys) as arrays:
            return describe_arrays(arrays)

    def read(
        self, path: str, start: int, stop: int, keys: Collection[str] | None = None
    ) -> tuple[Arrays, int]:
        """Return a copy of the rows."""
        with self.open(path, keys) as arrays:
            rows = describe_arrays(arrays).rows
            return {key: _copy(array[start:stop]) for key, array in arrays.items()}, rows


def _copy(rows: Block) -> Block:
    if isinstance(rows, torch.Tensor):
        return rows.clone(memory_format=torch.contiguous_format)
    return np.array(rows, order="C", subok=False) if isinstance(rows, np.memmap) else rows


_LONGEST_HEADER = 2**16 + 16
"""Maximum number of bytes before the data in version 1.0 of numpy's format."""
_READ_HEADER = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
"""By version of the format."""
_PARSING = threading.Lock()
"""Numpy parses headers by ``ast``, which in Python 3.11 fails in several threads at once."""


class NpzReader(Reader):
    """Reads files of ``numpy.savez`` and ``numpy.savez_compressed``."""

    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return the shapes and dtypes in the arrays' headers, and read nothing else."""
        with open_binary(path) as file, zipfile.ZipFile(file) as archive:
            members = _members(archive, keys)
            return describe_arrays(
                {key: _header(archive, member) for key, member in members.items()}
            )

    def read(
        self, path: str, start: int, stop: int, keys: Collection[str] | None = None
    ) -> tuple[Arrays, int]:
        """Return rows of the arrays; each array is read completely, to verify its checksum."""
        with open_binary(path) as file, zipfile.ZipFile(file) as archive:
            members = _members(archive, keys)
            arrays = {
                key: _parse_array(key, archive.read(member)) for key, member in members.items()
            }
        rows = describe_arrays(arrays).rows
        return {key: array[start:stop] for key, array in arrays.items()}, rows


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]


def _members(archive: zipfile.ZipFile, keys: Collection[str] | None) -> dict[str, zipfile.ZipInfo]:
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if len(members) != len(archive.infolist()):
        raise FileContentError("is corrupt: it contains an array twice")
    return {key: members[key] for key in select_keys(keys, members)}


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Header:
    with archive.open(member) as file:
        return _parse_header(file, member.file_size)[0]


def _parse_header(file: Any, size: int) -> tuple[_Header, int]:
    """Return the header of an array and its number of bytes, checked against ``size``, all bytes.

    Only the parsing, not the reading, waits for other threads.
    """
    prefix = file.read(12)  # the magic string, the version, and the length in 2 bytes or 4
    length = int.from_bytes(prefix[8:10] if prefix[6:7] == b"\x01" else prefix[8:12], "little")
    start = io.BytesIO(prefix + file.read(min(length, _LONGEST_HEADER)))
    with _PARSING:
        version = npy_format.read_magic(start)
        if version not in _READ_HEADER:
            raise FileContentError(
                f"holds an array in version {version} of numpy's format; 1.0 and 2.0 are read"
            )
        header = _Header(*_READ_HEADER[version](start))
    data_bytes = math.prod(header.shape) * header.dtype.itemsize
    is_negative = min(header.shape, default=0) < 0
    is_of_size = start.tell() + data_bytes == size or header.dtype.hasobject
    if is_negative or not is_of_size:
        raise FileContentError(
            f"is corrupt: an array of {header.dtype} {header.shape} cannot have {size} bytes"
        )
    return header, start.tell()


def _parse_array(key: str, content: bytes) -> np.ndarray[Any, Any]:
    header, start = _parse_header(io.BytesIO(content), len(content))
    check_no_objects(key, header.dtype)
    # Which may be written to.
    flat = np.frombuffer(bytearray(content), np.uint8)[start:].view(header.dtype)
    return flat.reshape(header.shape, order="F" if header.is_fortran else "C")


def write_npz(path: Path, arrays: Mapping[str, Any], compression: int = zipfile.ZIP_STORED) -> None:
    """Write the format of ``numpy.savez``, which does not accept every name."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy_format.write_array(member, np.asarray(array), allow_pickle=False)


ARRAY_NAME = "x"
"""Name of the only array in a file without names."""


class NpyReader(ArraysReader):
    """Reads the requested rows of files of ``numpy.save``, which are memory-mapped.

    The array is named x. Remote files are read whole.
    """

    @contextmanager
    def open(self, path: str, keys: Collection[str] | None) -> Iterator[Mapping[str, Any]]:
        """Map the file into memory; one too short for the shape in its header is an error."""
        select_keys(keys, (ARRAY_NAME,))
        with open_binary(path) as file:
            if is_remote(path):
                yield {ARRAY_NAME: _parse_array(ARRAY_NAME, file.read())}
                return
            header, start = _parse_header(file, os.fstat(file.fileno()).st_size)
            check_no_objects(ARRAY_NAME, header.dtype)
            array: Any = np.memmap(
                path,
                header.dtype,
                mode="r",
                offset=start,
                shape=header.shape,
                order="F" if header.is_fortran else "C",
            )
            yield {ARRAY_NAME: array}


_TENSORS = ("x", "y")
"""Names of tensors in files without names."""


class TorchReader(ArraysReader):
    """Reads what ``torch.save`` saved: a dict of tensors, a tensor (x), or one or two (x, y).

    One or two are in a tuple or list. Only tensors are unpickled (``weights_only``). The file is
    memory-mapped: only the requested rows are read. Remote files, and those of torch before version
    1.6, are read whole.
    """

    @contextmanager
    def open(self, path: str, keys: Collection[str] | None) -> Iterator[Mapping[str, Any]]:
        """Map the tensors into memory."""
        by_name = _by_name(_load(path))
        tensors = {key: by_name[key] for key in select_keys(keys, by_name)}
        for key, tensor in tensors.items():
            if not isinstance(key, str) or not isinstance(tensor, torch.Tensor):
                raise FileContentError(
                    f"holds a {type(tensor).__name__} under {key!r}; select the tensors with keys="
                )
            validation.check_dense(f"{key!r} in it", tensor)
        yield {key: tensor.detach() for key, tensor in tensors.items()}


def _load(path: str) -> Any:
    try:
        with openable(path) as file:
            mapped = not is_remote(path) and zipfile.is_zipfile(path)
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError:
        raise FileContentError(
            "holds other objects than tensors; they are pickled and therefore not read"
        ) from None


def _by_name(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    items = tuple(value) if isinstance(value, tuple | list) else (value,)
    if len(items) > len(_TENSORS):
        raise FileContentError(f"holds {len(items)} tensors without names; save a dict of tensors")
    return dict(zip(_TENSORS, items, strict=False))
