"""``CustomReader``: reads files with a function of the user."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch

from compss_train.data.block import Block
from compss_train.data.layout import Description, FileContentError, common_length
from compss_train.data.readers.base import Arrays, Reader, check_no_objects, select_keys


class CustomReader(Reader):
    """Wraps a function ``reader(filename, get_data=False)``.

    The function returns the number of samples, or with ``get_data=True`` a dict of arrays and that number.
    """

    stored_name = "custom"

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return the number of samples that the function returns."""
        rows = self.function(path, get_data=False)
        if isinstance(rows, bool) or not isinstance(rows, int | np.integer):
            raise FileContentError(
                f"has no number of samples: the reader returned a {type(rows).__name__} instead of an integer"
            )
        if rows < 1:
            raise FileContentError(f"holds no samples: the reader returned {rows}")
        return Description(int(rows), None)

    def read(self, path: str, start: int, stop: int, keys: Collection[str] | None = None) -> tuple[Arrays, int]:
        """Return rows of the arrays; the function reads the whole file."""
        returned = self.function(path, get_data=True)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Mapping)):
            raise FileContentError(
                "cannot be used: with get_data=True the reader must return (dict of arrays, number)"
            )
        arrays = {key: _as_rows(key, value) for key, value in returned[0].items()}
        length = common_length({key: len(array) for key, array in arrays.items()})
        if length != returned[1]:
            raise FileContentError(f"has {length} rows in its arrays, but the reader returned {returned[1]}")
        return {key: arrays[key][start:stop] for key in select_keys(keys, arrays)}, length


def _as_rows(key: object, value: object) -> Block:
    if not isinstance(key, str):
        raise FileContentError(f"has an array named {key!r}; names must be strings")
    rows = value.detach().cpu() if isinstance(value, torch.Tensor) else np.asarray(value)
    if rows.ndim == 0:
        raise FileContentError(f"holds a single value in {key!r} instead of a row per sample")
    check_no_objects(key, rows.dtype)
    return rows
