"""Numpy's files, which are never unpickled."""

import os
from typing import IO, Any, Literal

import numpy as np


def load_numpy(
    file: str | os.PathLike[str] | IO[bytes], *, mmap_mode: Literal["r"] | None = None
) -> Any:
    """Return what ``numpy.load`` does, an array or an archive.

    Raises ``ValueError`` for other files and for Python objects, without numpy's advice to unpickle
    them; the archive does so for its members.
    """
    name: Any = getattr(file, "name", file)
    try:
        return np.load(file, mmap_mode=mmap_mode, allow_pickle=False)
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise ValueError(
            f"{os.fspath(name)} is no file of numpy's arrays, or has Python objects, which are "
            "never read; save numbers or text with numpy.save or numpy.savez"
        ) from None
