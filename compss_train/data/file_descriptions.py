"""Descriptions of the files of a data set: which can be read, and what all of them hold."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from compss_train._utils.validation import check_count
from compss_train.data.file_index import describe_files
from compss_train.data.layout import Description, check_same_description
from compss_train.data.readers import TableReader
from compss_train.data.readers.base import Reader
from compss_train.data.reading import bad_file_errors
from compss_train.data.text_columns import text_among_numbers
from compss_train.exceptions import BadFileError


@dataclass
class DescribedFiles:
    """The descriptions of the files of a data set that are valid and agree with the first one."""

    reader: Reader
    """A reader to which each column is the same in all files."""
    skip: bool
    """Whether to skip bad files, which otherwise raise ``BadFileError``."""
    descriptions: dict[str, Description] = field(default_factory=dict)
    """Those of good files, by name."""
    skipped: dict[str, str] = field(default_factory=dict)
    """The reason for each skipped file, by path."""

    def add(self, name: str, path: str, description: Description | BadFileError) -> None:
        """Add a file, or skip it if it is bad."""
        try:
            if isinstance(description, BadFileError):
                raise description
            reference = next(iter(self.descriptions), name)
            first = self.descriptions.get(reference, description)
            with bad_file_errors(path):
                check_same_description(description, first, reference)
        except BadFileError as error:
            if not self.skip:
                raise
            self.skipped[error.file] = error.reason
        else:
            self.descriptions[name] = description


def describe_all(
    paths: Mapping[str, str],
    reader: Reader,
    *,
    keys: Collection[str] | None,
    index: str | os.PathLike[str] | None,
    skip: bool,
) -> DescribedFiles:
    """Describe all files, from their headers or the index; ``paths`` are by name."""
    reader, descriptions = _describe([*paths.values()], reader, keys, index=index)
    described = DescribedFiles(reader, skip)
    for name, path in paths.items():
        described.add(name, path, descriptions[path])
    _check_some(described, len(paths))
    return described


def describe_counted(
    paths: Mapping[str, str],
    reader: Reader,
    files_len: Mapping[str, int],
    *,
    keys: Collection[str] | None,
    index: str | os.PathLike[str] | None,
    skip: bool,
) -> DescribedFiles:
    """Describe the first valid file, and the others as alike, with ``files_len`` samples each."""
    for name in paths:
        if name not in files_len:
            raise ValueError(f"files_len lacks {name}; give a number of samples for each file")
        check_count(f"files_len[{name!r}]", files_len[name])
    described = DescribedFiles(reader, skip)
    for name, path in paths.items():
        _, descriptions = _describe([path], reader, keys, index=index)
        description = descriptions[path]
        if isinstance(description, Description) and description.rows != files_len[name]:
            description = BadFileError(
                path, f"has {description.rows} samples, but files_len has {files_len[name]}"
            )
        described.add(name, path, description)
        if described.descriptions:
            break
    _check_some(described, len(paths))
    (description,) = described.descriptions.values()
    template = replace(description, blocks=(), files=())
    described.descriptions = {
        name: replace(template, rows=int(files_len[name]))
        for name, path in paths.items()
        if path not in described.skipped
    }
    return described


def _check_some(described: DescribedFiles, files: int) -> None:
    if not described.descriptions:
        reason = list(described.skipped.values())[-1]
        raise ValueError(f"all {files} files were skipped; the last one {reason}")


def _describe(
    files: Sequence[str],
    reader: Reader,
    keys: Collection[str] | None,
    *,
    index: str | os.PathLike[str] | None,
) -> tuple[Reader, dict[str, Description | BadFileError]]:
    """Return what ``describe_files`` does, and a reader to which columns are the same in all files.

    If a column has strings in one file of a format without types, its numbers in other files are
    strings, too. Raises ``BadFileError`` for a value that is no number in a column in which most
    distinct values are numbers.
    """
    described = describe_files(files, reader, keys, index=index)
    if not isinstance(reader, TableReader):
        return reader, described
    valid = _valid(described)
    texts = {column for description in valid.values() for column in description.classes}
    files_with_numbers = [
        file for file, description in valid.items() if texts - description.classes.keys()
    ]
    if files_with_numbers and not reader.is_typed:
        reader = reader.with_texts(sorted(texts))
        described_as_texts = describe_files(files_with_numbers, reader, keys, index=index)
        described |= described_as_texts
        valid |= _valid(described_as_texts)
    for column in sorted(texts):
        _check_text(reader, column, valid)
    return reader, described


def _valid(described: Mapping[str, Description | BadFileError]) -> dict[str, Description]:
    return {
        file: description
        for file, description in described.items()
        if isinstance(description, Description)
    }


def _check_text(reader: TableReader, column: str, descriptions: Mapping[str, Description]) -> None:
    """Raise ``BadFileError`` for text in a column in which most distinct values are numbers."""
    classes = {
        file: description.classes.get(column, ()) for file, description in descriptions.items()
    }
    misfit = text_among_numbers({value for values in classes.values() for value in values})
    if misfit is None:
        return
    file = next(file for file, values in classes.items() if misfit in values)
    error = reader.text_among_numbers_error(file, column, misfit)
    raise BadFileError(file, str(error))
