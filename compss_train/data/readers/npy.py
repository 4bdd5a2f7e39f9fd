"""Numpy's ``.npy`` files: one array each."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from compss_train.data.layout import Description
from compss_train.data.readers.base import Arrays, Reader, described, select

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
