"""``FilePart``: reads and checks rows of some files of a data set; errors name the file."""

import errno
import glob
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from compss_train.data import layout as layouts
from compss_train.data.block import Block
from compss_train.data.file_cache import CacheEntry, FileCache
from compss_train.data.locations import absolute, is_remote
from compss_train.data.order import RowRange
from compss_train.data.readers import Arrays, Reader, as_reader
from compss_train.data.readers.images import image_path
from compss_train.data.values import signed
from compss_train.exceptions import BadFileError

_TRANSIENT = {
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT),
    *(errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH),
}
"""Errors of the machine, the network or the file system, for which a file must not be skipped."""


@contextmanager
def bad_file_errors(file: str) -> Iterator[None]:
    """Convert exceptions into a ``BadFileError`` that names the file.

    Errors for a lack of memory or file descriptors, and for a file system, network or store that
    does not respond, are raised unchanged: the file may be valid.
    """
    try:
        yield
    except (MemoryError, ModuleNotFoundError):
        raise
    except layouts.FileContentError as error:
        raise BadFileError(file, str(error)) from None
    except Exception as error:
        if isinstance(error, BadFileError) and error.file == file:
            raise
        if _is_transient(file, error):
            error.add_note(f"while reading {file}")
            raise
        raise BadFileError(file, _reason(file, error)) from error


def _is_transient(file: str, error: Exception) -> bool:
    """Return whether the machine, the network or a store failed, rather than the file.

    A remote file is missing only if a server has said so: fsspec's HTTP raises the same error
    without an answer.
    """
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT:
        return True
    if not is_remote(file):
        return False
    if isinstance(error, FileNotFoundError):
        answer = getattr(error.__cause__, "response", error.__cause__)
        status = getattr(answer, "status_code", getattr(answer, "status", None))
        if status is None:
            return isinstance(answer, OSError) and not isinstance(answer, FileNotFoundError)
        return status not in (404, 410)
    if isinstance(error, OSError):  # those of HTTP clients may have a response and no number
        return error.errno is not None or hasattr(error, "response")
    return not isinstance(error, layouts.CONTENT_ERRORS)


def _reason(file: str, error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and not os.path.exists(file):
        hint = "give a name that is valid on the machine that reads it"
        if glob.has_magic(file):
            hint = "give a pattern as a string, not in a list"
        return f"does not exist; {hint}"
    if os.path.isfile(file) and os.path.getsize(file) == 0:
        return "is empty"
    if isinstance(error, zipfile.BadZipFile):
        return f"is corrupt: {error}"
    return f"cannot be read: {type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBlock:
    """Rows that are read together: a file, a row group of it, or some images of a folder."""

    path: str
    part: int | None = None
    """The number of this part of the file, if it has several."""
    first: int = 0
    """The block's first row in the file."""
    rows: int
    file_rows: int
    """Number of rows of the file."""
    files: tuple[str, ...] = ()
    """In a folder, the file of each row."""

    @property
    def name(self) -> str:
        """The path, and the number of the part."""
        return self.path if self.part is None else f"{self.path}#{self.part}"

    def row_names(self) -> list[str]:
        """Return a name for each row: an image's path, or the file and the row's number there."""
        if self.files:
            return [image_path(self.path, name) for name in self.files]
        return [f"{self.path}[{row}]" for row in range(self.first, self.first + self.rows)]


@dataclass(frozen=True, kw_only=True)
class FilePart:
    """Some files of a ``FileDataset``, by number: everything that a task needs to read them."""

    reader: Reader
    blocks: Mapping[int, FileBlock]
    keys: tuple[str, ...] | None
    """Names of the arrays to read; ``None`` for all."""
    layout: layouts.Layout | None
    """The layout that each file must have; ``None`` if it is unknown and cannot be checked."""
    reference: str
    """Name of the file that the layout was taken from."""
    skip: bool = False
    """Whether to skip invalid files."""
    threads: int = 1
    """Number of files to read at the same time."""
    file_buffer: int = 10
    """Maximum number of files in memory: those read ahead and the one in use."""
    cache: FileCache | None = None
    """The cache for arrays that were read."""
    reader_id: str = ""
    """Identifies the reader in the cache."""

    def cache_entry(self, file: int) -> CacheEntry | None:
        """Return the place of a file in the cache; ``None`` if there is no cache that can hold it.

        Raises ``BadFileError`` if there is no such file.
        """
        if self.cache is None or self.layout is None:
            return None
        block = self.blocks[file]
        with bad_file_errors(block.path):
            stamp = self._reader_of(block).stamp(block.path, block.first, block.first + block.rows)
        if stamp is None:  # a change of the file could not be detected
            return None
        is_whole = block.rows == block.file_rows
        name = block.path if is_whole else f"{block.path}\0{block.first}"  # of no other file
        return self.cache.entry(name, stamp, self.reader_id, rows=block.rows, layout=self.layout)

    def read(self, row_range: RowRange) -> Arrays:
        """Return rows of a file; none is skipped."""
        return replace(self, skip=False).read_good(row_range)[0]

    def read_good(self, row_range: RowRange) -> tuple[Arrays, Mapping[int, BadFileError]]:
        """Return rows of a file, and the errors of skipped rows by their place in the range.

        Their values mean nothing; if these are all rows, arrays may be missing. Raises
        ``BadFileError`` if the file has an unexpected number of rows, or a layout that differs from
        the reference file's, if that is known.
        """
        block = self.blocks[row_range.file]
        reader = self._reader_of(block)
        start = block.first + row_range.start
        stop = block.first + row_range.stop
        try:
            with bad_file_errors(block.path):
                if self.skip:
                    arrays, file_rows, errors = reader.read_good(
                        block.path, start, stop, keys=self.keys, layout=self.layout
                    )
                else:
                    arrays, file_rows = reader.read(block.path, start, stop, keys=self.keys)
                    errors = {}
                if len(errors) < len(row_range):
                    self._check(block, arrays, file_rows, start=start, stop=stop)
                return arrays, errors
        except BadFileError as error:
            raise BadFileError(block.name, error.reason) from error.__cause__

    def _check(
        self, block: FileBlock, arrays: Arrays, file_rows: int, *, start: int, stop: int
    ) -> None:
        """Raise ``FileContentError`` unless these are rows of a file as it was described."""
        for key, array in arrays.items():
            if len(array) != min(file_rows, stop) - start:
                raise layouts.FileContentError(
                    f"was read incorrectly: {key!r} lacks some of the rows {start} to {stop}"
                )
            field = layouts.field_of(array)
            if not layouts.is_supported(field):
                raise layouts.FileContentError(
                    f"holds {field} in {key!r}, {layouts.UNSUPPORTED_HINT}"
                )
            if field.dtype.endswith("uint64"):
                signed(array)  # raises an error for what is too large
        if file_rows != block.file_rows:
            raise layouts.FileContentError(
                f"has {file_rows} samples, but {block.file_rows} were expected: check whether it "
                "changed, or files_len is wrong"
            )
        if self.layout is not None:
            layouts.check_same_layout(layout_of(arrays), self.layout, self.reference)

    def _reader_of(self, block: FileBlock) -> Reader:
        if not block.files:
            return self.reader
        return self.reader.with_files(block.file_rows, dict(enumerate(block.files, block.first)))


def layout_of(arrays: Arrays) -> layouts.Layout:
    """Return the layout of the arrays."""
    return {key: layouts.field_of(array) for key, array in arrays.items()}


def read_arrays(
    names: Sequence[str], key: str, reader: Reader | Callable[..., Any] | None = None
) -> list[Block]:
    """Read one array of each file into memory."""
    file_reader = as_reader(reader, names)
    blocks = []
    for path in map(absolute, names):
        with bad_file_errors(path):
            rows = file_reader.describe(path, (key,)).rows
            arrays, _ = file_reader.read(path, 0, rows, keys=(key,))
            blocks.append(arrays[key])
    return blocks
