"""``SampleReader``: makes batches of samples that it reads by number; ``MapReader`` reads a map-style data set."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset

from compss_train.data.block_passes import Place
from compss_train.data.collation import Roles, collate_pairs, stacked

Reseed: TypeAlias = Callable[[int], int]
"""Seeds the random draws for the sample at a position of a block's pass, and returns the seed."""
Collate: TypeAlias = Callable[[list[Any]], Any]


class ReadBatch(NamedTuple):
    """A batch of samples that were read."""

    x: Any
    y: Any
    samples: int


class SampleReader(ABC):
    """Reads samples in workers: a column of the data has their numbers, in the place of the samples themselves.

    A process keeps the object from task to task, so that it may hold open files.
    """

    is_stream = False
    """Whether samples come one after the other instead of by number."""
    counted = True
    """Whether the number of samples is known."""

    @abstractmethod
    def read(self, numbers: NDArray[np.int64], place: Place, reseed: Reseed, collate: Collate | None) -> ReadBatch:
        """Return the batch of samples with these numbers, which is trained at that place.

        ``collate`` makes batches of lists of (x, y), as ``collate`` of ``build``.
        """

    @property
    def notes(self) -> tuple[str, ...]:
        """What users of a fit should know about conversions."""
        return ()

    def read_first(self) -> ReadBatch:
        """Return a batch of the first sample."""
        return self.read(np.zeros(1, np.int64), Place(0, 0, 0), lambda _: 0, None)

    def fingerprint(self, starts: Sequence[int], stops: Sequence[int]) -> int | None:
        """Return a checksum of the samples at the ends of blocks, ``None`` if it would be costly."""
        return None

    def __deepcopy__(self, memo: object) -> Self:
        """Return the object itself: copies of a model read the same samples."""
        return self


class MapReader(SampleReader):
    """Reads a data set whose samples have numbers: ``__getitem__``, or ``__getitems__`` for many at a time."""

    def __init__(self, dataset: Any, roles: Roles, collate: Collate | None) -> None:
        self._dataset = dataset
        self._roles = roles
        self._collate = collate

    def read(self, numbers: NDArray[np.int64], place: Place, reseed: Reseed, collate: Collate | None) -> ReadBatch:
        """Return the batch; the data set's random draws are seeded for each sample, or for the batch of several."""
        samples = self._samples(numbers.tolist(), place, reseed)
        return ReadBatch(*batch_of(samples, self._roles, self._collate, collate), len(samples))

    def _samples(self, numbers: list[int], place: Place, reseed: Reseed) -> list[Any]:
        read_many = getattr(self._dataset, "__getitems__", None)
        if read_many is None:
            return [self._sample(number, place.position + k, reseed) for k, number in enumerate(numbers)]
        reseed(place.position)
        return list(read_many(numbers))

    def _sample(self, number: int, position: int, reseed: Reseed) -> Any:
        reseed(position)
        try:
            return self._dataset[number]
        except Exception as error:
            error.add_note(f"While sample {number} of a {type(self._dataset).__name__} was read.")
            raise

    def read_first(self) -> ReadBatch:
        """Return a batch of the first sample, read by a copy: data sets may open files that cannot be pickled."""
        return SampleReader.read_first(MapReader(_own(self._dataset), self._roles, self._collate))


def _own(dataset: Any) -> Any:
    """Return a shallow copy of a data set, and of those that it consists of."""
    own = copy.copy(dataset)
    if isinstance(own, Subset):
        own.dataset = _own(own.dataset)
    elif isinstance(own, ConcatDataset):
        own.datasets = [_own(part) for part in own.datasets]
    return own


def batch_of(samples: list[Any], roles: Roles, own: Collate | None, collate: Collate | None) -> tuple[Any, Any]:
    """Return x and y of a batch.

    ``own`` is the data set's function, which gets the samples as they are; ``collate`` that of ``build``, which
    gets (x, y). Without both, samples are stacked.
    """
    if own is not None:
        return roles.split(own(samples))
    pairs = [roles.split(sample) for sample in samples]
    if collate is not None:
        return collate_pairs(collate, pairs)
    xs, ys = zip(*pairs, strict=True)
    return stacked(xs), None if ys[0] is None else stacked(ys)
