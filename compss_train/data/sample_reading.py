"""``SampleReader``: reads samples by number; ``MapReader`` reads a map-style data set."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset

from compss_train.data.collating import Collate, collate_pairs, stacked
from compss_train.data.generators import generators_in
from compss_train.data.sample_roles import Roles

Rows: TypeAlias = NDArray[np.int64]
"""The numbers of some samples."""
Reseed: TypeAlias = Callable[[int], int]
"""Seeds the random draws for the sample at a position of a block's pass, and returns the seed."""


class ReadBatch(NamedTuple):
    """A batch of samples that were read."""

    x: Any
    y: Any
    samples: int
    as_made: bool = False
    """Whether x is the whole that the data set's ``collate`` made."""


class SampleReader(ABC):
    """Reads samples in workers: a column of the data holds their numbers instead of themselves.

    A process keeps the object between tasks, so it may hold files open.
    """

    is_stream: ClassVar[bool] = False
    """Whether samples are read in sequence instead of by number."""
    counted: bool = True
    """Whether the number of samples is known."""

    @property
    def generators(self) -> Sequence[Any]:
        """The random generators that the data set holds, in this process."""
        return ()

    @abstractmethod
    def read(
        self, numbers: Rows, epoch: int, position: int, reseed: Reseed, collate: Collate | None
    ) -> ReadBatch:
        """Return the samples with these numbers; ``position`` is that of the first in the epoch.

        ``collate`` makes batches from lists of (x, y), like ``build(collate=...)``.
        """

    @property
    def notes(self) -> tuple[str, ...]:
        """What users of a fit should know about conversions."""
        return ()

    def read_first(self) -> ReadBatch:
        """Return a batch of the first sample."""
        return self.read(np.zeros(1, np.int64), 0, 0, reseed=lambda _: 0, collate=None)

    def fingerprint(self, starts: Sequence[int], stops: Sequence[int]) -> int | None:
        """Return a checksum of the samples at the ends of blocks, or ``None`` if that is costly."""
        return None

    def __deepcopy__(self, memo: object) -> Self:
        """Return the object itself: copies of a model read the same samples."""
        return self


@dataclass(eq=False)
class MapReader(SampleReader):
    """Reads a map-style data set by ``__getitem__``, or by ``__getitems__`` a batch at once.

    A data set with ``set_epoch`` is told each epoch before its samples are read.
    """

    dataset: Any
    roles: Roles
    collate: Collate | None
    _epoch: int | None = field(default=None, init=False)
    """The epoch that the data set was told last."""

    @cached_property
    def generators(self) -> Sequence[Any]:
        """The random generators that the data set and its ``collate`` hold."""
        return generators_in((self._told, self.collate))

    @cached_property
    def _told(self) -> Any:
        """The data set, or a copy that is told epochs: other readers here may read another one."""
        return _shallow_copy(self.dataset) if _told_parts(self.dataset) else self.dataset

    def _tell(self, epoch: int) -> None:
        """Tell the data set the epoch, if it asks for that; it may have other generators then."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        for part in _told_parts(self._told):
            part.set_epoch(epoch)
            vars(self).pop("generators", None)

    def read(
        self, numbers: Rows, epoch: int, position: int, reseed: Reseed, collate: Collate | None
    ) -> ReadBatch:
        """Return the batch; random draws are seeded for each sample, or for all if read at once."""
        self._tell(epoch)
        read_many = getattr(self._told, "__getitems__", None)
        if read_many is None:
            samples = [
                self._sample(number, position + place, reseed)
                for place, number in enumerate(numbers.tolist())
            ]
        else:
            reseed(position)
            samples = list(read_many(numbers.tolist()))
        return batch_of(samples, self.roles, self.collate, collate=collate)

    def _sample(self, number: int, position: int, reseed: Reseed) -> Any:
        reseed(position)
        try:
            return self._told[number]
        except Exception as error:
            error.add_note(f"While sample {number} of a {type(self.dataset).__name__} was read.")
            raise

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what other processes find or make anew: generators, and what was told."""
        return {"dataset": self.dataset, "roles": self.roles, "collate": self.collate}

    def read_first(self) -> ReadBatch:
        """Return a batch of the first sample, read by a copy: files may be opened for it."""
        copied = _shallow_copy(self.dataset)
        return SampleReader.read_first(MapReader(copied, self.roles, self.collate))


def _shallow_copy(dataset: Any) -> Any:
    """Return a shallow copy of a data set and of the data sets that it consists of."""
    copied = copy.copy(dataset)
    if isinstance(copied, Subset):
        copied.dataset = _shallow_copy(copied.dataset)
    elif isinstance(copied, ConcatDataset):
        copied.datasets = [_shallow_copy(part) for part in copied.datasets]
    return copied


def _told_parts(dataset: Any) -> list[Any]:
    """Return those with ``set_epoch`` of a data set and the data sets that it consists of."""
    parts: list[Any] = []
    if isinstance(dataset, Subset):
        parts = _told_parts(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        parts = [told for part in dataset.datasets for told in _told_parts(part)]
    return [dataset, *parts] if hasattr(dataset, "set_epoch") else parts


def batch_of(
    samples: list[Any], roles: Roles, dataset_collate: Collate | None, *, collate: Collate | None
) -> ReadBatch:
    """Return the batch of some samples.

    ``dataset_collate`` is the data set's function, which gets unchanged samples; ``collate`` is
    ``build``'s, which gets (x, y). Without either, samples are stacked.
    """
    if dataset_collate is not None:
        batch = dataset_collate(samples)
        x, y = roles.split(batch, collated=True)
        is_whole = x is batch or (isinstance(x, Mapping) and isinstance(batch, Mapping))
        return ReadBatch(x, y, len(samples), as_made=y is None and is_whole)
    pairs = [roles.split(sample) for sample in samples]
    if len({y is None for _, y in pairs}) > 1:
        raise ValueError(
            "some samples of a batch have a target and others none: give one to each, or leave "
            "samples out, or name the inputs alone with Samples(dataset, x=...)"
        )
    if collate is not None:
        return ReadBatch(*collate_pairs(collate, pairs), len(samples))
    x = stacked([x for x, _ in pairs])
    y = None if pairs[0][1] is None else stacked([y for _, y in pairs])
    return ReadBatch(x, y, len(samples))
