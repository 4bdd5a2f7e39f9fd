"""``FileBlock``: the blocks of a data set's files, and checks of the files against each other."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

from compss_train.data.layout import Description, check_same_layout
from compss_train.data.reading import bad_file_errors
from compss_train.data.tables import find_classes
from compss_train.exceptions import BadFileError


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBlock:
    """Rows that are read together: those of a file, of a row group in it, or of some images in a folder."""

    path: str
    first: int
    """The first of its rows in the file."""
    rows: int
    file_rows: int
    """Number of rows of the file."""
    files: tuple[str, ...] = ()
    """In a folder, the file that each row is in."""


def blocks_of(name: str, path: str, description: Description) -> Iterator[tuple[str, FileBlock]]:
    """Iterate over the blocks of a file and their names: that of the file, with #0, #1, ... if it has several."""
    sizes = description.blocks or (description.rows,)
    for number, (first, rows) in enumerate(zip(accumulate(sizes, initial=0), sizes, strict=False)):
        files = description.files[first : first + rows]
        block = FileBlock(path=path, first=first, rows=rows, file_rows=description.rows, files=files)
        yield name if len(sizes) == 1 else f"{name}#{number}", block


def listed_files(blocks: Iterable[FileBlock]) -> dict[str, tuple[int, dict[int, str]]]:
    """Return the number of rows of each folder, and the files that the rows of these blocks are in."""
    listed: dict[str, tuple[int, dict[int, str]]] = {}
    for block in blocks:
        if block.files:
            _, files = listed.setdefault(block.path, (block.file_rows, {}))
            files.update(enumerate(block.files, block.first))
    return listed


def check_description(path: str, found: Description | BadFileError, good: Mapping[str, Description]) -> Description:
    """Return the description of a valid file; check that it agrees with the first valid one."""
    if isinstance(found, BadFileError):
        raise found
    first = next(iter(good), None)
    if first is not None and found.layout is not None and (reference := good[first].layout) is not None:
        with bad_file_errors(path):
            check_same_layout(found.layout, reference, first)
    return found


def all_classes(descriptions: Iterable[Description]) -> dict[str, tuple[Any, ...]]:
    """Return the classes in all files by column, sorted: a file may lack some of them."""
    found: dict[str, set[Any]] = {}
    for description in descriptions:
        for name, classes in description.classes.items():
            found.setdefault(name, set()).update(classes)
    return {name: find_classes(name, classes) for name, classes in found.items()}


def column_groups(**roles: str | Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    """Return the columns that are one array, by role: those given as a list of names.

    Raises ``TypeError`` for other lists, ``ValueError`` for empty ones and columns that are named twice.
    """
    groups = {}
    for role, columns in roles.items():
        if isinstance(columns, str) or (columns is None and role == "y"):
            continue
        if not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns):
            raise TypeError(f"{role}={columns!r}: give the name of an array, or a list of names of columns")
        if not columns or len(set(columns)) < len(columns):
            raise ValueError(f"{role}={list(columns)!r}: name at least one column, and each once")
        groups[role] = tuple(columns)
    return groups


def used_columns(groups: Mapping[str, tuple[str, ...]], names: Iterable[str | None]) -> Collection[str]:
    """Return the columns that are read: those of the groups, and these arrays."""
    others = (name for name in names if name is not None and name not in groups)
    return tuple(dict.fromkeys(chain(*groups.values(), others)))
