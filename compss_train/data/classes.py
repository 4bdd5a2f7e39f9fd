"""Classes: the distinct values of a column, whose places are trained on."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data.layout import FileContentError, quote_names

MAX_CLASSES = 10_000
"""Maximum number of classes that are found in a column; more distinct strings are names or text."""


def check_classes(classes: Mapping[str, Sequence[Any]]) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless columns have lists of different classes.

    These are strings, or numbers.
    """
    for name, values in classes.items():
        if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
            raise TypeError(f"classes={{{name!r}: {values!r}}}: give a list of its classes")
        if not len(values) or len(set(values)) < len(values):
            raise ValueError(
                f"classes={{{name!r}: {list(values)!r}}}: name at least one class, and each once"
            )
        if {isinstance(value, str) for value in values} == {True, False}:
            raise TypeError(
                f"classes={{{name!r}: {list(values)!r}}}: make all strings, or all numbers"
            )


def find_classes(name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the distinct values of a column in ascending order; the first is class 0.

    Raises ``FileContentError`` for more than ``MAX_CLASSES``, and for values without an order.
    """
    different = set(values)
    if len(different) > MAX_CLASSES:
        raise FileContentError(
            f"has more than {MAX_CLASSES:,} different values in {name!r}, which are names or "
            f"text rather than classes: leave the column out, or give classes={{{name!r}: [...]}}"
        )
    try:
        return tuple(sorted(different))
    except TypeError:
        kinds = ", ".join(sorted({type(value).__name__ for value in different}))
        raise FileContentError(
            f"mixes values of several types ({kinds}) in {name!r}: make all strings"
        ) from None


def class_codes(
    name: str,
    values: Sequence[Any],
    places: NDArray[np.integer[Any]],
    classes: Sequence[Any],
    first: int = 0,
) -> NDArray[np.int64]:
    """Return the class of each row: the place of ``values[place]`` among the classes.

    ``values`` are the distinct values of a column and ``places`` the index of each row's value, as
    in Arrow's dictionary arrays; ``first`` is the number of the first row. Raises
    ``FileContentError`` for a value that is not among the classes.
    """
    code_of_class = {value: code for code, value in enumerate(classes)}
    code_of_value = np.array([code_of_class.get(value, -1) for value in values], np.int64)
    codes: NDArray[np.int64] = code_of_value[places]
    unknown_rows = np.flatnonzero(codes < 0)
    if len(unknown_rows):
        row = unknown_rows[0]
        value = values[places[row]]
        raise FileContentError(
            f"holds {value!r} in {name!r}, in row {first + row}, which is none of its "
            f"classes {quote_values(classes)}: give classes={{{name!r}: [...]}} with all of them"
        )
    return codes


def quote_values(classes: Sequence[Any]) -> str:
    """Return the first classes for messages."""
    return f"{quote_names(list(classes)[:10])}{', ...' if len(classes) > 10 else ''}"
