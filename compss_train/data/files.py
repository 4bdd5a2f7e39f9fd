"""``FileDataset``: samples in many files, which workers read themselves."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from compss_train._utils.validation import check_choice, warn_user
from compss_train.data.block import Block
from compss_train.data.file_index import FileIndex
from compss_train.data.layout import (
    NOT_HELD,
    Description,
    Layout,
    check_alike,
    check_weight_shape,
    listed,
    torch_holds,
)
from compss_train.data.readers import Reader, as_reader
from compss_train.data.reading import FilePart, layout_of, naming
from compss_train.data.row_ranges import RowRange
from compss_train.exceptions import BadFileError

OnBadFile = Literal["raise", "skip"]
FileNames: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"


_LOADER = "use DataLoader(dataset, sampler=PartialShuffleSampler(dataset, ...), batch_size=None)"


class FileDataset:
    """Samples in many files, each with arrays that have a row a sample.

    Parameters
    ----------
    files:
        Their names, or a pattern such as ``"data/*.npz"``, whose matches are sorted.
    reader:
        ``None`` takes the one for .npz, .npy (memory-mapped), .pt (tensors only) or HDF5 files. Else a function
        ``reader(filename, get_data=False)`` that returns the number of samples, or with ``get_data=True`` a dict
        of arrays and that number.
    files_len:
        Samples of each file, by name, which saves opening them to count; what does not match is found when a
        file is read. By default files are counted here, by their headers.
    keys:
        The arrays to read, by default all.
    x, y:
        The arrays that hold samples and targets for ``DistributedTrainer.fit``; ``y=None``, or files of a single
        array, for samples that are their own targets.
    weight:
        The array that holds a weight for each sample, for ``DistributedTrainer.fit``; ``None`` for no weights.
    index:
        A small JSON file that remembers what the headers said, as long as a file's size and time are the same.
    on_bad_file:
        ``"raise"`` a ``BadFileError``, or ``"skip"`` the file with a warning, here and when it is read.

    Attributes: ``files``, names; ``files_len``; ``sizes``, samples of each file; ``skipped``, what is wrong with
    each file that was left out; ``layout``, dtypes and shapes, ``None`` where the reader tells only numbers.

    Raises ``ValueError`` where there are no such files, one is named twice or ``files_len`` lacks one;
    ``BadFileError`` for a file that is missing, empty, cut short or corrupt as far as its header shows, of
    objects (pickles), or with other arrays, shapes or dtypes than the first one.
    """

    def __init__(
        self,
        files: FileNames,
        reader: Reader | Callable[..., Any] | None = None,
        files_len: Mapping[str, int] | None = None,
        *,
        keys: Collection[str] | None = None,
        x: str = "x",
        y: str | None = "y",
        weight: str | None = None,
        index: str | os.PathLike[str] | None = None,
        on_bad_file: OnBadFile = "raise",
    ) -> None:
        check_choice("on_bad_file", on_bad_file, get_args(OnBadFile))
        names = file_names(files)
        self._paths = {name: _path(name) for name in names}  # now: the current folder may be another later
        self.reader = as_reader(reader, names)
        self.keys = _checked_keys(keys)
        self.x, self.y, self.weight = x, y, weight
        self.on_bad_file: OnBadFile = on_bad_file
        self.skipped: dict[str, str] = {}
        described = self._described(names, files_len, FileIndex(index))
        self.files = list(described)
        self.files_len = {name: description.rows for name, description in described.items()}
        self.layout: Layout | None = next(iter(described.values())).layout
        self._reference = self.files[0]
        for file, reason in self.skipped.items():
            warn_user(f"skipped {file} {reason}")

    def _described(
        self, names: list[str], files_len: Mapping[str, int] | None, index: FileIndex
    ) -> dict[str, Description]:
        if files_len is not None:
            return self._as_told(names, files_len, index)
        found = index.describe(list(self._paths.values()), self.reader, self.keys)
        good: dict[str, Description] = {}
        for name, description in zip(names, found, strict=True):
            try:
                good[name] = _alike(self._paths[name], description, good)
            except BadFileError as error:
                self._skip(error)
        if not good:
            raise self._nothing_left(len(names))
        return good

    def _as_told(self, names: list[str], files_len: Mapping[str, int], index: FileIndex) -> dict[str, Description]:
        """Believe the numbers given; only one file is opened, to see what is in it."""
        if missing := [name for name in names if name not in files_len]:
            raise ValueError(f"files_len has no number of samples for {missing[0]} ({len(missing)} such files)")
        if wrong := [name for name in names if not _is_count(files_len[name])]:
            raise ValueError(f"files_len says {files_len[wrong[0]]!r} for {wrong[0]}; give integers of at least 1")
        layout = self._first_layout(names, files_len, index)
        good = [name for name in names if self._paths[name] not in self.skipped]
        return {name: Description(int(files_len[name]), layout) for name in good}

    def _first_layout(self, names: list[str], files_len: Mapping[str, int], index: FileIndex) -> Layout | None:
        """Return what is in the first file that is as it should be."""
        for name in names:
            try:
                path = self._paths[name]
                found = _alike(path, index.describe([path], self.reader, self.keys)[0], {})
                if found.rows != files_len[name]:
                    raise BadFileError(path, f"has {found.rows} samples, files_len says {files_len[name]}")
            except BadFileError as error:
                self._skip(error)
            else:
                return found.layout
        raise self._nothing_left(len(names))

    def _skip(self, error: BadFileError) -> None:
        """Leave out a bad file, or raise the error, as ``on_bad_file`` says."""
        if self.on_bad_file == "raise":
            raise error
        self.skipped[error.file] = error.reason

    def _nothing_left(self, files: int) -> ValueError:
        return ValueError(f"all {files} files were skipped; the last one {list(self.skipped.values())[-1]}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each file."""
        return tuple(self.files_len.values())

    @property
    def number_samples(self) -> int:
        """Samples in all files."""
        return sum(self.sizes)

    def __len__(self) -> int:
        """Return the number of samples, as torch has it."""
        return self.number_samples

    def __getitem__(self, batch: Any) -> Any:
        """Return a batch as a ``PartialShuffleSampler`` gave it: ``DataLoader`` asks for what a sampler names."""
        if isinstance(batch, dict | list):
            return batch
        raise TypeError(f"dataset[{batch!r}]: samples in files have no index; {_LOADER}")

    def __getitems__(self, batches: Any) -> Any:
        """Raise ``TypeError``: what a sampler gives are batches, of which ``DataLoader`` would make batches."""
        raise TypeError(f"a sampler of files gives whole batches; {_LOADER}")

    def read_otherwise(
        self, reader: Reader | Callable[..., Any] | None, files_len: Mapping[str, int] | None
    ) -> FileDataset:
        """Return a data set of the same files with another reader, or other numbers."""
        names = [self._paths[name] for name in self.files]  # as they were: the current folder may be another
        told = None if files_len is None else {self._paths[n]: files_len[n] for n in self.files if n in files_len}
        return FileDataset(names, reader or self.reader, told, keys=self.keys, on_bad_file=self.on_bad_file)

    def reset(self) -> None:
        """Do nothing; samplers call it at the start of an epoch."""

    def part(self, numbers: Sequence[int], keys: tuple[str, ...] | None = None) -> FilePart:
        """Return what reads some of the files: their names, not their data. ``keys`` names the arrays to read."""
        keys = self.keys if keys is None else keys
        layout = self.layout if self.layout is None or keys is None else {key: self.layout[key] for key in keys}
        paths = {number: self._paths[self.files[number]] for number in numbers}
        sizes = {number: self.files_len[self.files[number]] for number in numbers}
        return FilePart(self.reader, paths, sizes, keys, layout, self._reference, self.on_bad_file == "skip")

    def training_keys(self, *, targets: bool = True) -> tuple[str, ...]:
        """Return the names of the arrays to train on, x and perhaps y.

        Where the reader does not tell, the first file is read to see them. Raises ``ValueError`` where they are not
        there.
        """
        self.learn_layout()
        if self.layout is None:
            raise ValueError(f"none of the {len(self.files)} files can be read, {self.files[0]} among them")
        names = list(self.layout)
        if len(names) == 1 and self.x in ("x", names[0]) and self.y in ("y", None) and self.y != names[0]:
            return (names[0],)
        wanted = (self.x,) if self.y is None or not targets else (self.x, self.y)
        for role, name in zip(("x", "y"), wanted, strict=False):
            self._check_there(role, name)
        return wanted

    def weight_key(self) -> str | None:
        """Return the name of the array of weights; raise ``ValueError`` where it is none, or not there."""
        if self.weight is not None:
            self.learn_layout()
            self._check_there("weight", self.weight)
            check_weight_shape(f"{self.weight!r} in {self.files[0]}", (self.layout or {})[self.weight].shape)
        return self.weight

    def _check_there(self, role: str, name: str) -> None:
        names = list(self.layout or ())
        if name not in names:
            hint = "weight=...)" if role == "weight" else "x=..., y=...), y=None for no targets"
            raise ValueError(
                f"{self.files[0]} has no array {name!r} for {role}, it has {listed(names)}; say "
                f"which to take in FileDataset(..., {hint}"
            )

    def check_dtypes(self, keys: Collection[str] | None) -> None:
        """Raise ``BadFileError`` where torch cannot hold one of these arrays, by default any."""
        for key, field in (self.layout or {}).items():
            if (keys is None or key in keys) and not torch_holds(field):
                raise BadFileError(self._paths[self._reference], f"holds {field} in {key!r}, {NOT_HELD}")

    def learn_layout(self) -> None:
        """Read the first file that is good, where the reader does not tell what is in one without reading it."""
        for number, size in enumerate(self.sizes):
            if self.layout is not None:
                return
            try:
                self.layout = layout_of(self.part([number]).read(RowRange(number, 0, size)))
                self._reference = self.files[number]
            except BadFileError:
                if self.on_bad_file == "raise":
                    raise

    def __repr__(self) -> str:
        return (
            f"FileDataset({len(self.files)} files, {self.number_samples} samples, keys {list(self.layout or ())})"
        )


def file_names(files: FileNames) -> list[str]:
    """Return names as a list; raise ``ValueError`` where there are none or one comes twice."""
    if isinstance(files, str | os.PathLike):
        names = _matches(os.fspath(files))
    else:
        names = [os.fspath(file) for file in files]
    if not names:
        raise ValueError(f"files={files!r}: there are no such files")
    counts = Counter(_path(name) for name in names)
    if len(counts) < len(names):
        raise ValueError(f"{counts.most_common(1)[0][0]} is named more than once; each file is read once an epoch")
    return names


def _matches(pattern: str) -> list[str]:
    if os.path.isdir(pattern):
        raise ValueError(f"{pattern} is a folder; name its files, for example {os.path.join(pattern, '*.npz')!r}")
    if os.path.exists(pattern) or not glob.has_magic(pattern):
        return [pattern]
    return sorted(glob.glob(pattern, recursive=True))


def _path(name: str) -> str:
    """Return a name that is valid in any process's folder; names that are no local files stay as they are."""
    return name if "://" in name else os.path.abspath(name)


def _checked_keys(keys: Collection[str] | None) -> tuple[str, ...] | None:
    if isinstance(keys, str):
        raise TypeError(f"keys={keys!r}: give a list of names, for example [{keys!r}]")
    if keys is not None and not (keys and all(isinstance(key, str) for key in keys)):
        raise ValueError(f"keys={keys!r}: give the names of the arrays to read, at least one")
    return None if keys is None else tuple(keys)


def _is_count(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 1


def _alike(path: str, found: Description | BadFileError, good: Mapping[str, Description]) -> Description:
    """Return the description of a file that is good, and like the first good one."""
    if isinstance(found, BadFileError):
        raise found
    first = next(iter(good), None)
    if first is not None and found.layout is not None and (reference := good[first].layout) is not None:
        with naming(path):
            check_alike(found.layout, reference, first)
    return found


def read_whole(names: Sequence[str], key: str, reader: Reader | Callable[..., Any] | None = None) -> list[Block]:
    """Return one array of each file, in memory."""
    own = as_reader(reader, names)
    blocks = []
    for name in names:
        with naming(_path(name)):
            rows = own.describe(_path(name), (key,)).rows
            blocks.append(own.read(_path(name), 0, rows, (key,))[0][key])
    return blocks
