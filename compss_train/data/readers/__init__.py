"""Readers: one for each format of files, chosen by how names end, and one for functions of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

from compss_train.data.readers.base import Arrays, Reader
from compss_train.data.readers.custom import CustomReader
from compss_train.data.readers.hdf5 import Hdf5Reader
from compss_train.data.readers.npz import NpyReader, NpzReader
from compss_train.data.readers.pt import TorchReader

__all__ = [
    "READERS",
    "Arrays",
    "CustomReader",
    "Hdf5Reader",
    "NpyReader",
    "NpzReader",
    "Reader",
    "TorchReader",
    "as_reader",
]

READERS: dict[str, type[Reader]] = {
    ".npz": NpzReader,
    ".npy": NpyReader,
    ".pt": TorchReader,
    ".pth": TorchReader,
    ".h5": Hdf5Reader,
    ".hdf5": Hdf5Reader,
}
"""The readers by the ends of files' names."""


def as_reader(reader: Reader | Callable[..., Any] | None, files: Sequence[str]) -> Reader:
    """Return a reader for these files: the one given, or the one that their names' common end tells.

    Raises ``ValueError`` for ends that are unknown or differ, ``TypeError`` for what cannot be called.
    """
    if isinstance(reader, type) and issubclass(reader, Reader):
        return reader()
    if isinstance(reader, Reader):
        return reader
    if reader is not None:
        if not callable(reader):
            raise TypeError(f"reader={reader!r}: give a function reader(filename, get_data=False), or None")
        return CustomReader(reader)
    suffixes = sorted({PurePath(file).suffix.lower() for file in files})
    unknown = [suffix for suffix in suffixes if suffix not in READERS]
    if unknown or len({READERS[suffix] for suffix in suffixes}) != 1:
        raise ValueError(
            f"files that end in {', '.join(map(repr, suffixes))}: give files of one kind, "
            f"{', '.join(READERS)}, or a reader(filename, get_data=False)"
        )
    return READERS[suffixes[0]]()
