"""``FileDataset``: samples in many files, which the workers read themselves."""

import copy
import math
import os
import secrets
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy as np

from compss_train._utils.nested import leaves
from compss_train._utils.validation import (
    check_choice,
    check_count,
    check_fraction,
    warn_once,
    warn_user,
)
from compss_train.data import file_cache
from compss_train.data import layout as layouts
from compss_train.data.classes import find_classes
from compss_train.data.columns import column_groups
from compss_train.data.file_descriptions import DescribedFiles, describe_all, describe_counted
from compss_train.data.locations import FileNames, absolute, file_names
from compss_train.data.order import RowRange
from compss_train.data.readers import Reader, TableReader, as_reader
from compss_train.data.readers import images as image_files
from compss_train.data.readers.base import reader_id
from compss_train.data.reading import FileBlock, FilePart, layout_of
from compss_train.data.splitting import drawn_ranges, split_images
from compss_train.exceptions import BadFileError

OnBadFile = Literal["raise", "skip"]

FINGERPRINT_FILES = 16
"""Maximum number of files whose bytes a fingerprint takes."""
FINGERPRINT_BYTES = 4096
"""Bytes at the start, in the middle and at the end of a file that a fingerprint takes."""

SPLIT_PARTS = 20
"""Minimum number of files, or of ranges of their rows, that a split draws from."""

_LOADER_HINT = (
    "use DataLoader(dataset, sampler=PartialShuffleSampler(dataset, ...), batch_size=None)"
)


_NamedRange: TypeAlias = tuple[str, int, int]
"""The name of a file, or of a part of it, the first row, and the end."""


class FileDataset:
    """Samples in many files of arrays with one row per sample.

    Parameters
    ----------
    files:
        File names, or a pattern such as ``"data/*.npz"``, whose matches are sorted (images given so
        have no y); or a folder with a subfolder of images for each class. Names such as
        ``"s3://bucket/*.parquet"`` are opened with ``fsspec``.
    reader:
        ``None`` (default) for the reader of the files' format: .npz, .npy (memory-mapped), .pt
        (tensors only), HDF5, Parquet, Arrow (.arrow, .feather), JSON lines (.jsonl), CSV (.csv,
        .tsv), or images. ``compss_train.data.readers`` has readers with options. Otherwise a
        function ``reader(filename, get_data=False)`` that returns the number of samples, and with
        ``get_data=True`` a dict of arrays and that number.
    files_len:
        Number of samples in each file by name, so that the files need not be opened to count them;
        wrong numbers are detected when a file is read. By default the constructor reads the headers
        of all files.
    keys:
        Names of the arrays to read, all by default.
    x, y:
        Names of the arrays of samples and targets for ``DistributedTrainer.fit``. With ``y=None``,
        or files of a single array, the samples are their own targets. In tables (Parquet, Arrow,
        CSV) columns are arrays, and a list of columns is one array of shape (samples, columns), of
        integers if all columns are. Several inputs or targets are a dict or tuple of these:
        ``x={"numbers": ["a", "b"], "codes": ["c", "d"]}``.
    classes:
        The classes of columns by column name, strings or numbers, or of images under ``"y"``; the
        first is class 0. By default columns of strings have classes, the sorted values in all
        files; pass ``classes=train.classes`` to other data sets. A column is the same in all files:
        classes, or numbers.
    weight:
        Name of the array of sample weights for ``DistributedTrainer.fit``; ``None`` for no weights.
        They count in training, not in evaluation.
    index:
        Name of a small JSON file that caches headers while a file's size and modification time stay
        the same.
    on_bad_file:
        ``"raise"`` (default) raises a ``BadFileError``, ``"skip"`` leaves out what cannot be read
        (a file, a row group, an image) with a warning; both here and when it is read.
    threads:
        Number of files that each worker, or sampler, reads at the same time; 1 by default. The
        order of samples does not depend on it. Of the ``file_buffer`` each thread needs one file,
        and the file in use another.
    file_buffer:
        Maximum number of files that each worker holds in memory, 10 by default; 1 reads none ahead.
    cache:
        Where to keep arrays for later rounds and epochs: ``"memory"``, or a folder on a local disk,
        shared by all processes of the machine and by later fits. ``None`` (default) keeps nothing.
    cache_bytes:
        Size limit of the cache on each machine, in bytes; the least recently used files are
        evicted. By default 1 GiB in memory and 10 GiB in a folder.

    Attributes: ``files``, names; ``files_len``; ``sizes``, number of samples in each file;
    ``classes`` of string columns and images; ``skipped``, the reason for each skipped file;
    ``layout``, dtypes and shapes; and ``reference``, the file that the layout was taken from.

    If a file has parts that can be read separately (row groups of Parquet, record batches of Arrow,
    images of a folder), ``files`` names the parts: ``NAME#0``, ``NAME#1`` and so on. Slices
    (``dataset[:100]``) and ``split`` return data sets of some of the rows, and name parts of files
    ``NAME[0:50]``.

    Raises ``ValueError`` if no file matches, a name occurs twice, ``files_len`` lacks a file, or
    the ``cache`` cannot be created or other users may write to it; ``BadFileError`` for a file that
    is missing, empty, truncated or corrupt according to its header, that contains Python objects
    (pickles), or whose arrays, shapes or dtypes differ from those of the first file.
    """

    blocks: dict[str, FileBlock]
    files: list[str]
    files_len: dict[str, int]
    reference: str

    def __init__(
        self,
        files: FileNames,
        reader: Reader | Callable[..., Any] | None = None,
        files_len: Mapping[str, int] | None = None,
        *,
        keys: Collection[str] | None = None,
        x: Any = "x",
        y: Any = "y",
        weight: str | None = None,
        classes: Mapping[str, Sequence[Any]] | None = None,
        index: str | os.PathLike[str] | None = None,
        on_bad_file: OnBadFile = "raise",
        threads: int = 1,
        file_buffer: int = 10,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        check_choice("on_bad_file", on_bad_file, get_args(OnBadFile))
        self.on_bad_file: OnBadFile = on_bad_file
        self.threads = check_count("threads", threads)
        self.file_buffer = check_count("file_buffer", file_buffer)
        self.cache = file_cache.make_cache(cache, cache_bytes)
        # Resolved now: the working directory can change.
        paths = {name: absolute(name) for name in file_names(files)}
        self.weight = weight
        self.x, groups = column_groups("x", x)
        self.y = y
        if y is not None:
            self.y, groups_of_y = column_groups("y", y)
            groups |= groups_of_y
        arrays = [key for key in leaves((self.x, self.y, weight)) if key is not None]
        keys = arrays if keys is None and groups else keys
        if index is not None and not isinstance(index, str | os.PathLike):
            raise TypeError(f"index={index!r}: give the name of a JSON file, or None")
        if isinstance(keys, str) or not isinstance(keys, Collection | None):
            raise TypeError(f"keys={keys!r}: give a list of names, for example [{str(keys)!r}]")
        self.keys = None if keys is None else tuple(keys)
        ungrouped = [key for key in (*arrays, *(self.keys or ())) if key not in groups]
        columns = tuple(dict.fromkeys(chain(*groups.values(), ungrouped)))
        described = _describe(
            paths,
            as_reader(reader, [*paths]).with_columns(groups, columns, classes or {}),
            files_len,
            keys=self.keys,
            index=index,
            skip=on_bad_file == "skip",
        )
        self.skipped = described.skipped
        self.reader = described.reader
        self._set_columns([*described.descriptions.values()], classes or {})
        blocks: dict[str, FileBlock] = {}
        for name, description in described.descriptions.items():
            taken = paths.keys() | blocks.keys()
            blocks |= _blocks_of(name, paths[name], description, taken=taken)
        _set_blocks(self, blocks)
        for file, reason in self.skipped.items():
            warn_user(f"skipped {file} {reason}")
        _warn_of_unread(described.descriptions)

    def _set_columns(
        self, descriptions: Sequence[layouts.Description], classes: Mapping[str, Sequence[Any]]
    ) -> None:
        """Set what columns are in all files: their classes, and whether they are integers.

        ``classes`` are those that the user has given.
        """
        values_of_columns: dict[str, set[Any]] = {}  # a file may lack some of the classes
        for description in descriptions:
            for column, values in description.classes.items():
                values_of_columns.setdefault(column, set()).update(values)
        self.classes = {
            column: find_classes(column, values) for column, values in values_of_columns.items()
        } | dict(classes)
        self.integers = set.intersection(
            *(set(description.integers) for description in descriptions)
        )
        """Columns of integers beside other columns of an array."""
        if values_of_columns:
            self.reader = self.reader.with_columns({}, (), self.classes)
        layout = descriptions[0].layout
        if layout is not None and isinstance(self.reader, TableReader):
            self.reader, layout = self.reader.with_integers(layout, {*self.integers, *self.classes})
        if layout is not None:
            self.layout = layout

    @cached_property
    def layout(self) -> layouts.Layout:
        """Dtypes and shapes of the arrays; a file is read if its reader can only count samples."""
        for number, name in enumerate(self.files):
            block = self.blocks[name]
            part = FilePart(
                reader=self.reader,
                blocks={number: block},
                keys=self.keys,
                layout=None,
                reference=name,
            )
            try:
                arrays = part.read(RowRange(number, 0, block.rows))
            except BadFileError:
                if self.on_bad_file == "raise":
                    raise
            else:
                self.reference = name
                self.layout = layout_of(arrays)
                entry = self.part([number]).cache_entry(number)
                if entry is not None:
                    entry.store(arrays)
                return self.layout
        raise ValueError(
            f"none of the {len(self.files)} files can be read, for example {self.files[0]}"
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of samples in each file."""
        return tuple(self.files_len.values())

    @property
    def number_samples(self) -> int:
        """Number of samples in all files."""
        return sum(self.sizes)

    def __len__(self) -> int:
        """Return the number of samples, as torch expects."""
        return self.number_samples

    def __getitem__(self, batch: Any) -> Any:
        """Return the data set of a slice of rows, ``dataset[:100]``.

        A batch of a ``PartialShuffleSampler`` is returned unchanged: ``DataLoader`` uses it as an
        index.
        """
        if isinstance(batch, dict | list):
            return batch
        if not isinstance(batch, slice) or batch.step not in (None, 1):
            raise TypeError(
                f"dataset[{batch!r}]: samples in files have no index; {_LOADER_HINT}, or a slice "
                "without a step"
            )
        start, stop, _ = batch.indices(len(self))
        ranges = []
        first = 0
        for name, rows in self.files_len.items():
            low = max(0, start - first)
            high = min(rows, stop - first)
            if low < high:
                ranges.append((name, low, high))
            first += rows
        return self._of(ranges)

    def split(self, fraction: float, *, seed: int = 0, stratify: bool = False) -> tuple[Self, Self]:
        """Return two data sets, the second with this fraction of the samples, rounded.

        The seed draws its files, and a part of the last one, so that both are read in ranges of
        rows. Fewer than 20 files are cut into ranges of their rows first. With ``stratify=True``,
        for folders of images, it draws images of each class, of which both have the same shares.

        Raises ``ValueError`` if one would be empty, and for ``stratify=True`` without classes.
        """
        check_fraction("fraction", fraction)
        if stratify:
            training_images, validation_images = split_images(self.blocks, fraction, seed)
            return self._with_blocks(training_images), self._with_blocks(validation_images)
        parts = self._ranges(SPLIT_PARTS)
        taken = drawn_ranges([stop - start for _, start, stop in parts], fraction, seed)
        training = []
        validation = []
        for (name, start, stop), rows in zip(parts, taken, strict=True):
            if rows:
                validation.append((name, start, start + rows))
            if start + rows < stop:
                training.append((name, start + rows, stop))
        return self._of(training), self._of(validation)

    def cut(self, parts: int) -> Self:
        """Return a data set of at least this many parts: ranges of rows if files are fewer."""
        return self if parts <= len(self.files) else self._of(self._ranges(parts))

    def _ranges(self, parts: int) -> list[_NamedRange]:
        """Return the files in ranges of rows, at least this many."""
        pieces = math.ceil(parts / len(self.files))
        if pieces > 1 and isinstance(self.reader, TableReader):
            warn_once(
                "there are too few Parquet row groups or CSV files to share: each is read whole "
                "for some of its rows; write Parquet with a smaller row_group_size, or more "
                "files with compss-train shard"
            )
        ranges = []
        for name, rows in self.files_len.items():
            bounds = np.linspace(0, rows, min(pieces, rows) + 1, dtype=int).tolist()
            ranges += [(name, start, stop) for start, stop in pairwise(bounds)]
        return ranges

    def _of(self, ranges: Sequence[_NamedRange]) -> Self:
        """Return a data set of these rows."""
        if not ranges:
            raise ValueError(f"none of the {self.number_samples} rows are left; choose others")
        blocks: dict[str, FileBlock] = {}
        for name, start, stop in ranges:
            block = self.blocks[name]
            part = replace(
                block, first=block.first + start, rows=stop - start, files=block.files[start:stop]
            )
            if part != block:
                name = _free_name(f"{name}[{start}:{stop}]", self.blocks.keys() | blocks.keys())
            blocks[name] = part
        return self._with_blocks(blocks)

    def _with_blocks(self, blocks: dict[str, FileBlock]) -> Self:
        """Return a copy that has these blocks."""
        dataset = copy.copy(self)
        _set_blocks(dataset, blocks)
        return dataset

    def __getitems__(self, batches: Any) -> Any:
        """Raise ``TypeError``: with a batch size, ``DataLoader`` would batch batches."""
        raise TypeError(f"a sampler of files yields whole batches; {_LOADER_HINT}")

    def with_floats(self, floats: str) -> Self:
        """Return this data set, or one of tables that converts other floats to ``floats``."""
        reader, layout = self.reader.with_floats(self.layout, floats)
        if reader is self.reader:
            return self
        dataset = copy.copy(self)
        vars(dataset).pop("_reader_id", None)  # of the reader before
        dataset.reader = reader
        dataset.layout = layout
        return dataset

    def reset(self) -> None:
        """Do nothing; samplers call this at the start of an epoch."""

    @cached_property
    def _reader_id(self) -> str:
        """Identifies the reader in the cache: by chance, if it cannot be pickled."""
        return reader_id(self.reader) or secrets.token_hex(16)

    def part(self, numbers: Sequence[int], keys: tuple[str, ...] | None = None) -> FilePart:
        """Return what a task needs to read these arrays of some of the files."""
        keys = self.keys if keys is None else keys
        return FilePart(
            reader=self.reader,
            blocks={number: self.blocks[self.files[number]] for number in numbers},
            keys=keys,
            layout={key: self.layout[key] for key in keys or self.layout},
            reference=self.reference,
            skip=self.on_bad_file == "skip",
            threads=self.threads,
            file_buffer=self.file_buffer,
            cache=self.cache,
            reader_id="" if self.cache is None else self._reader_id,
        )

    def fingerprint(self) -> int | None:
        """Return a checksum of some bytes of some files; ``None`` if they cannot be opened here."""
        blocks = list(self.blocks.values())
        checksum = 0
        for block in blocks[:: math.ceil(len(blocks) / FINGERPRINT_FILES)]:
            try:
                with open(block.row_names()[0] if block.files else block.path, "rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    end = max(0, size - FINGERPRINT_BYTES)  # where .npz has its directory
                    for place in (0, size // 2, end):
                        file.seek(place)
                        checksum = zlib.crc32(file.read(FINGERPRINT_BYTES), checksum)
            except OSError:
                return None
        return checksum

    def training_keys(self, *, targets: bool = True) -> tuple[str, ...]:
        """Return the names of the arrays to train on: x, and y unless there are no targets.

        Raises ``ValueError`` if an array is missing.
        """
        if len(self.layout) == 1:
            (name,) = self.layout
            if self.x in ("x", name) and self.y in ("y", None) and self.y != name:
                return (name,)
        names = {"x": leaves(self.x)}
        if self.y is not None and targets:
            names["y"] = leaves(self.y)
        for role, names_of_role in names.items():
            for name in names_of_role:
                self._check_key(role, name)
        return tuple(chain(*names.values()))

    def weight_key(self) -> str | None:
        """Return the name of the array of weights, if any; ``ValueError`` if it is unsuitable."""
        if self.weight is not None:
            self._check_key("weight", self.weight)
            layouts.check_weight_shape(
                f"{self.weight!r} in {self.files[0]}", self.layout[self.weight].shape
            )
        return self.weight

    def _check_key(self, role: str, name: str) -> None:
        if name not in self.layout:
            hint = "weight=...)" if role == "weight" else "x=..., y=...), y=None for no targets"
            raise ValueError(
                f"{self.files[0]} has no array {name!r} for {role}, it has "
                f"{layouts.quote_names(self.layout)}; choose one with FileDataset(..., {hint}"
            )

    def check_dtypes(self, keys: Collection[str] | None) -> None:
        """Raise ``BadFileError`` if torch cannot hold one of these arrays, all by default."""
        for key, field in self.layout.items():
            if (keys is None or key in keys) and not layouts.is_supported(field):
                path = self.blocks[self.reference].path
                raise BadFileError(path, f"holds {field} in {key!r}, {layouts.UNSUPPORTED_HINT}")

    def __repr__(self) -> str:
        keys = list(vars(self).get("layout", ()))  # the file of an unknown one is not read for this
        return f"FileDataset({len(self.files)} files, {self.number_samples} samples, keys {keys})"


def _describe(
    paths: Mapping[str, str],
    reader: Reader,
    files_len: Mapping[str, int] | None,
    **options: Any,
) -> DescribedFiles:
    if files_len is None:
        return describe_all(paths, reader, **options)
    if not isinstance(files_len, Mapping):
        raise TypeError(
            f"files_len={files_len!r}: give a dict of the number of samples in each file by name"
        )
    return describe_counted(paths, reader, files_len, **options)


def _set_blocks(dataset: FileDataset, blocks: dict[str, FileBlock]) -> None:
    """Set the blocks of a data set, and what follows from them."""
    dataset.blocks = blocks
    dataset.files = list(blocks)
    dataset.files_len = {name: block.rows for name, block in blocks.items()}
    dataset.reference = dataset.files[0]


def _free_name(name: str, taken: Collection[str]) -> str:
    """Return the name of a part of a file that is not taken, as by a file that is called so."""
    while name in taken:
        name += "'"
    return name


def _blocks_of(
    name: str, path: str, description: layouts.Description, *, taken: Collection[str]
) -> dict[str, FileBlock]:
    """Return the blocks of a file by name: one, or one for each part that can be read alone."""
    sizes = description.blocks or (description.rows,)
    is_whole = len(sizes) == 1
    blocks = {}
    first = 0
    for number, rows in enumerate(sizes):
        block_name = name if is_whole else _free_name(f"{name}#{number}", taken)
        blocks[block_name] = FileBlock(
            path=path,
            part=None if is_whole else number,
            first=first,
            rows=rows,
            file_rows=description.rows,
            files=description.files[first : first + rows],
        )
        first += rows
    return blocks


def _warn_of_unread(descriptions: Mapping[str, layouts.Description]) -> None:
    unread_frames = {
        name: description.unread_frames
        for name, description in descriptions.items()
        if description.unread_frames
    }
    if unread_frames:
        warn_user(
            f"{sum(unread_frames.values())} frames or pages of images are not read, the first of "
            f"them in {next(iter(unread_frames))}: only the first frame of an image is a sample"
        )
    for name, description in descriptions.items():
        images = description.unread_files
        if images:
            warn_user(
                f"{len(images)} images in {name} are no samples, the first of them {images[0]}: "
                "only those in subfolders, one a class, are read, and of the formats "
                f"{', '.join(image_files.SUFFIXES)}"
            )
