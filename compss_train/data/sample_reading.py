"""``SampleReader``: makes batches of samples that it reads by number; ``MapReader`` reads a
map-style data set.

``Roles`` say which parts of a sample are x and y, and ``stacked`` makes a batch of samples.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset

from compss_train.data.collating import Collate, collate_pairs, stacked
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
    """Reads samples in workers: a column of the data holds sample numbers instead of the samples
    themselves.

    A process keeps the object between tasks, so it may hold files open.
    """

    is_stream: ClassVar[bool] = False
    """Whether samples are read in sequence instead of by number."""
    counted: bool = True
    """Whether the number of samples is known."""

    @abstractmethod
    def read(
        self, numbers: Rows, epoch: int, position: int, reseed: Reseed, collate: Collate | None
    ) -> ReadBatch:
        """Return the batch of samples with these numbers, the first of which has this position in
        the epoch.

        ``collate`` makes batches from lists of (x, y), like ``build(collate=...)``.
        """

    @property
    def notes(self) -> tuple[str, ...]:
        """What users of a fit should know about conversions."""
        return ()

    def read_first(self) -> ReadBatch:
        """Return a batch of the first sample."""
        return self.read(np.zeros(1, np.int64), 0, 0, lambda _: 0, None)

    def fingerprint(self, starts: Sequence[int], stops: Sequence[int]) -> int | None:
        """Return a checksum of the samples at the ends of blocks, or ``None`` if it would be
        costly.
        """
        return None

    def __deepcopy__(self, memo: object) -> Self:
        """Return the object itself: copies of a model read the same samples."""
        return self


@dataclass(eq=False)
class MapReader(SampleReader):
    """Reads a map-style data set: with ``__getitem__``, or ``__getitems__`` for many samples at a
    time.
    """

    dataset: Any
    roles: Roles
    collate: Collate | None

    def read(
        self, numbers: Rows, epoch: int, position: int, reseed: Reseed, collate: Collate | None
    ) -> ReadBatch:
        """Return the batch; the data set's random draws are seeded for each sample, or for the
        batch of several.
        """
        read_many = getattr(self.dataset, "__getitems__", None)
        if read_many is None:
            each = enumerate(numbers.tolist(), position)
            samples = [self._sample(number, position, reseed) for position, number in each]
        else:
            reseed(position)
            samples = list(read_many(numbers.tolist()))
        return batch_of(samples, self.roles, self.collate, collate)

    def _sample(self, number: int, position: int, reseed: Reseed) -> Any:
        reseed(position)
        try:
            return self.dataset[number]
        except Exception as error:
            error.add_note(f"While sample {number} of a {type(self.dataset).__name__} was read.")
            raise

    def read_first(self) -> ReadBatch:
        """Return a batch of the first sample, read by a copy: reading may open files that cannot be
        pickled.
        """
        return SampleReader.read_first(MapReader(_own(self.dataset), self.roles, self.collate))


def _own(dataset: Any) -> Any:
    """Return a shallow copy of a data set and of the data sets that it consists of."""
    own = copy.copy(dataset)
    if isinstance(own, Subset):
        own.dataset = _own(own.dataset)
    elif isinstance(own, ConcatDataset):
        own.datasets = [_own(part) for part in own.datasets]
    return own


def batch_of(
    samples: list[Any], roles: Roles, own: Collate | None, collate: Collate | None
) -> ReadBatch:
    """Return the batch of some samples.

    ``own`` is the data set's function, which gets unchanged samples; ``collate`` is ``build``'s,
    which gets (x, y). Without either, samples are stacked.
    """
    if own is not None:
        made = own(samples)
        x, y = roles.split(made)
        as_made = y is None and (
            x is made or (isinstance(x, Mapping) and isinstance(made, Mapping))
        )
        return ReadBatch(x, y, len(samples), as_made)
    pairs = [roles.split(sample) for sample in samples]
    if len({y is None for _, y in pairs}) > 1:
        raise ValueError(
            "some samples of a batch have a target and others none: give one to each, or leave "
            "samples out, or name the inputs alone with Samples(dataset, x=...)"
        )
    if collate is not None:
        return ReadBatch(*collate_pairs(collate, pairs), len(samples))
    xs, ys = zip(*pairs, strict=True)
    return ReadBatch(stacked(xs), None if ys[0] is None else stacked(ys), len(samples))
