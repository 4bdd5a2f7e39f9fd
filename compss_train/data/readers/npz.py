"""Numpy's ``.npz`` files: arrays by name, perhaps compressed."""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from compss_train.data.layout import Description, UnfitFileError
from compss_train.data.readers.base import Arrays, Reader, check_plain, described, select

_LONGEST_HEADER = 2**16 + 16  # bytes that version 1.0 of numpy's format can have before the data
_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a member of a zip file: lengths of its name and of the extra field


class NpzReader(Reader):
    """Reads ``numpy.savez`` and ``numpy.savez_compressed``; describing a file reads the arrays' headers only."""

    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return what the headers of the arrays say."""
        with zipfile.ZipFile(path) as archive:
            members = _members(archive)
            return described({key: _header(archive, members[key]) for key in select(keys, members)})

    def read(self, path: str, start: int, stop: int, keys: Collection[str] | None = None) -> tuple[Arrays, int]:
        """Return rows of the arrays, whose checksums are checked: each is read whole."""
        with open(path, "rb", buffering=0) as file, zipfile.ZipFile(file) as archive:
            members = _members(archive)
            arrays = {key: _array(key, _bytes(file, archive, members[key])) for key in select(keys, members)}
        return {key: array[start:stop] for key, array in arrays.items()}, described(arrays).rows


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if len(members) != len(archive.infolist()):
        raise UnfitFileError("is corrupt: it names an array twice")
    return members


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Header:
    with archive.open(member) as file:
        return _parsed(file, member.file_size)


def _parsed(file: Any, size: int) -> _Header:
    """Return the header of an array that takes so many bytes with it."""
    version = npy_format.read_magic(file)
    if version not in _HEADERS:
        raise UnfitFileError(f"holds an array in version {version} of numpy's format; 1.0 and 2.0 are read")
    header = _Header(*_HEADERS[version](file))
    data = math.prod(header.shape) * header.dtype.itemsize
    if min(header.shape, default=0) < 0 or (file.tell() + data != size and not header.dtype.hasobject):
        raise UnfitFileError(f"is corrupt: an array of {header.dtype} {header.shape} is not of {size} bytes")
    return header


def _bytes(file: BinaryIO | Any, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[np.uint8]:
    """Return a member's bytes; where it is not compressed, read in one go.

    ``numpy.load`` goes by pieces, between which a thread that reads has to wait for Python's lock: half the speed.
    """
    if member.compress_type != zipfile.ZIP_STORED:
        return np.frombuffer(bytearray(archive.read(member)), np.uint8)
    archive.open(member).close()  # checks that what is there is this member
    if not member.file_size == member.compress_size <= os.fstat(file.fileno()).st_size:
        raise UnfitFileError(f"is corrupt: {member.filename!r} cannot have {member.file_size} bytes")
    file.seek(member.header_offset)
    lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    file.seek(sum(lengths), io.SEEK_CUR)
    data = np.empty(member.file_size, np.uint8)
    if _fill(data.data, file) != len(data) or zlib.crc32(data.data) != member.CRC:
        raise UnfitFileError(f"is corrupt: {member.filename!r} in it is not what its checksum says")
    return data


def _fill(data: memoryview, file: Any) -> int:
    filled = 0
    while filled < len(data) and (number := file.readinto(data[filled:])):  # 2 GiB at most at a time
        filled += number
    return filled


def _array(key: str, data: NDArray[np.uint8]) -> NDArray[Any]:
    start = io.BytesIO(data[:_LONGEST_HEADER].tobytes())
    header = _parsed(start, len(data))
    check_plain(key, header.dtype)
    flat = data[start.tell() :].view(header.dtype)
    return flat.reshape(header.shape, order="F" if header.is_fortran else "C")


NAME = "x"
"""What the array of a file with one nameless array is called."""


class NpyReader(Reader):
    """Reads ``numpy.save``, mapping the file, so that only the rows asked for are read. The array is called x."""

    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return what the header says; a file that is too short for it is an error."""
        select(keys, (NAME,))
        return described({NAME: _mapped(path)})

    def read(self, path: str, start: int, stop: int, keys: Collection[str] | None = None) -> tuple[Arrays, int]:
        """Return a copy of the rows."""
        select(keys, (NAME,))
        array = _mapped(path)
        return {NAME: np.array(array[start:stop], order="C", subok=False)}, described({NAME: array}).rows


def _mapped(path: str) -> NDArray[Any]:
    array: NDArray[Any] = open_memmap(path, mode="r")  # numpy.load would take a zip file, too
    return array
