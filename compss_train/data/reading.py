"""Reading some of many files: rows by file, checked, or an error that names the file."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from compss_train.data.block import concatenate
from compss_train.data.layout import NOT_HELD, Layout, UnfitFileError, check_alike, field_of, torch_holds
from compss_train.data.readers import Arrays, Reader
from compss_train.data.row_ranges import RowRange
from compss_train.exceptions import BadFileError

_OF_THE_MACHINE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT}
"""Errors that say nothing of a file, which is not to be left out for them."""


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Turn what goes wrong with a file into a ``BadFileError`` that names it.

    A lack of memory or of open files, and a store that does not answer, are raised as they are.
    """
    try:
        yield
    except (MemoryError, ModuleNotFoundError):
        raise
    except UnfitFileError as error:
        raise BadFileError(file, str(error)) from None
    except Exception as error:
        if isinstance(error, BadFileError) and error.file == file:
            raise
        if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
            error.add_note(f"while {file} was read")
            raise
        raise BadFileError(file, _reason(file, error)) from error


def _reason(file: str, error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and not os.path.exists(file):
        hint = (
            "a pattern is given alone, not in a list" if glob.has_magic(file) else "give names that are valid there"
        )
        return f"does not exist where it is read; {hint}"
    if os.path.isfile(file) and os.path.getsize(file) == 0:
        return "is empty"
    return f"cannot be read: {type(error).__name__}: {error}"


@dataclass(frozen=True)
class FilePart:
    """Some files of a ``FileDataset``, by number: all that a task needs to read its share."""

    reader: Reader
    files: Mapping[int, str]
    sizes: Mapping[int, int]
    """Samples of each file."""
    keys: tuple[str, ...] | None
    """The arrays to read, ``None`` for all."""
    layout: Layout | None
    """What each file must hold, ``None`` where only reading one tells."""
    reference: str
    """The file that the layout is of."""
    skip: bool = False
    """Whether to leave out a file that is not as it should be."""

    def read(self, row_range: RowRange, layout: Layout | None = None, reference: str = "") -> Arrays:
        """Return rows of a file.

        Raises ``BadFileError`` where the file does not hold as many as was said, or not what the reference file
        holds, where that is known.
        """
        file, size = self.files[row_range.file], self.sizes[row_range.file]
        with naming(file):
            first = 0 if row_range.again else row_range.start
            arrays, rows = self.reader.read(file, first, row_range.stop, self.keys)
            short = [key for key, array in arrays.items() if len(array) != min(rows, row_range.stop) - first]
            if short:
                raise UnfitFileError(f"was read wrongly: {short[0]!r} has not the rows {first} to {row_range.stop}")
            if unfit := [key for key, array in arrays.items() if not torch_holds(field_of(array))]:
                raise UnfitFileError(f"holds {field_of(arrays[unfit[0]])} in {unfit[0]!r}, {NOT_HELD}")
            if rows != size:
                raise UnfitFileError(
                    f"has {rows} samples, {size} were expected: did it change, or is files_len wrong?"
                )
            if layout is not None:
                check_alike(layout_of(arrays), layout, reference)
        return arrays if first == row_range.start else _turned(arrays, row_range)


def _turned(arrays: Arrays, row_range: RowRange) -> Arrays:
    """Return the stretch's rows of arrays that begin with the file."""
    return {key: concatenate([array[row_range.start :], array[: row_range.again]]) for key, array in arrays.items()}


def layout_of(arrays: Arrays) -> Layout:
    """Return what the arrays hold."""
    return {key: field_of(array) for key, array in arrays.items()}
