"""``DataSource``: the samples of a fit or an evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from compss_train._utils.nested import leaves, rebuilt
from compss_train._utils.validation import warn_user
from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import Block, as_block, load_block
from compss_train.data.blocked import as_blocked_like, as_weights, check_paired, fingerprint
from compss_train.data.columns import ColumnStructure, named_columns, structured
from compss_train.data.frames import without_frames
from compss_train.data.partitioning import Shuffle
from compss_train.data.ragged import as_ragged
from compss_train.data.readers import CustomReader
from compss_train.data.reading import FilePart
from compss_train.data.sample_reading import SampleReader
from compss_train.data.samples import Samples, as_samples
from compss_train.data.tables import conversion_note
from compss_train.engines import Engine
from compss_train.model.random_state import random_state
from compss_train.training.build_arguments import check_picklable
from compss_train.training.fit_options import FitOptions
from compss_train.training.published_data import PublishedData, published_blocks


class DataSource(ABC):
    """Samples in blocks or in files, which an engine's tasks can be given."""

    unit: str
    """``"block"`` or ``"file"``, for messages."""
    notes: tuple[str, ...] = ()
    """What users of a fit should know about conversions of their data."""

    @property
    @abstractmethod
    def structure(self) -> ColumnStructure:
        """Which columns are x, y and weights."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """Samples of each block or file."""

    reader: SampleReader | None = None
    """What reads samples whose numbers are the data's only column; ``None`` for columns of samples."""
    batch_size: int | None = None
    """The number of samples in a batch that belongs to the data, those of a ``DataLoader``."""

    @property
    def counted(self) -> bool:
        """Whether ``sizes`` are known; otherwise they are 1."""
        return self.reader is None or self.reader.counted

    def check_options(self, options: FitOptions, schedule_steps: int) -> None:
        """Raise ``ValueError`` for options of a fit that these data do not go with."""
        return

    @property
    def fingerprint(self) -> int | None:
        """A checksum of some rows, to detect other data of the same sizes; ``None`` if it would be costly."""
        return None

    @abstractmethod
    def weighted(self, sample_weight: Any) -> DataSource:
        """Return this source for training, with a weight for each sample if the data have weights.

        Raises ``ValueError`` and ``TypeError`` for invalid weights.
        """

    @abstractmethod
    def publish(self, engine: Engine) -> PublishedData:
        """Make the samples available to the tasks of an engine."""

    @abstractmethod
    def load(self, number: int) -> tuple[Any, list[Block]]:
        """Return one block or file as the arguments of a task in this process: x, and the other columns."""

    @property
    def number_samples(self) -> int:
        """Number of samples."""
        return sum(self.sizes)

    def shares(self, shuffle: Shuffle) -> int:
        """Return how many blocks, files or samples are distributed: so many workers, the first ones, get some."""
        return self.number_samples if shuffle == "partial" else len(self.sizes)

    def warn_of_idle_workers(self, num_workers: int, shuffle: Shuffle) -> None:
        """Warn if there are more workers than blocks, files or samples to distribute."""
        parts, unit = self.shares(shuffle), "sample" if shuffle == "partial" else self.unit
        if num_workers > parts:
            enough = f"cut the data into at least {num_workers} {unit}s"
            if num_workers > self.number_samples:
                enough = f"there are {self.number_samples} samples, enough for as many workers at most"
            idle = num_workers - parts
            warn_user(
                f"{num_workers} workers share {parts} {unit}{'' if parts == 1 else 's'}, so that {idle} "
                f"{'has' if idle == 1 else 'have'} nothing to train; {enough}"
            )


@dataclass(frozen=True)
class BlockedSource(DataSource):
    """Blocked tensors, or tuples, lists and dicts of them."""

    x: Any
    y: Any
    weight: BlockedTensor | None = None
    notes: tuple[str, ...] = ()
    unit = "block"

    @property
    def structure(self) -> ColumnStructure:
        """Which columns are x, y and weights."""
        ragged = [*filter(None, (as_ragged(next(each.blocks())) for each in self._columns))]
        bucketed = any(block.bucket_by_length for block in ragged)
        own = ColumnStructure.of(self.x, self.y)
        return replace(own, ragged=bool(ragged), bucketed=bucketed, weighted=self.weight is not None)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each block."""
        return self._columns[0].sizes

    @cached_property
    def fingerprint(self) -> int | None:
        """A checksum of some rows of each block, computed on first use, as blocks may be on a slow disk."""
        return fingerprint(self._columns)

    def publish(self, engine: Engine) -> PublishedData:
        """Publish the blocks."""
        is_stream = self.reader is not None and self.reader.is_stream
        return published_blocks(engine, self._columns, self.structure, may_skip=is_stream)

    def load(self, number: int) -> tuple[list[Block], list[Block]]:
        """Return the block of the first column, and those of the others."""
        x, *others = (load_block(list(tensor.blocks())[number]) for tensor in self._columns)
        return [x], others

    @property
    def _columns(self) -> list[BlockedTensor]:
        return [tensor for tensor in leaves((self.x, self.y, self.weight)) if tensor is not None]

    def weighted(self, sample_weight: Any) -> DataSource:
        """Return this source with these weights, in blocks like those of x or in an array."""
        return self if sample_weight is None else replace(self, weight=as_weights(sample_weight, self._columns[0]))


@dataclass(frozen=True)
class ReadSource(BlockedSource):
    """Samples of a data set that workers read: the blocks of the only column have their numbers."""

    reader: SampleReader | None = None
    batch_size: int | None = None

    @classmethod
    def of(cls, samples: Samples, blocks: int, floats: str | None) -> ReadSource:
        """Return the source of samples in so many blocks, unless they say otherwise; reads one, to check it."""
        sizes = samples.sizes(blocks)
        reader = samples.reader(len(sizes), floats)
        if reader.is_stream:
            numbers = [np.full(size, shard) for shard, size in enumerate(sizes)]
        else:
            numbers = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
            with random_state(0, "cpu"):
                reader.read_first()
        return cls(
            BlockedTensor([[block] for block in numbers]),
            None,
            reader=reader,
            batch_size=samples.batch_size,
            notes=reader.notes,
        )

    @cached_property
    def fingerprint(self) -> int | None:
        """A checksum of some samples, if they are read fast."""
        stops = tuple(accumulate(self.sizes))
        return None if self.reader is None else self.reader.fingerprint((0, *stops[:-1]), stops)

    def check_options(self, options: FitOptions, schedule_steps: int) -> None:
        """Raise ``ValueError`` for options of a fit that need samples by number, or how many there are."""
        if self.reader is None or not self.reader.is_stream:
            return
        if options.buffer is not None or options.order in ("total", "partial"):
            mixing = f"shuffle={options.shuffle!r}" if options.buffer is None else "buffer="
            raise ValueError(
                f"{mixing} takes samples out of their order, and an IterableDataset has no other; leave it "
                "out, and let the data set shuffle"
            )
        needing = {
            f"Merge(unit={options.merge.unit!r})": options.merge.unit != "epochs",
            f"num_batches_per_worker={options.num_batches_per_worker}": options.num_batches_per_worker is not None,
            f"Schedule(steps={schedule_steps})": schedule_steps > 1,
        }
        given = [name for name, is_given in needing.items() if is_given]
        if given and not self.counted:
            raise ValueError(
                f"{given[0]} needs the number of samples in an epoch: give Samples(dataset, size=...), or leave it "
                "out"
            )

    def weighted(self, sample_weight: Any) -> DataSource:
        """Return this source with a weight for each sample by number."""
        if sample_weight is not None and self.reader is not None and self.reader.is_stream:
            raise TypeError(
                "sample_weight belongs to samples with numbers, which those of an IterableDataset have not; let "
                "the data set yield weights as a part of y, and weight the loss in a training_step"
            )
        return super().weighted(sample_weight)


@dataclass(frozen=True)
class FilesSource(DataSource):
    """Files that workers read."""

    dataset: FileDataset
    keys: tuple[str, ...]
    has_weights: bool = False
    notes: tuple[str, ...] = ()
    unit = "file"

    @property
    def structure(self) -> ColumnStructure:
        """Which columns are x, y and weights."""
        return ColumnStructure(weighted=self.has_weights)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each file."""
        return self.dataset.sizes

    def publish(self, engine: Engine) -> PublishedData:
        """Return the names of the files, which tasks read themselves."""
        return PublishedData(
            engine=engine,
            sizes=self.sizes,
            structure=self.structure,
            files=self.dataset,
            keys=self.keys,
            may_skip=self.dataset.on_bad_file == "skip",
        )

    def load(self, number: int) -> tuple[FilePart, list[Block]]:
        """Return the part of the data set with this file, which holds all columns."""
        return self.dataset.part([number], self.keys), []

    def weighted(self, sample_weight: Any) -> DataSource:
        """Return this source with the weights in the files, if the data set names them."""
        if sample_weight is not None:
            raise TypeError(
                f"sample_weight is a {type(sample_weight).__name__}, but x is a FileDataset, whose files hold the "
                "weights too; leave sample_weight out, and name the array in FileDataset(..., weight=...)"
            )
        if (weight := self.dataset.weight_key()) is None:
            return self
        keys = (*self.keys, weight)
        self.dataset.check_dtypes(keys)
        return replace(self, keys=keys, has_weights=True)


def as_data_source(
    x: Any, y: Any, num_workers: int, *, targets: bool = True, floats: str | None = None
) -> DataSource:
    """Return the source of ``x`` and ``y``: blocked tensors, arrays that are cut into a block a worker, or files.

    Both may be tuples, lists or dicts of these. If some are in blocks, arrays are cut into the same blocks.

    Without ``targets`` only the samples are read from files. Numbers with a fraction in tables become ``floats``.

    Raises ``ValueError`` and ``TypeError`` for unsuitable data.
    """
    if isinstance(x, FileDataset):
        return _files(x, y, targets, floats)
    if (samples := as_samples(x)) is not None:
        if y is not None:
            raise TypeError(
                f"y is a {type(y).__name__}, but x is a {type(x).__name__}, whose samples have targets in them; "
                "leave y out, or say which part it is with Samples(dataset, x=..., y=...)"
            )
        if samples.tensors is None:
            return ReadSource.of(samples, num_workers if targets or not samples.is_stream else 1, floats)
        x, y = samples.tensors
    (x, x_notes), (y, y_notes) = without_frames(x, "x", floats), without_frames(y, "y", floats)
    both = structured(x), None if y is None else structured(y)
    named = [*named_columns(both[0], "x"), *([] if y is None else named_columns(both[1], "y"))]
    blocked = _blocked_columns(named, num_workers)
    own = len(leaves(both[0]))
    ys = None if y is None else rebuilt(both[1], blocked[own:])
    return BlockedSource(rebuilt(both[0], blocked[:own]), ys, notes=(*x_notes, *y_notes))


def holds_targets(value: Any) -> bool:
    """Return whether data given as x have y in them: files, data sets and loaders."""
    return isinstance(value, FileDataset) or as_samples(value) is not None


def batch_size_of(x: Any) -> int | None:
    """Return the batch size of a ``DataLoader``, ``None`` for other data."""
    samples = as_samples(x)
    return None if samples is None else samples.batch_size


def _blocked_columns(named: Sequence[tuple[str, Any]], num_workers: int) -> list[BlockedTensor]:
    """Return columns as blocked tensors with the same blocks, those of the first one that is in blocks."""
    ready = {name: as_blocked(value, num_workers) for name, value in named if not _is_array(value)}
    reference = next(iter(ready.values()), None)
    for name, value in named:
        if name not in ready and reference is not None:
            ready[name] = as_blocked_like(value, reference, name)
        elif name not in ready:
            ready[name] = as_blocked(value, num_workers)
    first, *others = (name for name, _ in named)
    for name in others:
        check_paired(ready[first], ready[name], name)
    return [ready[name] for name, _ in named]


def _is_array(value: object) -> bool:
    return not (isinstance(value, BlockedTensor) or holds_targets(value) or hasattr(value, "tensors"))


def _files(dataset: FileDataset, y: Any, targets: bool, floats: str | None) -> FilesSource:
    if y is not None:
        raise TypeError(
            f"y is a {type(y).__name__}, but x is a FileDataset, whose files hold the targets too; leave y out, "
            "and name the array of targets in FileDataset(..., y=...)"
        )
    if isinstance(dataset.reader, CustomReader):
        check_picklable(reader=dataset.reader.function)
    keys = dataset.training_keys(targets=targets)
    dataset.check_dtypes(keys)
    if floats is None:
        return FilesSource(dataset, keys)
    converted = dataset.with_floats(floats)
    return FilesSource(converted, keys, notes=_conversions(dataset, converted, keys))


def check_same_classes(data: DataSource, validation: DataSource) -> None:
    """Raise ``ValueError`` if strings or images of the validation data are numbered as other classes."""
    if not isinstance(data, FilesSource) or not isinstance(validation, FilesSource):
        return
    own, others = data.dataset.classes, validation.dataset.classes
    for name in own:
        if list(others.get(name, own[name])) != list(own[name]):
            raise ValueError(
                f"{name!r} has the classes {list(others[name])} in the validation data, but {list(own[name])} in "
                "the training data; give FileDataset(..., classes=train.classes) for the former"
            )


def _conversions(before: FileDataset, after: FileDataset, keys: Sequence[str]) -> tuple[str, ...]:
    """Return a note for the arrays whose dtype differs."""
    own, now = before.layout or {}, after.layout or {}
    changed = [key for key in keys if own[key] != now[key]]
    return (conversion_note(changed, own[changed[0]].dtype, now[changed[0]].dtype),) if changed else ()


def as_blocked(value: object, num_workers: int) -> BlockedTensor:
    """Return ``value`` as a blocked tensor.

    Accepts a ``BlockedTensor``, anything with a grid of blocks in ``.tensors`` as dislib's Tensor has, and an
    array or tensor, which is cut into a block a worker.
    """
    if isinstance(value, BlockedTensor):
        return value
    if holds_targets(value):
        raise TypeError(f"a {type(value).__name__} holds samples and targets; give it as x, without y")
    if hasattr(value, "tensors"):
        return BlockedTensor.from_dislib(value)
    block = as_block(value)
    if len(block) == 0:
        raise ValueError("the array has no samples")
    return BlockedTensor.from_array(block, (min(num_workers, len(block)), 1))
