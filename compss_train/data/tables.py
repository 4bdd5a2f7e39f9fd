"""Columns of tables, of data frames and of files, as arrays of numbers: dtypes, classes of strings, missing values.

Messages continue a sentence that starts with the name of the table.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data.layout import FileContentError, quote_names

MAX_CLASSES = 10_000
"""So many different strings in a column are classes; more are names or text, unless their classes are given."""


def check_complete(name: str, missing: NDArray[np.bool_], first: int = 0) -> None:
    """Raise ``FileContentError`` if a column lacks values; ``missing`` has an entry per row from row ``first``."""
    rows = np.flatnonzero(missing)
    if len(rows):
        values = "a value" if len(rows) == 1 else f"{len(rows)} values"
        raise FileContentError(
            f"lacks {values} in {name!r}, the first in row {first + rows[0]}: fill them in, remove these rows, or "
            "leave the column out"
        )


def check_numbers(name: str, dtype: object) -> None:
    """Raise ``FileContentError`` unless a column of this dtype has numbers or booleans."""
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biuf":
        raise FileContentError(
            f"holds {dtype} in {name!r}, which are no numbers: convert them, or leave the column out"
        )


def find_classes(name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the different values of a column in ascending order; class 0 is the first.

    Raises ``FileContentError`` for more than ``MAX_CLASSES``, and for values without an order.
    """
    different = set(values)
    if len(different) > MAX_CLASSES:
        raise FileContentError(
            f"has more than {MAX_CLASSES:,} different values in {name!r}, which are names or text rather than "
            f"classes: leave the column out, or give classes={{{name!r}: [...]}}"
        )
    try:
        return tuple(sorted(different))
    except TypeError:
        kinds = ", ".join(sorted({type(value).__name__ for value in different}))
        raise FileContentError(f"mixes values of several types ({kinds}) in {name!r}: make all strings") from None


def class_codes(
    name: str, values: Sequence[Any], places: NDArray[np.integer[Any]], classes: Sequence[Any], first: int = 0
) -> NDArray[np.int64]:
    """Return the class of each row: the place of ``values[place]`` among the classes.

    ``values`` are the different values of a column, and ``places`` has one of them for each row, as
    ``pandas.factorize`` and Arrow's dictionaries have them; ``first`` is the number of the first row. Raises
    ``FileContentError`` for a value that is not among the classes.
    """
    numbers = {value: number for number, value in enumerate(classes)}
    codes = np.array([numbers.get(value, -1) for value in values], np.int64)
    of_rows: NDArray[np.int64] = codes[places]
    if len(unknown := np.flatnonzero(of_rows < 0)):
        value = values[places[unknown[0]]]
        raise FileContentError(
            f"holds {value!r} in {name!r}, in row {first + unknown[0]}, which is none of its classes "
            f"{quote_names(list(classes)[:10])}{', ...' if len(classes) > 10 else ''}: give "
            f"classes={{{name!r}: [...]}} with all of them"
        )
    return of_rows


def common_dtype(dtypes: Iterable[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the dtype of an array that holds columns of these dtypes, as numpy finds it."""
    return np.result_type(*dtypes)


def as_matrix(columns: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return columns of equal length side by side, shape (rows, columns)."""
    matrix = np.empty((len(columns[0]), len(columns)), dtype)
    for number, column in enumerate(columns):
        matrix[:, number] = column
    return matrix


def float_dtype(dtype: np.dtype[Any], floats: str | None) -> np.dtype[Any]:
    """Return ``floats``, the dtype of a network's parameters, for numbers with a fraction; others stay as they are.

    ``None`` leaves all as they are.
    """
    return np.dtype(floats) if floats is not None and dtype.kind == "f" else dtype


def conversion_note(columns: Iterable[str], dtype: str, floats: str) -> str:
    """Return what users are informed of when columns of ``dtype`` become ``floats``."""
    return (
        f"{', '.join(columns)}: {dtype} becomes {floats}, the dtype of the network's parameters; convert the data, "
        "or the network (net.double()), if this is not what you want"
    )
