"""``DataSource``: the samples of a fit or an evaluation; ``DataHandles``: an engine's references to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from compss_train._utils.nested import leaves, rebuilt
from compss_train._utils.validation import warn_user
from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import Block, RemoteBlock, as_block, load_block
from compss_train.data.blocked import as_blocked_like, as_weights, check_paired, fingerprint
from compss_train.data.columns import ColumnStructure, named_columns, structured
from compss_train.data.partitioning import Shuffle
from compss_train.data.ragged import Ragged
from compss_train.data.readers import CustomReader
from compss_train.data.reading import FilePart
from compss_train.engines import Engine, Ref
from compss_train.engines.codec import is_on_file
from compss_train.training.build_arguments import check_picklable


class DataHandles(ABC):
    """Blocks or files, which tasks are given by number."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.starts = tuple(accumulate(sizes[:-1], initial=0))
        self._starts = np.array(self.starts)

    mapped: bool
    """Whether a task that is given a block reads only the rows that it uses."""
    may_skip = False
    """Whether tasks may skip files, and then have fewer samples than planned."""
    reads_ahead = False
    """Whether tasks read the files of the next round ahead."""
    structure: ColumnStructure
    """Which of their columns are x, y and weights."""

    @abstractmethod
    def select(self, numbers: Sequence[int], upcoming: Sequence[int] = ()) -> tuple[Any, list[Ref]]:
        """Return the arguments of a task on these blocks: x (or a part of a data set), and the other columns.

        ``upcoming`` are those of the worker's next task, which a task on files reads ahead if it has a cache.
        """

    def holding(self, samples: NDArray[Any]) -> tuple[int, ...]:
        """Return the numbers of the blocks that hold these samples, ascending; all where few would be left out."""
        if len(samples) >= len(self.sizes):
            return tuple(range(len(self.sizes)))
        return tuple(sorted({*(self._starts.searchsorted(samples, side="right") - 1).tolist()}))

    @abstractmethod
    def delete(self) -> None:
        """Free the references."""


class BlockHandles(DataHandles):
    """The blocks of all columns: those of x, then of y and of the weights."""

    def __init__(self, engine: Engine, columns: Sequence[BlockedTensor], structure: ColumnStructure) -> None:
        x, *others = columns
        super().__init__(x.sizes)
        self._engine = engine
        self.structure = structure
        on_file = all(is_on_file(block) for tensor in (x, *others) for block in tensor.blocks())
        self.mapped = engine.shared_memory or on_file
        columns = [x, *others]
        joined = engine.pays_by_value and len(columns) > 1 and not any(map(_is_remote, columns))
        self._x, *self._others = (
            [_publish_rows(engine, columns)] if joined else [publish_blocks(engine, tensor) for tensor in columns]
        )

    def select(self, numbers: Sequence[int], upcoming: Sequence[int] = ()) -> tuple[list[Ref], list[Ref]]:
        """Return the references to these blocks of the first column, and of the others one after the other."""
        return [self._x[n] for n in numbers], [refs[n] for refs in self._others for n in numbers]

    def delete(self) -> None:
        """Free the blocks."""
        self._engine.delete([*self._x, *chain.from_iterable(self._others)])


def _is_remote(tensor: BlockedTensor) -> bool:
    return any(isinstance(block, RemoteBlock) for block in tensor.blocks())


def _publish_rows(engine: Engine, columns: Sequence[BlockedTensor]) -> list[Ref]:
    """Publish a block of x with those of the other columns as one value each."""
    return [engine.publish(blocks) for blocks in zip(*(tensor.blocks() for tensor in columns), strict=True)]


def publish_blocks(engine: Engine, tensor: BlockedTensor) -> list[Ref]:
    """Publish the blocks of a tensor.

    If the engine keeps values in shared memory, the tensor's own blocks become views of them, so that the
    coordinator holds no second copy.
    """
    refs: list[Ref] = []
    for row in tensor.tensors:
        for column, block in enumerate(row):
            foreign = isinstance(block, RemoteBlock) and block.home != engine.name
            ref = engine.publish(load_block(block) if foreign else block)
            refs.append(ref)
            adoptable = engine.shared_memory and not isinstance(block, np.memmap | RemoteBlock)
            held = engine.peek(ref) if adoptable else None
            row[column] = block if held is None else held
    return refs


class FileHandles(DataHandles):
    """Files, whose names are passed to tasks."""

    mapped = True

    def __init__(self, dataset: FileDataset, keys: tuple[str, ...], structure: ColumnStructure) -> None:
        super().__init__(dataset.sizes)
        self.structure = structure
        self._dataset = dataset
        self._keys = keys
        self.may_skip = dataset.on_bad_file == "skip"
        self.reads_ahead = dataset.cache is not None

    def select(self, numbers: Sequence[int], upcoming: Sequence[int] = ()) -> tuple[FilePart, list[Ref]]:
        """Return the part of the data set with these files, which holds all columns."""
        return self._dataset.part(numbers, self._keys, upcoming), []

    def delete(self) -> None:
        """Do nothing: the files belong to the user."""


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
    def publish(self, engine: Engine) -> DataHandles:
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
    unit = "block"

    @property
    def structure(self) -> ColumnStructure:
        """Which columns are x, y and weights."""
        ragged = any(isinstance(next(each.blocks()), Ragged) for each in self._columns)
        return replace(ColumnStructure.of(self.x, self.y), ragged=ragged, weighted=self.weight is not None)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each block."""
        return self._columns[0].sizes

    @cached_property
    def fingerprint(self) -> int | None:
        """A checksum of some rows of each block, computed on first use, as blocks may be on a slow disk."""
        return fingerprint(self._columns)

    def publish(self, engine: Engine) -> DataHandles:
        """Publish the blocks."""
        return BlockHandles(engine, self._columns, self.structure)

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
class FilesSource(DataSource):
    """Files that workers read."""

    dataset: FileDataset
    keys: tuple[str, ...]
    has_weights: bool = False
    unit = "file"

    @property
    def structure(self) -> ColumnStructure:
        """Which columns are x, y and weights."""
        return ColumnStructure(weighted=self.has_weights)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each file."""
        return self.dataset.sizes

    def publish(self, engine: Engine) -> DataHandles:
        """Return handles with the names of the files, which tasks read themselves."""
        return FileHandles(self.dataset, self.keys, self.structure)

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
        return _files(x, y, targets)
    both = structured(x), None if y is None else structured(y)
    named = [*named_columns(both[0], "x"), *([] if y is None else named_columns(both[1], "y"))]
    blocked = _blocked_columns(named, num_workers)
    own = len(leaves(both[0]))
    return BlockedSource(rebuilt(both[0], blocked[:own]), None if y is None else rebuilt(both[1], blocked[own:]))


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
    return not isinstance(value, BlockedTensor | FileDataset | Dataset | DataLoader) and not hasattr(
        value, "tensors"
    )


def _files(dataset: FileDataset, y: Any, targets: bool) -> FilesSource:
    if y is not None:
        raise TypeError(
            f"y is a {type(y).__name__}, but x is a FileDataset, whose files hold the targets too; leave y out, "
            "and name the array of targets in FileDataset(..., y=...)"
        )
    if isinstance(dataset.reader, CustomReader):
        check_picklable(reader=dataset.reader.function)
    keys = dataset.training_keys(targets=targets)
    dataset.check_dtypes(keys)
    return FilesSource(dataset, keys)


def as_blocked(value: object, num_workers: int) -> BlockedTensor:
    """Return ``value`` as a blocked tensor.

    Accepts a ``BlockedTensor``, anything with a grid of blocks in ``.tensors`` as dislib's Tensor has, and an
    array or tensor, which is cut into a block a worker.
    """
    if isinstance(value, BlockedTensor):
        return value
    if isinstance(value, FileDataset):
        raise TypeError("a FileDataset holds samples and targets; give it as x, without y")
    if isinstance(value, Dataset | DataLoader):
        raise TypeError(
            f"a {type(value).__name__} cannot be cut into blocks; give its arrays or tensors as x and y, "
            "BlockedTensor.from_files, or a FileDataset for samples that do not fit in memory"
        )
    if hasattr(value, "tensors"):
        return BlockedTensor.from_dislib(value)
    block = as_block(value)
    if len(block) == 0:
        raise ValueError("the array has no samples")
    return BlockedTensor.from_array(block, (min(num_workers, len(block)), 1))
