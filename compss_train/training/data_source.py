"""``DataSource``: the samples of a fit or an evaluation; ``PublishedData``: what an engine holds of
them.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, islice
from typing import Any, Self

import numpy as np
import torch

from compss_train._utils.nested import leaves, places, template_of
from compss_train._utils.validation import warn_user
from compss_train.data import BlockedTensor, FileDataset, locations
from compss_train.data.block import Block, as_tensor
from compss_train.data.blocked import as_blocked, as_weights, check_paired, fingerprint
from compss_train.data.coding import Coding, classes_key, columns_key, plain_classes
from compss_train.data.columns import SINGLE, ColumnStructure, columns_of
from compss_train.data.conversions import codes_note, conversion_note, integers_remark
from compss_train.data.frames import frame_as_array, is_frame
from compss_train.data.partitioning import Shuffle
from compss_train.data.ragged import Ragged
from compss_train.data.readers import CustomReader
from compss_train.data.reading import FilePart
from compss_train.data.remote_block import RemoteBlock, load_block
from compss_train.data.sample_reading import SampleReader
from compss_train.data.samples import Samples, as_samples
from compss_train.engines import Engine, Ref
from compss_train.engines.codec import is_on_file
from compss_train.exceptions import BadFileError, DivergedError
from compss_train.model.devices import IN_PROCESS, random_state
from compss_train.model.metrics import Measured
from compss_train.training.build_arguments import check_picklable


@dataclass(frozen=True, eq=False, kw_only=True)
class DataSource:
    """The samples of a fit or an evaluation: blocks of several columns, or files that have all
    columns.

    For a data set that workers read, the only column holds the sample numbers.
    ``trainer.configuration`` has the fields with a ``repr``.
    """

    columns: Mapping[str, BlockedTensor] = field(default_factory=dict)
    """The columns of x, of y and of weights, in the same blocks, by their names in messages; none
    for files.
    """
    structure: ColumnStructure = field(default=SINGLE, repr=False)
    """Which columns are x, y and weights."""
    dataset: FileDataset | None = None
    """The files."""
    keys: tuple[str, ...] = ()
    """The arrays to read from files."""
    reader: SampleReader | None = None
    """What reads samples by their numbers; ``None`` for columns of samples."""
    batch_size: int | None = None
    """The batch size that comes with the data, from a ``DataLoader``."""
    notes: tuple[str, ...] = ()
    """What users of a fit should know about conversions of their data."""
    remarks: tuple[str, ...] = ()
    """The conversions that most users want."""
    coding: Coding = field(default_factory=dict)
    """What the numbers mean, which is the same in all data of a network."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each block or file."""
        return (
            next(iter(self.columns.values())).sizes if self.dataset is None else self.dataset.sizes
        )

    @property
    def sequences(self) -> list[str]:
        """The names of the columns whose samples are sequences of different lengths."""
        return names_of_sequences(self.columns)

    @property
    def number_samples(self) -> int:
        """Number of samples."""
        return sum(self.sizes)

    @property
    def is_stream(self) -> bool:
        """Whether samples are read in sequence and have no numbers."""
        return self.reader is not None and self.reader.is_stream

    @property
    def counted(self) -> bool:
        """Whether ``sizes`` are known; otherwise they are 1."""
        return self.reader is None or self.reader.counted

    @property
    def may_skip(self) -> bool:
        """Whether tasks may have fewer samples than planned: files may be skipped, streams may end
        early.
        """
        return self.is_stream or (self.dataset is not None and self.dataset.on_bad_file == "skip")

    @cached_property
    def fingerprint(self) -> int | None:
        """A checksum of some rows or bytes, to detect different data of the same sizes; ``None`` if
        costly.
        """
        if self.dataset is not None:
            return self.dataset.fingerprint()
        if self.reader is None:
            return fingerprint(self.columns.values())
        stops = tuple(accumulate(self.sizes))
        return self.reader.fingerprint((0, *stops[:-1]), stops)

    @property
    def without_targets(self) -> Self:
        """The source of the same samples without y and weights, as in a prediction."""
        inputs = len(leaves(self.structure.x))
        structure = replace(self.structure, y=None, weighted=False)
        columns = dict(islice(self.columns.items(), inputs))
        return replace(self, columns=columns, keys=self.keys[:inputs], structure=structure)

    def weighted(self, sample_weight: Any) -> Self:
        """Return this source for training, with a weight for each sample if the data have weights.

        Raises ``ValueError`` and ``TypeError`` for invalid weights.
        """
        if self.dataset is not None:
            return self._weighted_files(self.dataset, sample_weight)
        if sample_weight is None:
            return self
        if self.is_stream:
            raise TypeError(
                "sample_weight needs numbered samples, which an IterableDataset does not have; "
                "let the data set yield weights as part of y, and weight the loss in a "
                "training_step"
            )
        weights = as_weights(sample_weight, next(iter(self.columns.values())))
        structure = replace(self.structure, weighted=True)
        return replace(
            self, columns={**self.columns, "sample_weight": weights}, structure=structure
        )

    def _weighted_files(self, dataset: FileDataset, sample_weight: Any) -> Self:
        if sample_weight is not None:
            raise TypeError(
                f"sample_weight is a {type(sample_weight).__name__}, but x is a FileDataset, "
                "whose files hold the weights too; leave sample_weight out, and name the array "
                "in FileDataset(..., weight=...)"
            )
        if (weight := dataset.weight_key()) is None:
            return self
        keys = (*self.keys, weight)
        dataset.check_dtypes(keys)
        return replace(self, keys=keys, structure=replace(self.structure, weighted=True))

    def files_of(self, numbers: Sequence[int]) -> FilePart | None:
        """Return what a task on these files needs to read them, or ``None`` for blocks."""
        return None if self.dataset is None else self.dataset.part(numbers, self.keys)

    def load(self, number: int) -> list[Block]:
        """Return the columns of a block, for a task in this process; none for files."""
        return [load_block(list(tensor.blocks())[number]) for tensor in self.columns.values()]

    def locate_nan(self, error: BaseException) -> None:
        """Add the first row of the arrays that has NaN, if any, to a ``DivergedError``."""
        is_in_arrays = isinstance(error, DivergedError) and self.reader is None
        for name, column in self.columns.items() if is_in_arrays else ():
            first = 0
            for block in column.blocks():
                if isinstance(block, np.ndarray | torch.Tensor):
                    bad = torch.isnan(as_tensor(block)).reshape(len(block), -1).any(dim=1)
                    if bad.any():
                        row = first + int(bad.int().argmax())
                        error.add_note(f"row {row} of {name} has NaN, the first one in the data.")
                        return
                first += len(block)

    def check_readable(self, unread: int, measured: Sequence[Measured]) -> None:
        """Raise ``BadFileError`` if no file of a whole epoch could be read, ``ValueError`` if
        streams are empty.

        ``unread`` is the number of samples that could not be read since the last one that could;
        ``measured`` are the measurements of the last round.
        """
        if unread >= self.number_samples:
            skipped = [*chain.from_iterable(part.skipped.items() for part in measured)]
            if not skipped:
                raise ValueError(
                    "the IterableDataset gave no samples in a whole epoch: each epoch iterates "
                    "over it anew, so that __iter__ has to begin from the start, and by default "
                    "every worker takes its part of it"
                )
            file, reason = skipped[0]
            raise BadFileError(file, f"{reason}; nor can any other file be read")

    def shares(self, shuffle: Shuffle) -> int:
        """Return the number of blocks, files or samples to distribute: only this number of workers
        get any.
        """
        return self.number_samples if shuffle == "partial" else len(self.sizes)


def as_data_source(
    x: Any,
    y: Any,
    blocks: int,
    *,
    targets: bool = True,
    floats: Callable[[], str | None] = lambda: None,
) -> DataSource:
    """Return the source of ``x`` and ``y``: blocked tensors, arrays that are cut into ``blocks``
    blocks, or files.

    Both may be tuples, lists or dicts of these. If some are in blocks, arrays are cut into the same
    blocks.

    Without ``targets``, only x is read from files. Floating-point columns of tables are converted
    to what ``floats`` returns.

    Raises ``ValueError`` and ``TypeError`` for unsuitable data.
    """
    if isinstance(x, FileDataset):
        return _files(x, y, targets, floats())
    samples = None if isinstance(x, np.ndarray | torch.Tensor | BlockedTensor) else as_samples(x)
    if samples is not None:
        if y is not None:
            raise TypeError(
                f"y is a {type(y).__name__}, but x is a {type(x).__name__}, whose samples have "
                "targets in them; leave y out, or say which part it is with Samples(dataset, "
                "x=..., y=...)"
            )
        if samples.tensors is None:
            return _read(samples, blocks if targets or not samples.is_stream else 1, floats())
        x, y = samples.tensors
    structure, columns = columns_of(x, "x")
    of_y, more = (None, {}) if y is None else columns_of(y, "y")
    columns |= more
    notes = list[str]()
    remarks = list[str]()
    coding = Coding()
    indexes = dict[str, Any]()
    for name, value in columns.items():
        if isinstance(value, np.ndarray | torch.Tensor | BlockedTensor):
            continue
        if holds_targets(value):
            raise TypeError(
                f"a {type(value).__name__} holds samples and targets; give it as x, without y"
            )
        if is_frame(value):
            frame = frame_as_array(value, name, floats())
            columns[name] = frame.array
            notes = notes + frame.notes
            remarks = remarks + frame.remarks
            coding = coding | frame.coding
            if (index := getattr(value, "index", None)) is not None:  # pandas's
                indexes[name] = index
                notes += _other_order(*next(iter(indexes.items())), name, index)
    blocked = _in_same_blocks(columns, blocks)
    return DataSource(
        columns=blocked,
        structure=ColumnStructure(structure, of_y, ragged=bool(names_of_sequences(blocked))),
        batch_size=None if samples is None else samples.batch_size,
        notes=tuple(notes),
        remarks=tuple(remarks),
        coding=coding,
    )


def names_of_sequences(columns: Mapping[str, BlockedTensor]) -> list[str]:
    """Return the names of the columns whose blocks are ``Ragged``."""
    return [name for name, column in columns.items() if isinstance(next(column.blocks()), Ragged)]


def _other_order(first: str, index: Any, name: str, other: Any) -> list[str]:
    """Return a note on two frames if the index of one has the labels of the other's in another
    order.
    """
    if len(index) != len(other) or index.equals(other) or not (index.is_unique and other.is_unique):
        return []
    if len(index.difference(other, sort=False)):
        return []
    return [
        f"{first} and {name} have the same index in another order, and rows are paired by their "
        f"positions; {name}.loc[{first}.index] pairs them by the index"
    ]


def holds_targets(value: Any) -> bool:
    """Return whether data given as x include y, as files, data sets and loaders do."""
    return isinstance(value, FileDataset) or as_samples(value) is not None


def _in_same_blocks(columns: Mapping[str, Any], number: int) -> dict[str, BlockedTensor]:
    """Return columns as blocked tensors with equal blocks: those of the first column that has
    blocks.
    """
    blocks = next(
        (as_blocked(value, number) for value in columns.values() if hasattr(value, "tensors")),
        number,
    )
    blocked = {name: as_blocked(value, blocks, name) for name, value in columns.items()}
    first, *others = blocked
    for name in others:
        check_paired(blocked[first], blocked[name], name)
    return blocked


def _read(samples: Samples, blocks: int, floats: str | None) -> DataSource:
    """Return the source of samples in ``blocks`` blocks, unless they set their own number; checks
    one sample.
    """
    sizes = samples.sizes(blocks)
    reader = samples.reader(len(sizes), floats)
    if reader.is_stream:
        numbers = [np.full(size, shard) for shard, size in enumerate(sizes)]
    else:
        numbers = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        with IN_PROCESS, random_state(0, "cpu"):
            reader.read_first()
    x = BlockedTensor([[block] for block in numbers])
    return DataSource(
        columns={"x": x}, reader=reader, batch_size=samples.batch_size, notes=reader.notes
    )


def _files(dataset: FileDataset, y: Any, targets: bool, floats: str | None) -> DataSource:
    if y is not None:
        raise TypeError(
            f"y is a {type(y).__name__}, but x is a FileDataset, whose files hold the targets "
            "too; leave y out, and name the array of targets in FileDataset(..., y=...)"
        )
    if isinstance(dataset.reader, CustomReader):
        check_picklable(reader=dataset.reader.function)
    keys = dataset.training_keys(targets=targets)
    dataset.check_dtypes(keys)
    converted = dataset if floats is None else dataset.with_floats(floats)
    own = dataset.layout or {}
    now = converted.layout or {}
    changed = [key for key in keys if own[key] != now[key]]
    notes = [conversion_note(own[changed[0]].dtype, now[changed[0]].dtype)] if changed else []
    remarks = []
    for key, columns in getattr(dataset.reader, "groups", {}).items():
        if key in keys and np.dtype(dtype := now[key].dtype).kind == "f":
            codes = [column for column in columns if column in dataset.classes]
            integers = [column for column in columns if column in dataset.integers]
            notes += [codes_note(codes, key, dtype)] if codes else []
            remarks += [integers_remark(integers, key, dtype)] if integers else []
    return DataSource(
        dataset=converted,
        keys=keys,
        structure=ColumnStructure(template_of(dataset.x), template_of(dataset.y)),
        notes=tuple(notes),
        remarks=tuple(remarks),
        coding=_coding_of_files(dataset, keys),
    )


def _coding_of_files(dataset: FileDataset, keys: Sequence[str]) -> Coding:
    """Return what the numbers in files mean, in the words for frames: either may be compared with
    the other.
    """
    coding = Coding()
    for name, key in zip([*places(dataset.x, "x"), *places(dataset.y, "y")], keys, strict=False):
        columns = getattr(dataset.reader, "groups", {}).get(key)
        if columns is not None:
            coding[columns_key(name)] = tuple(columns)
        for column in (key,) if columns is None else columns:
            if (classes := dataset.classes.get(column)) is not None:
                coding[classes_key(name, None if columns is None else column)] = plain_classes(
                    classes
                )
    return coding


def check_same_coding(
    training: Coding, data: DataSource, name: str, before: str = "the training data"
) -> None:
    """Raise ``ValueError`` if the numbers of data, called ``name``, mean other things than
    ``before``.

    Strings, images and categories may have other classes, and frames their columns in another
    order.
    """
    for what, values in data.coding.items():
        if values != (own := training.get(what, values)):
            advice = (
                (
                    "give both data sets the same x=, y= and classes=, as in FileDataset(..., "
                    "classes=train.classes)"
                )
                if data.dataset is not None
                else "give both the same columns and dtypes, "
                "frame[train.columns].astype(train.dtypes), or in polars "
                "frame.cast(train.schema) with a polars.Enum of all classes in place of "
                "Categorical"
            )
            raise ValueError(
                f"{what} are {list(values)} in {name}, but {list(own)} in {before}; {advice}"
            )


class PublishedData:
    """The blocks of a data source, which an engine holds, or the names of its files; tasks get them
    by number.
    """

    def __init__(self, engine: Engine, source: DataSource) -> None:
        self.engine = engine
        self.source = source
        columns = source.columns.values()
        blocks = [block for tensor in columns for block in tensor.blocks()]
        self.mapped = engine.traits.shared_memory or all(map(is_on_file, blocks))
        """Whether a task reads only the rows that it uses from a block."""
        together = engine.traits.pays_by_value and len(columns) > 1
        if together and not any(isinstance(block, RemoteBlock) for block in blocks):
            rows = zip(*(tensor.blocks() for tensor in columns), strict=True)
            self._columns = [[engine.publish(row) for row in rows]]
        else:
            self._columns = [_publish_blocks(engine, tensor) for tensor in columns]
        """References to the blocks of each column, or to those of all columns where every value is
        costly.
        """
        on_file = (
            str(block.filename)
            for block in blocks
            if isinstance(block, np.memmap) and is_on_file(block)
        )
        self._stamps = {
            name: locations.file_stamp(name) for name in {*map(os.path.abspath, on_file)}
        }
        """The size and time of each memory-mapped file, to notice changes."""

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The number of the first sample of each block or file."""
        return tuple(accumulate(self.source.sizes[:-1], initial=0))

    def values(self, numbers: Sequence[int]) -> list[Ref]:
        """Return the values for a task on these blocks; none for files."""
        return [column[number] for column in self._columns for number in numbers]

    def holding(self, samples: np.ndarray[Any, Any]) -> tuple[int, ...]:
        """Return the numbers of the blocks that hold these samples, ascending; all if few would be
        left out.
        """
        if len(samples) >= len(self.starts):
            return tuple(range(len(self.starts)))
        return tuple(sorted({*(np.searchsorted(self.starts, samples, side="right") - 1).tolist()}))

    def warn_of_changes(self) -> None:
        """Warn of memory-mapped files that have changed since they were published."""
        for name, stamp in self._stamps.items():
            if os.path.exists(name) and locations.file_stamp(name) != stamp:
                warn_user(
                    f"{name} changed while it was in use: results are those of old and of "
                    "new values"
                )


def _publish_blocks(engine: Engine, tensor: BlockedTensor) -> list[Ref]:
    """Publish the blocks of a tensor.

    If the engine keeps values in shared memory, the blocks become views of them in this tensor,
    which is a data source's own: no second copy is held of what was converted for the fit.
    """
    refs: list[Ref] = []
    for row in tensor.tensors:
        for column, block in enumerate(row):
            foreign = isinstance(block, RemoteBlock) and block.home != engine.name
            refs.append(engine.publish(load_block(block) if foreign else block))
            if engine.traits.shared_memory and not isinstance(block, np.memmap | RemoteBlock):
                held = engine.peek(refs[-1])
                row[column] = block if held is None else held
    return refs
