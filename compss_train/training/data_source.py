"""What a trainer is given to train or evaluate on: blocked tensors, or files."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch.utils.data import DataLoader, Dataset

from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import as_block
from compss_train.data.blocked import fingerprint
from compss_train.data.partitioning import Shuffle
from compss_train.data.readers import CustomReader
from compss_train.data.sample_weights import as_weights
from compss_train.data.shuffle import check_paired
from compss_train.engines import Engine
from compss_train.training.build_checks import check_picklable
from compss_train.training.data_handles import BlockHandles, DataHandles, FileHandles


class DataSource(ABC):
    """Samples to train or evaluate on, in blocks or in files."""

    unit: str
    """What they come in, for messages."""

    @property
    @abstractmethod
    def has_weights(self) -> bool:
        """Whether samples have weights."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """Samples of each block or file."""

    @property
    def fingerprint(self) -> int | None:
        """What tells other data of the same sizes, ``None`` where nothing is at hand that could."""
        return None

    @abstractmethod
    def weighted(self, sample_weight: Any) -> DataSource:
        """Return the same to train on, with a weight for each sample if there are such.

        Raises ``ValueError`` and ``TypeError`` for what cannot be their weights.
        """

    @abstractmethod
    def publish(self, engine: Engine) -> DataHandles:
        """Put them where tasks can have them."""

    @property
    def number_samples(self) -> int:
        """All samples."""
        return sum(self.sizes)

    def warn_of_idle_workers(self, num_workers: int, shuffle: Shuffle) -> None:
        """Warn where workers are more than what is dealt to them."""
        parts, unit = (self.number_samples, "sample") if shuffle == "partial" else (len(self.sizes), self.unit)
        if num_workers > parts:
            enough = f"cut the data into at least {num_workers} {unit}s"
            if num_workers > self.number_samples:
                enough = f"there are {self.number_samples} samples, for as many workers at the most"
            idle = num_workers - parts
            warnings.warn(
                f"{num_workers} workers share {parts} {unit}{'' if parts == 1 else 's'}, so that {idle} "
                f"{'has' if idle == 1 else 'have'} nothing to train; {enough}",
                stacklevel=3,
            )


@dataclass(frozen=True)
class BlockedSource(DataSource):
    """Blocked tensors."""

    x: BlockedTensor
    y: BlockedTensor | None
    weight: BlockedTensor | None = None
    unit = "block"

    @property
    def has_weights(self) -> bool:
        """Whether there are blocks of weights."""
        return self.weight is not None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each block."""
        return self.x.sizes

    @cached_property
    def fingerprint(self) -> int | None:
        """A checksum of some rows of each block, taken when it is first asked for: blocks may be on a slow disk."""
        return fingerprint(tensor for tensor in (self.x, self.y, self.weight) if tensor is not None)

    def publish(self, engine: Engine) -> DataHandles:
        """Publish the blocks."""
        others = [tensor for tensor in (self.y, self.weight) if tensor is not None]
        return BlockHandles(engine, self.x, others, weighted=self.has_weights)

    def weighted(self, sample_weight: Any) -> DataSource:
        """Return the same with these weights, in blocks like those of x or in an array."""
        return self if sample_weight is None else replace(self, weight=as_weights(sample_weight, self.x))


@dataclass(frozen=True)
class FilesSource(DataSource):
    """Files that workers read."""

    dataset: FileDataset
    keys: tuple[str, ...]
    has_weights: bool = False
    unit = "file"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each file."""
        return self.dataset.sizes

    def publish(self, engine: Engine) -> DataHandles:
        """Name the files."""
        return FileHandles(self.dataset, self.keys, weighted=self.has_weights)

    def weighted(self, sample_weight: Any) -> DataSource:
        """Return the same with the weights in the files, if there are such."""
        if sample_weight is not None:
            raise TypeError(
                f"sample_weight is a {type(sample_weight).__name__}, but x a FileDataset, whose files hold the "
                "weights, too; leave sample_weight out, and name the array in FileDataset(..., weight=...)"
            )
        if (weight := self.dataset.weight_key()) is None:
            return self
        keys = (*self.keys, weight)
        self.dataset.check_dtypes(keys)
        return replace(self, keys=keys, has_weights=True)


def as_data_source(x: Any, y: Any, num_workers: int, *, targets: bool = True) -> DataSource:
    """Return what is given as ``x`` and ``y``: tensors in blocks, arrays that are cut into some, or files.

    Without ``targets`` no more than the samples of files are read.

    Raises ``ValueError`` and ``TypeError`` for what cannot be trained on.
    """
    if isinstance(x, FileDataset):
        return _files(x, y, targets)
    blocked = as_blocked(x, num_workers)
    if y is None:
        return BlockedSource(blocked, None)
    paired = as_blocked(y, num_workers)
    check_paired(blocked, paired)
    return BlockedSource(blocked, paired)


def _files(dataset: FileDataset, y: Any, targets: bool) -> FilesSource:
    if y is not None:
        raise TypeError(
            f"y is a {type(y).__name__}, but x a FileDataset, whose files hold the targets, too; leave y out, and "
            "name the array of targets in FileDataset(..., y=...)"
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
        raise TypeError("a FileDataset holds samples and targets in one; give it as x, alone")
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
