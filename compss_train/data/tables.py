"""Columns of tables as arrays of numbers: pandas and polars frames, and Arrow tables in files and
data sets.

Messages of ``FileContentError`` continue a sentence that starts with the name of the table.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.imports import import_optional
from compss_train.data.block import Block
from compss_train.data.layout import FileContentError, quote_names
from compss_train.data.ragged import Ragged
from compss_train.data.values import shared_tensor

MAX_CLASSES = 10_000
"""Up to this number, distinct strings in a column are classes; more are names or text unless
classes are given.
"""


def column_groups(role: str, given: Any) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """Return the names of the arrays of x or y, in dicts, tuples and lists as given, and the
    columns of some.

    A list of names is one array of several columns, which is called by its place, such as
    ``x['codes']``. Raises ``TypeError`` for other values, ``ValueError`` if there are none, or a
    column of an array is named twice.
    """
    if isinstance(given, str):
        return given, {}
    if not isinstance(given, Mapping | list | tuple):
        raise TypeError(
            f"{role}={given!r}: give the name of an array, or a list of names of columns; for "
            "several inputs or targets a dict or a tuple of these"
        )
    columns = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
    if not given or len({*columns}) < len(columns):
        raise ValueError(f"{role}={given!r}: name at least one column, and each once")
    if len(columns) == len(given):
        return role, {role: tuple(columns)}
    places = [*given] if isinstance(given, Mapping) else range(len(given))
    parts = [column_groups(f"{role}[{place!r}]", given[place]) for place in places]
    names: Any = [name for name, _ in parts]
    names = (
        dict(zip(places, names, strict=True)) if isinstance(given, Mapping) else type(given)(names)
    )
    return names, {name: group for _, groups in parts for name, group in groups.items()}


def check_classes(classes: Mapping[str, Sequence[Any]]) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless each column has a list of different strings, or
    of numbers.
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


def check_complete(name: str, missing: NDArray[np.bool_], first: int = 0) -> None:
    """Raise ``FileContentError`` if a column lacks values; ``missing`` has an entry per row from
    row ``first``.
    """
    rows = np.flatnonzero(missing)
    if len(rows):
        values = "a value" if len(rows) == 1 else f"{len(rows)} values"
        raise FileContentError(
            f"lacks {values} in {name!r}, the first in row {first + rows[0]}: fill them in, "
            "remove these rows, or leave the column out"
        )


def check_numbers(name: str, dtype: object) -> None:
    """Raise ``FileContentError`` unless a column of this dtype has numbers or booleans."""
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biuf":
        raise FileContentError(
            f"holds {dtype} in {name!r}, which are no numbers: convert them, or leave the column "
            "out"
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


_LIKE_A_NUMBER = re.compile(
    r"\(?[-+−–]?[$€£]?"  # noqa: RUF001 (minus signs and dashes)
    r"(\d{1,3}([,. '’_\u00a0\u202f]\d{3})+([.,]\d+)?|\d*[.,]?\d+|\d+[.,])([eEdD][-+−]?\d+)?"  # noqa: RUF001
    r"\s*[%$€£]?\)?"
)
"""What programs write for a number: separators of thousands, decimal commas, percent signs,
typographic minus signs, the exponents of Fortran (``1D+03``), and parentheses for negative numbers.
"""

_MISSING = {
    "",
    "?",
    "-",
    "--",
    ".",
    "na",
    "n/a",
    "nan",
    "nil",
    "none",
    "null",
    "missing",
    "unknown",
    "#n/a",
}
"""What stands for a missing number, in lower case."""


def no_number(values: Collection[Any]) -> Any:
    """Return one of the distinct values of a column of text that is no number, if most of the
    others are.

    ``None`` if the column has words, or whole numbers, which may be names of classes.
    """
    if not all(isinstance(value, str) for value in values):
        return None
    texts = sorted(values)
    others = [text for text in texts if not _is_number(text)]
    like = sum(_LIKE_A_NUMBER.fullmatch(text.strip()) is not None for text in others)
    missing = sum(text.strip().lower() in _MISSING for text in others)
    if 2 * (len(texts) - len(others) + like) <= len(texts) - missing:
        return None
    others += [text for text in texts if not others and not text.strip(" +-").isdecimal()]
    return min(
        others,
        default=None,
        key=lambda text: (_LIKE_A_NUMBER.fullmatch(text.strip()) is not None, text),
    )


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return "_" not in text
    return False


def quote_values(classes: Sequence[Any]) -> str:
    """Return the first classes for messages."""
    return f"{quote_names(list(classes)[:10])}{', ...' if len(classes) > 10 else ''}"


def check_coded(name: str, kind: Any, classes: Sequence[Any]) -> None:
    """Raise ``FileContentError`` if a column of this Arrow type cannot hold these classes."""
    own = kind.value_type if import_pyarrow().types.is_dictionary(kind) else kind
    dtype, sizes = number_type(own)
    if not (is_text(own) if isinstance(classes[0], str) else dtype is not None and not sizes):
        raise FileContentError(
            f"holds {kind} in {name!r}, whose classes are {quote_values(classes)}: convert the "
            f"column, or give classes={{{name!r}: [...]}} of its type"
        )


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
    numbers = {value: number for number, value in enumerate(classes)}
    codes = np.array([numbers.get(value, -1) for value in values], np.int64)
    of_rows: NDArray[np.int64] = codes[places]
    if len(unknown := np.flatnonzero(of_rows < 0)):
        value = values[places[unknown[0]]]
        raise FileContentError(
            f"holds {value!r} in {name!r}, in row {first + unknown[0]}, which is none of its "
            f"classes {quote_values(classes)}: give classes={{{name!r}: [...]}} with all of them"
        )
    return of_rows


def float_dtype(dtype: np.dtype[Any], floats: str | None) -> np.dtype[Any]:
    """Return ``floats``, the dtype of a network's parameters, for floating-point dtypes; others are
    unchanged.

    ``None`` leaves all dtypes unchanged.
    """
    return np.dtype(floats) if floats is not None and dtype.kind == "f" else dtype


def conversion_note(dtype: str, floats: str) -> str:
    """Return the note for users when numbers of ``dtype`` are converted to ``floats``."""
    return (
        f"{dtype} becomes {floats}, the dtype of the network's parameters; convert the data, or "
        "the network (net.double()), if this is not what you want"
    )


def codes_note(codes: Sequence[str], name: str, dtype: object, of: str = "") -> str:
    """Return the note for users when the class codes in these columns of ``name`` become floats of
    ``dtype``.

    ``of`` is what the columns are taken from: ``"frame"``, or nothing for files, to which their
    names are given.
    """
    return (
        f"{quote_values(codes)} in {name} are class codes, and become {dtype} like the numbers "
        f"beside them; for an nn.Embedding give the codes apart, as in {_apart(codes, of)}, "
        "which stay integers"
    )


def integers_remark(integers: Sequence[str], name: str, dtype: object, of: str = "") -> str:
    """Return the line for users when the integers in these columns of ``name`` become floats of
    ``dtype``.
    """
    return (
        f"the integers of {quote_values(integers)} in {name} become {dtype}, like the numbers "
        f"beside them; if they are codes, give them apart, as in {_apart(integers, of)}"
    )


def _apart(columns: Sequence[str], of: str) -> str:
    names = f"[{quote_values(columns)}]"
    return f"x={{'numbers': ..., 'codes': {f'{of}[{names}]' if of else names}}}"


def is_frame(value: Any) -> bool:
    """Return whether a value is a frame or a series of pandas or polars, without importing
    these.
    """
    has_missing = hasattr(value, "isna") or hasattr(value, "is_null")
    return hasattr(value, "to_numpy") and (
        hasattr(value, "columns") or (has_missing and hasattr(value, "dtype"))
    )


Coding: TypeAlias = dict[str, tuple[Any, ...]]
"""What the numbers of data mean: the order of the columns that form x or y, and the classes that
became codes.
"""


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
            coding: Coding = {columns_of(name): tuple(names)}
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
            coding[classes_of(name, each if coding else None)] = plain_classes(categories)
    return FrameArray(array, notes, remarks, coding)


def plain_classes(classes: Iterable[Any]) -> tuple[str | float, ...]:
    """Return classes as text and numbers, which a checkpoint can hold and a later program
    compare.
    """
    values = (value.item() if isinstance(value, np.generic) else value for value in classes)
    return tuple(value if isinstance(value, str | int | float) else str(value) for value in values)


def columns_of(name: str) -> str:
    """Return what a ``Coding`` calls the order of the columns of x or y."""
    return f"the columns of {name}"


def classes_of(name: str, column: str | None = None) -> str:
    """Return what a ``Coding`` calls the classes of x or y, or of one of several columns there."""
    return f"the classes of {name}" if column is None else f"the classes of {column!r} in {name}"


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


def import_pyarrow(module: str = "pyarrow") -> Any:
    """Return pyarrow or one of its modules; raise ``ModuleNotFoundError`` with installation
    instructions.
    """
    return import_optional(
        module, extra="arrow", needed_by="tables (Parquet, Arrow, CSV)", package="pyarrow"
    )


@cache  # of a few types, asked for each of many columns
def is_text(kind: Any) -> bool:
    """Return whether columns of this Arrow type are strings, or categories that are strings or
    numbers.
    """
    types = import_pyarrow().types
    if types.is_dictionary(kind):
        dtype, sizes = number_type(kind.value_type)
        return is_text(kind.value_type) or (dtype is not None and not sizes)
    return any(
        is_kind(kind) for is_kind in (types.is_string, types.is_large_string, types.is_string_view)
    )


@cache
def number_type(kind: Any) -> tuple[np.dtype[Any] | None, tuple[int | None, ...]]:
    """Return the dtype of the numbers in an Arrow column, and the sizes of the lists that contain
    them.

    The dtype is ``None`` for anything but numbers; a size is ``None`` for lists that may differ in
    length.
    """
    types = import_pyarrow().types
    sizes = []
    if isinstance(kind, import_pyarrow().FixedShapeTensorType):
        if kind.permutation not in (None, sorted(kind.permutation or ())):
            return None, ()  # its numbers are in another order
        kind, sizes = kind.value_type, list(kind.shape)
    while (kind := getattr(kind, "storage_type", kind)) and _is_list(kind):
        sizes.append(getattr(kind, "list_size", None))
        kind = kind.value_type
    is_number = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return np.dtype(kind.to_pandas_dtype()) if is_number else None, tuple(sizes)


def _is_list(kind: Any) -> bool:
    types = import_pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def check_no_nulls(name: str, column: Any, first: int = 0) -> None:
    """Raise ``FileContentError`` for missing values in an Arrow column whose first row has the
    number ``first``.
    """
    # A dictionary may have a missing value.
    if is_text(column.type) and hasattr(column.type, "value_type"):
        column = column.cast(column.type.value_type)
    if column.null_count:
        check_complete(name, np.asarray(column.is_null()), first)


def number_blocks(name: str, chunks: Sequence[Any]) -> list[Block]:
    """Return chunks of an Arrow column as arrays, without a copy where Arrow and numpy store
    numbers alike.

    Lists that differ in length are ``Ragged``, in all chunks. Raises ``FileContentError`` for lists
    within lists that differ in length, and for missing values in lists.
    """
    opened = [_opened(name, chunk) for chunk in chunks]
    sizes: Any = number_type(chunks[0].type)[1]
    if None in sizes:
        sizes = [
            _common(np.concatenate(level))
            for level in zip(*(lengths for _, lengths in opened), strict=True)
        ]
    if None in sizes[1:]:
        raise FileContentError(
            f"holds lists of different lengths within those of {name!r}: pad them"
        )
    arrays = [values.to_numpy(zero_copy_only=False) for values, _ in opened]
    if None not in sizes:
        return [
            array.reshape(len(chunk), *sizes) for array, chunk in zip(arrays, chunks, strict=True)
        ]
    return [
        Ragged.of(
            shared_tensor(array).reshape(-1, *sizes[1:]),
            torch.from_numpy(np.append(0, lengths[0]).cumsum()),
        )
        for array, (_, lengths) in zip(arrays, opened, strict=True)
    ]


def _opened(name: str, values: Any) -> tuple[Any, list[NDArray[Any]]]:
    """Return the values in Arrow's lists and the lengths of the lists, outermost first.

    Raises ``FileContentError`` for missing values within lists; fixed-size lists would silently
    drop them.
    """
    lengths = []
    while _is_list((values := getattr(values, "storage", values)).type):
        size = getattr(values.type, "list_size", None)
        lengths.append(
            np.diff(values.offsets.to_numpy()) if size is None else np.full(len(values), size)
        )
        values = values.flatten()
        if values.null_count:
            raise FileContentError(
                f"lacks values within lists of {name!r}: fill them in, or leave the column out"
            )
    return values, lengths


def _common(lengths: NDArray[Any]) -> int | None:
    """Return the length of all lists, or ``None`` if lengths differ."""
    first = int(lengths[0]) if len(lengths) else 0
    return first if (lengths == first).all() else None
