"""``DataSource``: the samples of a fit or an evaluation, made of what users give."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, islice
from typing import Any, Self

import numpy as np
import torch

from compss_train._utils.nested import leaves, places, template_of
from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import Block, as_tensor, copy_block
from compss_train.data.blocked import as_blocked, as_weights, check_paired, fingerprint
from compss_train.data.coding import Coding, classes_key, columns_key, plain_classes
from compss_train.data.columns import SINGLE, ColumnStructure, columns_of
from compss_train.data.conversions import codes_note, conversion_note, integers_remark
from compss_train.data.frames import frame_as_array, is_frame
from compss_train.data.partitioning import Shuffle
from compss_train.data.readers import CustomReader
from compss_train.data.reading import FilePart
from compss_train.data.remote_block import RemoteBlock, load_block
from compss_train.data.sample_reading import SampleReader
from compss_train.data.samples import Samples, as_samples, is_ray_data
from compss_train.exceptions import BadFileError, DivergedError
from compss_train.model.devices import IN_PROCESS, random_state
from compss_train.model.measurements import Measured
from compss_train.training.pickling import check_picklable

EXAMPLE_ROWS = 8
"""Samples of an example."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DataSource:
    """The samples of a fit or an evaluation: blocks of several columns, or files with all columns.

    For a data set that workers read, the only column holds the sample numbers.
    ``trainer.configuration`` has the fields with a ``repr``.
    """

    columns: Mapping[str, BlockedTensor] = field(default_factory=dict)
    """The columns of x, y and weights, in the same blocks, by their names in messages.

    Files have none.
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
    is_ray_data: bool = field(default=False, repr=False)
    """Whether the blocks are those of a data set of Ray."""
    index: tuple[str, Any] | None = field(default=None, repr=False)
    """The name of the first frame of pandas among the columns, and its index."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each block or file."""
        if self.dataset is not None:
            return self.dataset.sizes
        first_column = next(iter(self.columns.values()))
        return first_column.sizes

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
        """Whether files may be skipped, or streams may end before the planned number of samples."""
        return self.is_stream or (self.dataset is not None and self.dataset.on_bad_file == "skip")

    @cached_property
    def fingerprint(self) -> int | None:
        """A checksum of some rows or bytes, to detect other data of the same sizes.

        ``None`` if it would be costly.
        """
        if self.dataset is not None:
            return self.dataset.fingerprint()
        if self.reader is None:
            return fingerprint(self.columns.values())
        stops = tuple(accumulate(self.sizes))
        return self.reader.fingerprint((0, *stops[:-1]), stops)

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """The names of the classes of y, by their indices; ``None`` if it has none."""
        of_columns = [
            classes
            for meaning, classes in self.coding.items()
            if meaning == classes_key("y") or meaning.endswith(" in y")
        ]
        return of_columns[0] if len(of_columns) == 1 else None

    @property
    def without_targets(self) -> Self:
        """The source of the same samples without y and weights, as in a prediction."""
        inputs = len(leaves(self.structure.x))
        structure = replace(self.structure, y=None, weighted=False)
        columns = dict(islice(self.columns.items(), inputs))
        return replace(self, columns=columns, keys=self.keys[:inputs], structure=structure)

    def example(self) -> Self | None:
        """Return a copy of the first samples as one block, or the source itself if it is files.

        ``None`` if samples have to be read, or are not in this process.
        """
        if self.dataset is not None:
            return self
        if self.reader is not None:
            return None
        columns = {}
        for name, column in self.columns.items():
            block = next(column.blocks())
            if isinstance(block, RemoteBlock):
                return None
            columns[name] = as_blocked(copy_block(block[:EXAMPLE_ROWS]), 1, name)
        return replace(self, columns=columns, index=None)

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
        columns = {**self.columns, "sample_weight": weights}
        notes = self.notes
        if self.index is not None and is_frame(sample_weight) and hasattr(sample_weight, "index"):
            notes += tuple(_other_order(*self.index, "sample_weight", sample_weight.index))
        return replace(self, columns=columns, structure=structure, notes=notes)

    def _weighted_files(self, dataset: FileDataset, sample_weight: Any) -> Self:
        if sample_weight is not None:
            raise TypeError(
                f"sample_weight is a {type(sample_weight).__name__}, but x is a FileDataset, "
                "whose files hold the weights too; leave sample_weight out, and name the array "
                "in FileDataset(..., weight=...)"
            )
        weight_key = dataset.weight_key()
        if weight_key is None:
            return self
        keys = (*self.keys, weight_key)
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
        if not isinstance(error, DivergedError) or self.reader is not None:
            return
        for name, column in self.columns.items():
            block_start = 0
            for block in column.blocks():
                if isinstance(block, np.ndarray | torch.Tensor):
                    has_nan = torch.isnan(as_tensor(block)).reshape(len(block), -1).any(dim=1)
                    if has_nan.any():
                        row = block_start + int(has_nan.int().argmax())
                        error.add_note(f"row {row} of {name} has NaN, the first one in the data.")
                        return
                block_start += len(block)

    def check_readable(self, unread: int, measured: Sequence[Measured]) -> None:
        """Raise an error if nothing of a whole epoch could be read.

        ``unread`` is the number of samples that could not be read since the last one that could;
        ``measured`` are the measurements of the last round. Raises ``BadFileError`` for files,
        ``ValueError`` for streams.
        """
        if unread < self.number_samples:
            return
        skipped = [*chain.from_iterable(part.skipped.items() for part in measured)]
        if skipped:
            file, reason = skipped[0]
            raise BadFileError(file, f"{reason}; nor can any other file be read")
        raise ValueError(
            "the IterableDataset gave no samples in a whole epoch: each epoch iterates over it "
            "anew, so that __iter__ has to begin from the start, and by default every worker "
            "takes its part of it"
        )

    def check_counted(self, uncounted: int) -> None:
        """Raise ``ValueError`` if no target of a whole epoch counts.

        ``uncounted`` is the number of samples since the last one with a target that counts.
        """
        if self.counted and uncounted and uncounted >= self.number_samples:
            raise ValueError(
                f"no target of {uncounted} samples counts, so that nothing was trained: all are "
                "the class index that the loss ignores, or have weight 0; check y, the loss's "
                "ignore_index, sample_weight and class_weight"
            )

    def shares(self, shuffle: Shuffle) -> int:
        """Return how many blocks, files or samples are dealt: no more workers get any."""
        return self.number_samples if shuffle == "partial" else len(self.sizes)


def as_data_source(
    x: Any,
    y: Any,
    blocks: int,
    *,
    targets: bool = True,
    floats: Callable[[], str | None] = lambda: None,
    engine: str = "",
) -> DataSource:
    """Return the source of ``x`` and ``y``: tensors, files, or arrays to cut into ``blocks``.

    Both may be tuples, lists or dicts of these. If some are in blocks, arrays are cut into the same
    blocks.

    Without ``targets``, only x is read from files. Floating-point columns of tables are converted
    to what ``floats`` returns. ``engine`` is the name of the engine that will read the data.

    Raises ``ValueError`` and ``TypeError`` for unsuitable data.
    """
    if isinstance(x, FileDataset):
        return _source_of_files(x, y, floats(), targets=targets)
    samples = None if isinstance(x, np.ndarray | torch.Tensor | BlockedTensor) else as_samples(x)
    batch_size = None
    if samples is not None:
        if y is not None:
            raise TypeError(
                f"y is a {type(y).__name__}, but x is a {type(x).__name__}, whose samples have "
                "targets in them; leave y out, or say which part it is with Samples(dataset, "
                "x=..., y=...)"
            )
        if is_ray_data(samples.dataset):
            return _source_of_ray_data(samples, floats(), engine)
        if samples.tensors is None:
            parts = blocks if targets or not samples.is_stream else 1
            return _source_of_samples(samples, parts, floats())
        x, y = samples.tensors
        batch_size = samples.batch_size
    x_structure, columns = columns_of(x, "x")
    y_structure = None
    if y is not None:
        y_structure, y_columns = columns_of(y, "y")
        columns |= y_columns
    converted = _without_frames(columns, floats)
    blocked = _in_same_blocks(converted.columns, blocks)
    is_ragged = bool(names_of_sequences(blocked))
    return DataSource(
        columns=blocked,
        structure=ColumnStructure(x_structure, y_structure, ragged=is_ragged),
        batch_size=batch_size,
        notes=tuple(converted.notes),
        remarks=tuple(converted.remarks),
        coding=converted.coding,
        index=converted.index,
    )


@dataclass
class _Converted:
    """Columns whose frames have become arrays."""

    columns: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    coding: Coding = field(default_factory=dict)
    index: tuple[str, Any] | None = None
    """The name of the first frame of pandas, and its index."""


def _without_frames(columns: Mapping[str, Any], floats: Callable[[], str | None]) -> _Converted:
    """Return columns with arrays in place of frames, and what there is to say of these.

    Raises ``TypeError`` for data that hold samples and targets.
    """
    converted = _Converted({**columns})
    problems: list[str] = []
    for name, value in columns.items():
        if isinstance(value, np.ndarray | torch.Tensor | BlockedTensor):
            continue
        if holds_targets(value):
            raise TypeError(
                f"a {type(value).__name__} holds samples and targets; give it as x, without y"
            )
        if not is_frame(value):
            continue
        try:
            frame = frame_as_array(value, name, floats())
        except ValueError as error:
            problems.append(str(error))
            continue
        converted.columns[name] = frame.array
        converted.notes += frame.notes
        converted.remarks += frame.remarks
        converted.coding |= frame.coding
        index = getattr(value, "index", None)  # pandas's
        if index is not None:
            if converted.index is not None:
                converted.notes += _other_order(*converted.index, name, index)
            converted.index = converted.index or (name, index)
    if problems:
        raise ValueError("\n".join(problems))
    return converted


def names_of_sequences(columns: Mapping[str, BlockedTensor]) -> list[str]:
    """Return the names of the columns whose blocks are ``Ragged``, here or remote."""
    first_blocks = {name: next(column.blocks()) for name, column in columns.items()}
    return [name for name, block in first_blocks.items() if block.shape[1:2] == (-1,)]


def _other_order(name: str, index: Any, other_name: str, other_index: Any) -> list[str]:
    """Return a note on two frames whose indexes have the same labels in another order."""
    if len(index) != len(other_index) or index.equals(other_index):
        return []
    if not (index.is_unique and other_index.is_unique):
        return []
    if len(index.difference(other_index, sort=False)):
        return []
    return [
        f"{name} and {other_name} have the same index in another order, and rows are paired by "
        f"their positions; {other_name}.loc[{name}.index] pairs them by the index"
    ]


def holds_targets(value: Any) -> bool:
    """Return whether data given as x include y, as files, data sets and loaders do."""
    return isinstance(value, FileDataset) or as_samples(value) is not None


def _in_same_blocks(columns: Mapping[str, Any], number: int) -> dict[str, BlockedTensor]:
    """Return columns in equal blocks: those of the first one in blocks, else this ``number``."""
    blocks: BlockedTensor | int = number
    for value in columns.values():
        if hasattr(value, "tensors"):
            blocks = as_blocked(value, number)
            break
    blocked = {name: as_blocked(value, blocks, name) for name, value in columns.items()}
    first_column = next(iter(blocked.values()))
    for name, column in blocked.items():
        if column is not first_column:
            check_paired(first_column, column, name)
    return blocked


def _source_of_samples(samples: Samples, blocks: int, floats: str | None) -> DataSource:
    """Return the source of samples in ``blocks`` blocks, unless they set their own number.

    Reads one sample, as a check.
    """
    sizes = samples.sizes(blocks)
    reader = samples.reader(len(sizes), floats)
    if reader.is_stream:
        numbers = [np.full(size, shard) for shard, size in enumerate(sizes)]
    else:
        numbers = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        with IN_PROCESS, random_state(0, "cpu"):
            reader.read_first()
    remarks: tuple[str, ...] = ()
    if not reader.counted and not hasattr(samples.dataset, "__len__"):
        remarks = (
            f"an epoch lasts until the {type(samples.dataset).__name__} ends; of one without an "
            "end, give Samples(dataset, size=...)",
        )
    return DataSource(
        columns={"x": BlockedTensor([[block] for block in numbers])},
        reader=reader,
        batch_size=samples.batch_size,
        notes=reader.notes,
        remarks=remarks,
    )


def _source_of_ray_data(samples: Samples, floats: str | None, engine: str) -> DataSource:
    """Return the source of a data set of Ray, in its blocks, which stay where they are."""
    if engine != "ray":
        raise TypeError(
            f"x is a Ray data set, whose blocks only the ray engine can read, and this is the "
            f"{engine or 'local'} engine: use engine='ray', or files, "
            "dataset.write_parquet('folder') and FileDataset('folder/*.parquet', x=..., y=...)"
        )
    # It imports ray.
    datasets = importlib.import_module("compss_train.engines.ray.datasets")
    layout, columns = datasets.columns_of(samples.dataset, samples.roles, floats)
    is_ragged = bool(names_of_sequences(columns))
    return DataSource(
        columns=columns,
        structure=ColumnStructure(layout.x, layout.y, ragged=is_ragged),
        is_ray_data=True,
        notes=layout.notes,
        remarks=layout.remarks,
        coding=layout.coding,
    )


def _source_of_files(
    dataset: FileDataset, y: Any, floats: str | None, *, targets: bool
) -> DataSource:
    """Return the source of files, with their floating-point columns in ``floats`` if given."""
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
    notes, remarks = _file_conversions(dataset, converted, keys)
    return DataSource(
        dataset=converted,
        keys=keys,
        structure=ColumnStructure(template_of(dataset.x), template_of(dataset.y)),
        notes=tuple(notes),
        remarks=tuple(remarks),
        coding=_coding_of_files(dataset, keys),
    )


def _file_conversions(
    dataset: FileDataset, converted: FileDataset, keys: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return notes and remarks on the conversions of floating-point columns of files."""
    layout = dataset.layout or {}
    new_layout = converted.layout or {}
    notes: list[str] = []
    remarks: list[str] = []
    changed = [key for key in keys if layout[key] != new_layout[key]]
    if changed:
        notes.append(conversion_note(layout[changed[0]].dtype, new_layout[changed[0]].dtype))
    for key, columns in getattr(dataset.reader, "groups", {}).items():
        if key not in keys or np.dtype(new_layout[key].dtype).kind != "f":
            continue
        codes = [column for column in columns if column in dataset.classes]
        if codes:
            notes.append(codes_note(codes, key, new_layout[key].dtype))
        integers = [column for column in columns if column in dataset.integers]
        if integers:
            remarks.append(integers_remark(integers, key, new_layout[key].dtype))
    return notes, remarks


def _coding_of_files(dataset: FileDataset, keys: Sequence[str]) -> Coding:
    """Return what the numbers in files mean, in the words for frames, to compare them."""
    coding = Coding()
    names = [*places(dataset.x, "x"), *places(dataset.y, "y")]
    groups = getattr(dataset.reader, "groups", {})
    for name, key in zip(names, keys, strict=False):
        if key in groups:
            columns = {column: classes_key(name, column) for column in groups[key]}
            coding[columns_key(name)] = tuple(columns)
        else:
            columns = {key: classes_key(name)}
        for column, meaning in columns.items():
            classes = dataset.classes.get(column)
            if classes is not None:
                coding[meaning] = plain_classes(classes)
    return coding


def check_same_coding(
    training: Coding, data: DataSource, name: str, before: str = "the training data"
) -> None:
    """Raise ``ValueError`` if the numbers of data, called ``name``, mean others than ``before``.

    Strings, images and categories may have other classes, and frames their columns in another
    order.
    """
    advice = (
        "give both the same columns and dtypes, frame[train.columns].astype(train.dtypes), or in "
        "polars frame.cast(train.schema) with a polars.Enum of all classes in place of Categorical"
    )
    if data.dataset is not None:
        advice = (
            "give both data sets the same x=, y= and classes=, as in FileDataset(..., "
            "classes=train.classes)"
        )
    for meaning, values in data.coding.items():
        training_values = training.get(meaning, values)
        if values != training_values:
            raise ValueError(
                f"{meaning} are {list(values)} in {name}, but {list(training_values)} in "
                f"{before}; {advice}"
            )
