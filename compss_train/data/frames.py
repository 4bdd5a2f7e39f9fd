"""Data frames and series of pandas and polars as arrays of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data.layout import FileContentError
from compss_train.data.tables import (
    as_matrix,
    check_complete,
    check_numbers,
    common_dtype,
    conversion_note,
    float_dtype,
)

_NAMED = 5
"""So many columns are named in a note."""


def without_frames(value: Any, name: str, floats: str | None) -> tuple[Any, list[str]]:
    """Return data with arrays in the place of frames and series, and what users should know about conversions.

    A frame becomes an array of shape (rows, columns), a series one of shape (rows,). Categories become their codes,
    and numbers with a fraction ``floats``. Tuples, lists and dicts of frames and series are converted, too.

    Raises ``ValueError`` for missing values and for columns that are neither numbers nor categories; messages call
    the data ``name``.
    """
    if isinstance(value, Mapping):
        parts = {key: without_frames(part, f"{name}[{key!r}]", floats) for key, part in value.items()}
        return {key: part for key, (part, _) in parts.items()}, _joined(parts.values())
    if isinstance(value, tuple | list) and any(map(_is_frame, value)):
        items = [without_frames(part, f"{name}[{place}]", floats) for place, part in enumerate(value)]
        return tuple(part for part, _ in items), _joined(items)
    if not _is_frame(value):
        return value, []
    try:
        return _as_array(value, name, floats)
    except FileContentError as error:
        raise ValueError(f"{name} is a {type(value).__name__} that {error}") from None


def _joined(converted: Any) -> list[str]:
    return [note for _, notes in converted for note in notes]


def _is_frame(value: Any) -> bool:
    has_missing = hasattr(value, "isna") or hasattr(value, "is_null")
    return hasattr(value, "to_numpy") and (hasattr(value, "columns") or (has_missing and hasattr(value, "dtype")))


def _as_array(value: Any, name: str, floats: str | None) -> tuple[NDArray[Any], list[str]]:
    if not hasattr(value, "columns"):
        column = _numbers(str(getattr(value, "name", None) or name), value)
        becomes = float_dtype(column.dtype, floats)
        return column.astype(becomes), _notes([name], [column], becomes)
    names = [str(each) for each in value.columns]
    if len(set(names)) < len(names) or not names:
        raise FileContentError("has no columns, or several of one name: give each a name of its own")
    columns = [_numbers(each, value[key]) for each, key in zip(names, value.columns, strict=True)]
    becomes = float_dtype(common_dtype(column.dtype for column in columns), floats)
    return as_matrix(columns, becomes), _notes(names, columns, becomes)


def _notes(names: Sequence[str], columns: Sequence[NDArray[Any]], becomes: np.dtype[Any]) -> list[str]:
    """Return a note for columns with a fraction that are stored with fewer digits."""
    pairs = zip(names, columns, strict=True)
    changed = [name for name, column in pairs if column.dtype.kind == "f" and column.dtype != becomes]
    shown = [*changed[:_NAMED], "..."] if len(changed) > _NAMED else changed
    return [conversion_note(shown, "float64", str(becomes))] if changed else []


def _numbers(name: str, series: Any) -> NDArray[Any]:
    """Return a column as numbers; categories as codes."""
    check_complete(name, np.asarray(series.isna() if hasattr(series, "isna") else series.is_null()))
    kind = str(series.dtype)
    if kind.lower().startswith(("category", "categorical", "enum")):
        codes = series.cat.codes if hasattr(series.cat, "codes") else series.to_physical()
        return np.asarray(codes.to_numpy(), np.int64)
    if kind.lower().startswith(("object", "str", "utf8", "large_string")):
        raise FileContentError(
            f"holds {type(next(iter(series))).__name__} values in {name!r}, which are no numbers: make "
            f"them categories, frame[{name!r}].astype('category'), whose codes are trained on, or convert them, or "
            "leave the column out"
        )
    values = series.to_numpy()
    if values.dtype == object and hasattr(series.dtype, "numpy_dtype"):  # pandas's types that can lack values
        values = series.to_numpy(dtype=series.dtype.numpy_dtype)
    check_numbers(name, values.dtype)
    return np.asarray(values)
