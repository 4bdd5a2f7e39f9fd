"""``FileDataset``: samples in many files, which the workers read themselves."""

import copy
import math
import os
import secrets
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Any, Literal, Self, get_args

import numpy as np

from compss_train._utils.nested import leaves
from compss_train._utils.validation import (
    check_choice,
    check_count,
    check_fraction,
    warn_once,
    warn_user,
)
from compss_train.data import file_cache, file_index
from compss_train.data import layout as layouts
from compss_train.data.classes import find_classes
from compss_train.data.columns import column_groups
from compss_train.data.locations import FileNames, absolute, file_names
from compss_train.data.order import RowRange
from compss_train.data.readers import Reader, TableReader, as_reader
from compss_train.data.readers import images as image_files
from compss_train.data.readers.base import reader_id
from compss_train.data.reading import FileBlock, FilePart, bad_file_errors, layout_of
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
        self.threads = check_count("threads", threads)
        self.file_buffer = check_count("file_buffer", file_buffer)
        self.cache = file_cache.make_cache(cache, cache_bytes)
        names = file_names(files)
        # Resolved now: the working directory can change.
        self._paths = {name: absolute(name) for name in names}
        self.x, groups = column_groups("x", x)
        self.y = y
        self.weight = weight
        if y is not None:
            self.y, of_y = column_groups("y", y)
            groups |= of_y
        roles = [key for key in leaves((self.x, self.y, weight)) if key is not None]
        keys = roles if keys is None and groups else keys
        if isinstance(keys, str) or not isinstance(keys, Collection | None):
            raise TypeError(f"keys={keys!r}: give a list of names, for example [{str(keys)!r}]")
        self.keys = None if keys is None else tuple(keys)
        alone = (key for key in (*roles, *(self.keys or ())) if key not in groups)
        used = tuple(dict.fromkeys(chain(*groups.values(), alone)))
        self.reader = as_reader(reader, names).with_columns(groups, used, classes or {})
        self.on_bad_file: OnBadFile = on_bad_file
        self.skipped: dict[str, str] = {}
        described = self._describe(names, files_len, index)
        found: dict[str, set[Any]] = {}  # a file may lack some of the classes
        for name, values in chain.from_iterable(
            each.classes.items() for each in described.values()
        ):
            found.setdefault(name, set()).update(values)
        self.classes = {name: find_classes(name, values) for name, values in found.items()} | dict(
            classes or {}
        )
        self.integers = set.intersection(*(set(each.integers) for each in described.values()))
        """Columns of integers beside other columns of an array."""
        if found:
            self.reader = self.reader.with_columns({}, (), self.classes)
        layout = next(iter(described.values())).layout
        if layout is not None and isinstance(self.reader, TableReader):
            self.reader, layout = self.reader.with_integers(layout, {*self.integers, *self.classes})
        self.blocks: dict[str, FileBlock] = {}
        for name, each in described.items():
            sizes = each.blocks or (each.rows,)
            for number, (first, rows) in enumerate(
                zip(accumulate(sizes, initial=0), sizes, strict=False)
            ):
                self.blocks[name if len(sizes) == 1 else f"{name}#{number}"] = FileBlock(
                    path=self._paths[name],
                    part=None if len(sizes) == 1 else number,
                    first=first,
                    rows=rows,
                    file_rows=each.rows,
                    files=each.files[first : first + rows],
                )
        self.files = list(self.blocks)
        self.files_len = {name: block.rows for name, block in self.blocks.items()}
        self.reference = self.files[0]
        if layout is not None:
            self.layout = layout
        for file, reason in self.skipped.items():
            warn_user(f"skipped {file} {reason}")
        if unread := {
            name: each.unread_frames for name, each in described.items() if each.unread_frames
        }:
            warn_user(
                f"{sum(unread.values())} frames or pages of images are not read, the first of "
                f"them in {next(iter(unread))}: only the first frame of an image is a sample"
            )
        for name, each in described.items():
            if left_out := each.unread_files:
                warn_user(
                    f"{len(left_out)} images in {name} are no samples, the first of them "
                    f"{left_out[0]}: only those in subfolders, one a class, are read, and of the "
                    f"formats {', '.join(image_files.SUFFIXES)}"
                )

    def _describe(
        self,
        names: list[str],
        files_len: Mapping[str, int] | None,
        index: str | os.PathLike[str] | None,
    ) -> dict[str, layouts.Description]:
        """Return the descriptions of the valid files, checked against the first one.

        With ``files_len``, only one valid file is opened, for its layout.
        """
        reader = self.reader
        options = (self.keys, index)
        paths = list(self._paths.values())

        def described(
            paths: Sequence[str],
        ) -> tuple[Reader, list[layouts.Description | BadFileError]]:
            if isinstance(reader, TableReader):
                return file_index.describe_tables(paths, reader, *options)
            return reader, file_index.describe_files(paths, reader, *options)

        found: Iterable[layouts.Description | BadFileError]
        if files_len is None:
            self.reader, found = described(paths)
        else:
            for name in names:
                if name not in files_len:
                    raise ValueError(
                        f"files_len lacks {name}; give a number of samples for each file"
                    )
                check_count(f"files_len[{name!r}]", files_len[name])
            found = (described([path])[1][0] for path in paths)
        good: dict[str, layouts.Description] = {}
        for name, path, each in zip(names, paths, found, strict=False):
            try:
                if isinstance(each, BadFileError):
                    raise each
                if files_len is not None and each.rows != files_len[name]:
                    raise BadFileError(
                        path, (f"has {each.rows} samples, but files_len has {files_len[name]}")
                    )
                reference, first = next(iter(good.items()), (name, each))
                with bad_file_errors(path):
                    layouts.check_same_description(each, first, reference)
            except BadFileError as error:
                if self.on_bad_file == "raise":
                    raise
                self.skipped[error.file] = error.reason
            else:
                good[name] = each
                if files_len is not None:
                    break
        if not good:
            raise ValueError(
                f"all {len(names)} files were skipped; the last one "
                f"{list(self.skipped.values())[-1]}"
            )
        if files_len is None:
            return good
        like = replace(next(iter(good.values())), blocks=(), files=())
        return {
            n: replace(like, rows=int(files_len[n]))
            for n in names
            if self._paths[n] not in self.skipped
        }

    @cached_property
    def layout(self) -> layouts.Layout:
        """Dtypes and shapes of the arrays; reads the first valid file if the reader can only count
        samples.
        """
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
                if (entry := self.part([number]).cache_entry(number)) is not None:
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
        firsts = zip(accumulate(self.sizes, initial=0), self.files_len.items(), strict=False)
        ranges = (
            (name, max(0, start - first), min(rows, stop - first)) for first, (name, rows) in firsts
        )
        return self._of([each for each in ranges if each[1] < each[2]])

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Self, Self]:
        """Return two data sets, the second with about this fraction of the samples, in files drawn
        by the seed.

        Fewer than 20 files are cut into ranges of their rows first. Raises ``ValueError`` if one
        would be empty.
        """
        check_fraction("fraction", fraction)
        parts = self._ranges(SPLIT_PARTS)
        count = round(len(parts) * fraction)
        if not 0 < count < len(parts):
            raise ValueError(
                f"fraction={fraction} of {len(parts)} parts is {count}; give another fraction"
            )
        order = np.random.default_rng(seed).permutation(len(parts))
        own, others = (
            self._of([parts[n] for n in sorted(each)]) for each in (order[count:], order[:count])
        )
        return own, others

    def cut(self, parts: int) -> Self:
        """Return a data set of at least this many parts: ranges of rows if there are fewer
        files.
        """
        return self if parts <= len(self.files) else self._of(self._ranges(parts))

    def _ranges(self, parts: int) -> list[tuple[str, int, int]]:
        """Return at least this many ranges of rows if there are fewer files: a file's name, first
        row, and end.
        """
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

    def _of(self, ranges: Sequence[tuple[str, int, int]]) -> Self:
        """Return a data set of these rows: names of files or of their parts, first rows, and
        ends.
        """
        if not ranges:
            raise ValueError(f"none of the {self.number_samples} rows are left; choose others")
        dataset = copy.copy(self)
        dataset_blocks = {}
        for name, start, stop in ranges:
            block = self.blocks[name]
            part = replace(
                block, first=block.first + start, rows=stop - start, files=block.files[start:stop]
            )
            dataset_blocks[name if part == block else f"{name}[{start}:{stop}]"] = part
        dataset.blocks = dataset_blocks
        dataset.files = list(dataset_blocks)
        dataset.files_len = {name: block.rows for name, block in dataset_blocks.items()}
        dataset.reference = dataset.files[0]
        return dataset

    def __getitems__(self, batches: Any) -> Any:
        """Raise ``TypeError``: with a batch size, ``DataLoader`` would make batches of the
        sampler's batches.
        """
        raise TypeError(f"a sampler of files yields whole batches; {_LOADER_HINT}")

    def with_floats(self, floats: str) -> Self:
        """Return this data set; for tables with floats of other dtypes, a copy that converts them
        to ``floats``.
        """
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
        """Identifies the reader in the cache; a reader that cannot be pickled is unique to its data
        set.
        """
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
        """Return a checksum of some bytes of some files, to detect other data; ``None`` if they are
        not here.
        """
        blocks = list(self.blocks.values())
        checksum = 0
        for block in blocks[:: math.ceil(len(blocks) / FINGERPRINT_FILES)]:
            try:
                with open(block.row_names()[0] if block.files else block.path, "rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    # Of .npz the directory.
                    for place in (0, size // 2, max(0, size - FINGERPRINT_BYTES)):
                        file.seek(place)
                        checksum = zlib.crc32(file.read(FINGERPRINT_BYTES), checksum)
            except OSError:
                return None
        return checksum

    def training_keys(self, *, targets: bool = True) -> tuple[str, ...]:
        """Return the names of the arrays to train on: x, and y unless there are no targets.

        Raises ``ValueError`` if an array is missing.
        """
        names = list(self.layout)
        if (
            len(names) == 1
            and self.x in ("x", names[0])
            and self.y in ("y", None)
            and self.y != names[0]
        ):
            return (names[0],)
        wanted = {"x": self.x} if self.y is None or not targets else {"x": self.x, "y": self.y}
        for role, given in wanted.items():
            for name in leaves(given):
                self._check_key(role, name)
        return tuple(leaves(wanted))

    def weight_key(self) -> str | None:
        """Return the name of the array of weights, if any; raise ``ValueError`` if the array is
        unsuitable.
        """
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
