"""Frames and series of pandas and polars as arrays of numbers."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compss_train.data.classes import class_codes
from compss_train.data.coding import Coding, classes_key, columns_key, plain_classes
from compss_train.data.conversions import (
    check_complete,
    check_numbers,
    codes_note,
    conversion_note,
    float_dtype,
    integers_remark,
)
from compss_train.data.layout import FileContentError


def is_frame(value: Any) -> bool:
    """Return whether a value is a frame or a series of pandas or polars, without importing
    these.
    """
    has_missing = hasattr(value, "isna") or hasattr(value, "is_null")
    return hasattr(value, "to_numpy") and (
        hasattr(value, "columns") or (has_missing and hasattr(value, "dtype"))
    )


class FrameArray(NamedTuple):
    """A frame as an array of shape (rows, columns), a series as one of shape (rows,)."""

    array: NDArray[Any]
    notes: list[str]
    """Conversions that users should be warned of."""
    remarks: list[str]
    """Conversions that most users want."""
    coding: Coding


def frame_as_array(value: Any, name: str, floats: str | None) -> FrameArray:
    """Return a frame or a series as an array.

    Categories become their codes, and floating-point numbers are converted to ``floats``.

    Raises ``ValueError`` for missing values and for columns that are neither numbers nor
    categories; messages call the data ``name``.
    """
    try:
        if hasattr(value, "columns"):
            names = [str(each) for each in value.columns]
            if len(set(names)) < len(names) or not names:
                raise FileContentError(
                    "has no columns, or several of one name: give each a name of its own"
                )
            series = {each: value[key] for each, key in zip(names, value.columns, strict=True)}
            coding: Coding = {columns_key(name): tuple(names)}
        else:
            series = {str(getattr(value, "name", None) or name): value}
            coding = {}
        read = {each: _frame_column(each, own) for each, own in series.items()}
    except FileContentError as error:
        raise ValueError(f"{name} is a {type(value).__name__} that {error}") from None
    columns = [column for column, _ in read.values()]
    dtype = float_dtype(np.result_type(*columns), floats)
    array = (
        np.stack(columns, axis=1, dtype=dtype)
        if hasattr(value, "columns")
        else columns[0].astype(dtype)
    )
    is_changed = any(column.dtype.kind == "f" and column.dtype != dtype for column in columns)
    notes = [conversion_note("float64", str(dtype))] if is_changed else []
    remarks = list[str]()
    if dtype.kind == "f":
        widened = {
            each: categories
            for each, (column, categories) in read.items()
            if column.dtype.kind in "iu"
        }
        codes = [each for each, categories in widened.items() if categories is not None]
        integers = [each for each, categories in widened.items() if categories is None]
        notes += [codes_note(codes, name, dtype, "frame")] if codes else []
        remarks = [integers_remark(integers, name, dtype, "frame")] if integers else []
    for each, (_, categories) in read.items():
        if categories is not None:
            coding[classes_key(name, each if coding else None)] = plain_classes(categories)
    return FrameArray(array, notes, remarks, coding)


def _frame_column(name: str, series: Any) -> tuple[NDArray[Any], tuple[Any, ...] | None]:
    """Return a column as numbers, and the categories whose codes these are, if it has any."""
    check_complete(name, np.asarray(series.isna() if hasattr(series, "isna") else series.is_null()))
    kind = str(series.dtype).lower()
    if kind.startswith(("category", "categorical", "enum")):
        return _coded(name, series)
    first: Any = next(iter(series), None)
    if np.ndim(first) and not isinstance(first, str):
        raise FileContentError(
            f"holds {type(first).__name__} values in {name!r}: give them apart, "
            f"np.stack(list(frame[{name!r}])), or list(...) if lengths differ; beside other "
            "columns as in x={'arrays': ..., 'numbers': ...}"
        )
    if kind.startswith(("object", "str", "utf8", "large_string")):
        raise FileContentError(
            f"holds {type(first).__name__} values in {name!r}, which are no numbers: make them "
            f"categories, frame[{name!r}].astype('category'), whose codes are trained on, or "
            "convert them, or leave the column out"
        )
    values = series.to_numpy()
    # Pandas's types that can lack values.
    if values.dtype == object and hasattr(series.dtype, "numpy_dtype"):
        values = series.to_numpy(dtype=series.dtype.numpy_dtype)
    check_numbers(name, values.dtype)
    return np.asarray(values), None


def _coded(name: str, series: Any) -> tuple[NDArray[np.int64], tuple[Any, ...]]:
    """Return the codes of a series of categories, and the categories.

    Those of polars' ``Categorical`` belong to the whole program, and codes depend on what it has
    read before: here they are the values that occur, in ascending order.
    """
    if hasattr(series.cat, "categories"):  # of pandas
        return np.asarray(series.cat.codes, np.int64), tuple(series.cat.categories)
    _, rows, places = np.unique(
        series.to_physical().to_numpy(), return_index=True, return_inverse=True
    )
    values = [series[row] for row in rows.tolist()]
    categories = tuple(
        series.dtype.categories if str(series.dtype).startswith("Enum") else sorted(values)
    )
    return class_codes(name, values, places, categories), categories
