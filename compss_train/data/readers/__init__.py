"""Readers: one for each format of files, chosen by their suffix, and one for user functions."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from compss_train.data.locations import is_folder, is_remote, suffix_of
from compss_train.data.readers.arrays import NpyReader, NpzReader, TorchReader
from compss_train.data.readers.arrow import ArrowReader
from compss_train.data.readers.base import Arrays, CustomReader, Reader
from compss_train.data.readers.csv import CsvReader
from compss_train.data.readers.hdf5 import Hdf5Reader
from compss_train.data.readers.images import SUFFIXES, ImageFolderReader
from compss_train.data.readers.json_lines import JsonReader
from compss_train.data.readers.parquet import ParquetReader
from compss_train.data.readers.table import TableReader

__all__ = [
    "READERS",
    "Arrays",
    "ArrowReader",
    "CsvReader",
    "CustomReader",
    "Hdf5Reader",
    "ImageFolderReader",
    "JsonReader",
    "NpyReader",
    "NpzReader",
    "ParquetReader",
    "Reader",
    "TableReader",
    "TorchReader",
    "as_reader",
]

READERS: dict[str, type[Reader]] = {
    ".npz": NpzReader,
    ".npy": NpyReader,
    **dict.fromkeys((".pt", ".pth"), TorchReader),
    **dict.fromkeys((".h5", ".hdf5", ".nc"), Hdf5Reader),
    ".parquet": ParquetReader,
    **dict.fromkeys((".arrow", ".feather"), ArrowReader),
    **dict.fromkeys((".csv", ".tsv"), CsvReader),
    **dict.fromkeys((".jsonl", ".ndjson"), JsonReader),
}
"""The readers by suffix of the file names."""


def as_reader(reader: Reader | Callable[..., Any] | None, files: Sequence[str]) -> Reader:
    """Return ``reader`` as a ``Reader``; for ``None``, the reader for the suffix of these files.

    Images and folders are read as images.

    Raises ``ValueError`` for suffixes that are unknown or differ, ``TypeError`` if ``reader``
    cannot be called.
    """
    if isinstance(reader, type) and issubclass(reader, Reader):
        return reader()
    if isinstance(reader, Reader):
        return reader
    if reader is not None:
        if not callable(reader):
            raise TypeError(
                f"reader={reader!r}: give a function reader(filename, get_data=False), or None"
            )
        return CustomReader(reader)
    suffixes = sorted({suffix_of(file) for file in files})
    folders = not READERS.keys() & suffixes and all(map(is_folder, files))
    if files and (folders or {*SUFFIXES} >= {*suffixes}):
        return ImageFolderReader()
    unknown = [suffix for suffix in suffixes if suffix not in READERS]
    if "" in unknown and not is_remote(files[0]) and not os.path.exists(files[0]):
        raise ValueError(
            f"{files[0]} does not exist; give a folder of images, or files of a known format"
        )
    if unknown or len({READERS[suffix] for suffix in suffixes}) != 1:
        raise ValueError(
            f"files with the suffixes {', '.join(map(repr, suffixes))}: give files of one format, "
            f"{', '.join(READERS)}, images, or a reader(filename, get_data=False)"
        )
    return READERS[suffixes[0]]()
