"""What a reader is: it knows one format of files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from compss_train.data.block import Block
from compss_train.data.layout import Description, Field, UnfitFileError, common_length, listed

Arrays = dict[str, Block]
"""Some rows of each array of a file, by name."""


class Reader(ABC):
    """Reads one format. A task gets it pickled, and threads use it at the same time.

    Whatever is raised becomes a ``BadFileError`` that names the file: messages go on where a file's name ended.
    Called as ``reader(filename, get_data=False)`` it returns the number of samples, or with ``get_data=True`` a
    dict of arrays and that number, as the readers of microsoft/PartiallyShuffleDistributedSampler do.
    """

    @abstractmethod
    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return what is in a file, or in some of its arrays, reading no more of it than headers."""

    @abstractmethod
    def read(self, path: str, start: int, stop: int, keys: Collection[str] | None = None) -> tuple[Arrays, int]:
        """Return rows ``start`` to ``stop`` of these arrays, by default of all, and how many the file has."""

    def __call__(self, filename: str, get_data: bool = False) -> int | tuple[Arrays, int]:
        """Return the number of samples, with ``get_data`` after a dict of all arrays."""
        rows = self.describe(filename).rows
        return self.read(filename, 0, rows) if get_data else rows


def described(arrays: Mapping[str, Any]) -> Description:
    """Describe what has a ``shape`` and a ``dtype``; raise ``UnfitFileError`` for scalars and objects."""
    for key, array in arrays.items():
        if len(array.shape) == 0:
            raise UnfitFileError(
                f"holds a single value in {key!r}, no row a sample; name the arrays to read in keys="
            )
        check_plain(key, array.dtype)
    rows = common_length({key: int(array.shape[0]) for key, array in arrays.items()})
    return Description(rows, {key: Field(str(a.dtype), tuple(a.shape[1:])) for key, a in arrays.items()})


def check_plain(key: str, dtype: Any) -> None:
    """Raise ``ValueError`` for arrays of Python objects: reading them would run whatever their pickle says."""
    if isinstance(dtype, np.dtype) and dtype.hasobject:
        raise UnfitFileError(
            f"holds Python objects in {key!r}, which are pickles and not read; save numbers instead"
        )


def select(keys: Collection[str] | None, names: Collection[str]) -> list[str]:
    """Return the names to read; raise ``UnfitFileError`` where one is not there."""
    if keys is None:
        return list(names)
    if missing := [key for key in keys if key not in names]:
        raise UnfitFileError(f"has no array {listed(missing)}; it has {listed(names)}")
    return list(keys)
