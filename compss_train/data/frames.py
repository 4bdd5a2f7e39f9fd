"""Frames and series of pandas and polars as arrays of numbers."""

from numbers import Real
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

MOST_PROBLEMS = 10
"""Columns whose problems an error lists."""


def is_frame(value: Any) -> bool:
    """Return whether a value is a frame or series of pandas or polars; imports neither."""
    if not hasattr(value, "to_numpy"):
        return False
    has_missing = hasattr(value, "isna") or hasattr(value, "is_null")
    return hasattr(value, "columns") or (has_missing and hasattr(value, "dtype"))


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
    is_table = hasattr(value, "columns")
    try:
        if is_table:
            series = _columns_by_name(value)
        else:
            series = {str(getattr(value, "name", None) or name): value}
        columns = _numbers_of(series)
    except FileContentError as error:
        raise ValueError(f"{name} is a {type(value).__name__} that {error}") from None
    coding: Coding = {columns_key(name): tuple(columns)} if is_table else {}
    for label, column in columns.items():
        if column.categories is not None:
            key = classes_key(name, label if is_table else None)
            coding[key] = plain_classes(column.categories)
    arrays = [column.array for column in columns.values()]
    dtype = float_dtype(np.result_type(*arrays), floats)
    array = np.stack(arrays, axis=1, dtype=dtype) if is_table else arrays[0].astype(dtype)
    is_converted = any(array.dtype.kind == "f" and array.dtype != dtype for array in arrays)
    notes = [conversion_note("float64", str(dtype))] if is_converted else []
    remarks = []
    if dtype.kind == "f":
        widened = [label for label, column in columns.items() if column.array.dtype.kind in "iu"]
        codes = [label for label in widened if columns[label].categories is not None]
        integers = [label for label in widened if columns[label].categories is None]
        if codes:
            notes.append(codes_note(codes, name, dtype, source="frame"))
        if integers:
            remarks.append(integers_remark(integers, name, dtype, source="frame"))
    return FrameArray(array, notes, remarks, coding=coding)


def _columns_by_name(frame: Any) -> dict[str, Any]:
    names = [str(column) for column in frame.columns]
    if len(set(names)) < len(names) or not names:
        raise FileContentError(
            "has no columns, or several of one name: give each a name of its own"
        )
    return {name: frame[key] for name, key in zip(names, frame.columns, strict=True)}


class _Numbers(NamedTuple):
    """The numbers of a column."""

    array: NDArray[Any]
    categories: tuple[Any, ...] | None = None
    """The categories whose codes the numbers are, if any."""


def _numbers_of(series: dict[str, Any]) -> dict[str, _Numbers]:
    """Return the numbers of columns; raise ``FileContentError`` of all that have none."""
    columns = {}
    problems = []
    for label, column in series.items():
        try:
            columns[label] = _numbers(label, column)
        except FileContentError as error:
            problems.append(str(error))
    if len(problems) == 1:
        raise FileContentError(problems[0])
    if problems:
        shown = "".join(f"\n- {problem}" for problem in problems[:MOST_PROBLEMS])
        left_out = len(problems) - MOST_PROBLEMS
        if left_out > 0:
            shown += f"\n- and so on, in {left_out} more columns"
        raise FileContentError(f"has {len(problems)} columns that are not ready:{shown}")
    return columns


def _numbers(name: str, series: Any) -> _Numbers:
    _check_complete(name, series)
    kind = str(series.dtype).lower()
    if kind.startswith(("datetime", "date", "time")):
        days = " / pandas.Timedelta('1D')" if hasattr(series, "isna") else ".dt.total_days()"
        raise FileContentError(
            f"holds dates or times in {name!r}, {series.dtype}: give numbers, such as "
            f"(frame[{name!r}] - frame[{name!r}].min()){days}, or leave the column out"
        )
    if kind.startswith(("category", "categorical", "enum")):
        return _category_codes(name, series)
    first: Any = next(iter(series), None)
    if np.ndim(first) and not isinstance(first, str):
        raise FileContentError(
            f"holds {type(first).__name__} values in {name!r}: give them apart, "
            f"np.stack(list(frame[{name!r}])), or list(...) if lengths differ; beside other "
            "columns as in x={'arrays': ..., 'numbers': ...}"
        )
    if kind == "object" and all(isinstance(value, Real) for value in series):
        raise FileContentError(
            f"holds numbers in {name!r} as Python objects, dtype object: convert them, "
            f"frame[{name!r}] = pandas.to_numeric(frame[{name!r}])"
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
    return _Numbers(np.asarray(values))


def _check_complete(name: str, series: Any) -> None:
    """Raise ``FileContentError``, with the line that mends it, if a column lacks values."""
    of_pandas = hasattr(series, "isna")
    try:
        check_complete(name, np.asarray(series.isna() if of_pandas else series.is_null()))
    except FileContentError as error:
        fill = "fillna" if of_pandas else "fill_null"
        drop = "dropna" if of_pandas else "drop_nulls"
        raise FileContentError(
            f"{error} (frame[{name!r}].{fill}(0), or frame.{drop}() before x and y are taken)"
        ) from None


def _category_codes(name: str, series: Any) -> _Numbers:
    """Return the codes of a series of categories.

    Categories of polars' ``Categorical`` belong to the whole program, and their codes depend on
    what it has read before: here they are the values that occur, in ascending order.
    """
    if hasattr(series.cat, "categories"):  # of pandas
        return _Numbers(np.asarray(series.cat.codes, np.int64), tuple(series.cat.categories))
    _, rows, places = np.unique(
        series.to_physical().to_numpy(), return_index=True, return_inverse=True
    )
    values = [series[row] for row in rows.tolist()]
    is_enum = str(series.dtype).startswith("Enum")
    categories = tuple(series.dtype.categories if is_enum else sorted(values))
    return _Numbers(class_codes(name, values, places, classes=categories), categories)
