"""``Reader``, the interface of all readers, and ``CustomReader`` for user functions."""

import copy
import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import cloudpickle
import numpy as np
import torch

from compss_train.data.block import Block
from compss_train.data.layout import (
    Description,
    Field,
    FileContentError,
    Layout,
    common_length,
    quote_names,
)
from compss_train.data.locations import file_stamp, is_remote
from compss_train.data.values import check_values
from compss_train.exceptions import BadFileError

Arrays = dict[str, Block]
"""Some rows of each array of a file, by name."""


_PARSING_ATTEMPTS = 10
"""Times that a function is called before an error of Python's own parser counts."""


class Reader(ABC):
    """Reads one file format; instances are pickled for tasks, and used by several threads at once.

    Exceptions become a ``BadFileError`` that names the file: messages continue a sentence that
    starts with the file's name. Called as ``reader(filename, get_data=False)`` a reader returns the
    number of samples, or with ``get_data=True`` a dict of arrays and that number, like the readers
    of microsoft/PartiallyShuffleDistributedSampler.
    """

    @abstractmethod
    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return the number of rows and the layout of a file's arrays, from its headers."""

    def _with(self, **changes: Any) -> Self:
        """Return a reader with other values of these attributes."""
        reader = copy.copy(self)
        vars(reader).update(changes)
        return reader

    @abstractmethod
    def read(
        self, path: str, start: int, stop: int, keys: Collection[str] | None = None
    ) -> tuple[Arrays, int]:
        """Return rows ``start`` to ``stop`` of these arrays, and the file's number of rows.

        All arrays are read by default.
        """

    def read_good(
        self, path: str, start: int, stop: int, keys: Collection[str] | None, layout: Layout | None
    ) -> tuple[Arrays, int, Mapping[int, BadFileError]]:
        """Return what ``read`` does, and the errors of bad rows, by their place from ``start`` on.

        Bad rows cannot be read, or have another ``layout``; their values mean nothing. Most formats
        have none: they are read whole or not at all.
        """
        arrays, rows = self.read(path, start, stop, keys=keys)
        return arrays, rows, {}

    def stamp(self, path: str, start: int, stop: int) -> list[int] | None:
        """Return the size and version of the file with these rows, if its store has them.

        A file without a stamp is not kept in a cache.
        """
        return file_stamp(path)

    def with_columns(
        self,
        groups: Mapping[str, tuple[str, ...]],
        class_columns: Collection[str],
        classes: Mapping[str, Sequence[Any]],
    ) -> "Reader":
        """Return a reader of ``groups`` of columns, where strings of ``class_columns`` are classes.

        Raises ``TypeError`` if the files are not tables.
        """
        if groups:
            name, columns = next(iter(groups.items()))
            raise TypeError(
                f"{name}={list(columns)!r}: only tables (Parquet, Arrow, CSV) have "
                "them; name an array"
            )
        if classes:
            raise TypeError("classes= is for tables (Parquet, Arrow, CSV) and folders of images")
        return self

    def with_floats(self, layout: Layout, floats: str) -> "tuple[Reader, Layout]":
        """Return a reader that converts floating-point columns of tables, and its layout."""
        return self, layout

    def with_files(self, number: int, names: Mapping[int, str]) -> "Reader":
        """Return a reader that knows the number of files in a folder, and names of some by row."""
        return self

    def __call__(self, filename: str, get_data: bool = False) -> int | tuple[Arrays, int]:
        """Return the number of samples; with ``get_data`` a dict of all arrays and the number."""
        rows = self.describe(filename).rows
        return self.read(filename, 0, rows) if get_data else rows


def describe_arrays(arrays: Mapping[str, Any]) -> Description:
    """Describe objects with ``shape`` and ``dtype``.

    Raises ``FileContentError`` for scalars and Python objects.
    """
    for key, array in arrays.items():
        if len(array.shape) == 0:
            raise FileContentError(
                f"holds a single value in {key!r} instead of a row per sample; select the other "
                "arrays with keys="
            )
        check_no_objects(key, array.dtype)
    rows = common_length({key: int(array.shape[0]) for key, array in arrays.items()})
    layout = {key: Field(str(array.dtype), tuple(array.shape[1:])) for key, array in arrays.items()}
    return Description(rows, layout)


def check_no_objects(key: str, dtype: Any) -> None:
    """Raise ``FileContentError`` for arrays of Python objects: unpickling could run any code."""
    if isinstance(dtype, np.dtype) and dtype.hasobject:
        raise FileContentError(
            f"holds Python objects in {key!r}, which are pickled and therefore not read; save "
            "numbers instead"
        )


def select_keys(keys: Collection[str] | None, names: Collection[str]) -> list[str]:
    """Return the names of the arrays to read; raise ``FileContentError`` if one is missing."""
    if keys is None:
        return list(names)
    missing_keys = [key for key in keys if key not in names]
    if missing_keys:
        raise FileContentError(
            f"has no array {quote_names(missing_keys)}; it has {quote_names(names)}"
        )
    return list(keys)


class CustomReader(Reader):
    """Wraps a function ``reader(filename, get_data=False)``.

    The function returns the number of samples, or with ``get_data=True`` a dict of arrays and that
    number.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return the number of samples that the function returns."""
        rows = self._call(path, get_data=False)
        if isinstance(rows, bool) or not isinstance(rows, int | np.integer):
            raise FileContentError(
                f"has no number of samples: the reader returned a {type(rows).__name__} instead "
                "of an integer"
            )
        if rows < 1:
            raise FileContentError(f"holds no samples: the reader returned {rows}")
        return Description(int(rows), None)

    def stamp(self, path: str, start: int, stop: int) -> list[int] | None:
        """Return the size and version of the file; empty for names that only the function knows.

        Such names are assumed to mean the same data for the lifetime of a cache.
        """
        return [] if is_remote(path) else file_stamp(path)

    def read(
        self, path: str, start: int, stop: int, keys: Collection[str] | None = None
    ) -> tuple[Arrays, int]:
        """Return rows of the arrays; the function reads the whole file."""
        returned = self._call(path, get_data=True)
        if not (
            isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Mapping)
        ):
            raise FileContentError(
                "cannot be used: with get_data=True the reader must return (dict of arrays, number)"
            )
        arrays: dict[str, Any] = {}
        for key in select_keys(keys, returned[0]):
            value = returned[0][key]
            check_values(f"{key!r} in it", value)
            is_tensor = isinstance(value, torch.Tensor)
            arrays[key] = value.detach().cpu() if is_tensor else np.asarray(value)
        length = describe_arrays(arrays).rows
        if length != returned[1]:
            raise FileContentError(
                f"has {length} rows in its arrays, but the reader returned {returned[1]}"
            )
        return {key: array[start:stop] for key, array in arrays.items()}, length

    def _call(self, path: str, *, get_data: bool) -> Any:
        """Call the function; again if Python could not parse text in several threads at once.

        Functions read numpy's headers, which numpy parses by ``ast``: CPython's issue 106905.
        """
        attempts = 0
        while True:
            attempts += 1
            try:
                return self.function(path, get_data=get_data)
            except SystemError as error:
                is_of_parser = "recursion depth mismatch" in str(error)
                if not is_of_parser or attempts == _PARSING_ATTEMPTS:
                    raise


def reader_id(reader: Reader) -> str:
    """Return what identifies the reader, its settings and its code; empty if it cannot be pickled.

    A reader of this package is identified by its name, not by its module, so that an index stays
    valid when the class moves. Other readers are pickled with their class. A function or class
    imported from a module is pickled by name only, so that the size and modification time of the
    module's file represent its code.
    """
    kind = type(reader)
    is_of_package = kind.__module__.startswith(__package__)
    try:
        content = cloudpickle.dumps(vars(reader) if is_of_package else reader)
    except Exception:
        return ""
    function = reader.function if isinstance(reader, CustomReader) else reader
    if isinstance(function, partial):
        function = function.func
    code = function if inspect.isroutine(function) else type(function)
    stamp = None
    if str(getattr(code, "__module__", None)).partition(".")[0] not in ("__main__", "compss_train"):
        with suppress(TypeError, OSError):  # built in, or of a notebook
            stamp = file_stamp(inspect.getfile(code))
    return f"{kind.__qualname__} {hashlib.sha256(content).hexdigest()[:16]} {stamp}"
