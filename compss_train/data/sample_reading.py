"""``SampleReader``: makes batches of samples that it reads by number; ``MapReader`` reads a
map-style data set.

``Roles`` say which parts of a sample are x and y, and ``stacked`` makes a batch of samples.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset

from compss_train._utils.nested import is_sequence, leaves, map_leaves
from compss_train.data.block import as_tensor
from compss_train.data.layout import quote_names
from compss_train.data.ragged import Ragged
from compss_train.data.values import check_dtype, check_values, signed, tensor_of

Rows: TypeAlias = NDArray[np.int64]
"""The numbers of some samples."""
Reseed: TypeAlias = Callable[[int], int]
"""Seeds the random draws for the sample at a position of a block's pass, and returns the seed."""
Collate: TypeAlias = Callable[[list[Any]], Any]


Key: TypeAlias = str | int
"""The key of a part of a sample: a name in a dict, or an index in a tuple."""
Keys: TypeAlias = Key | Sequence[Key]

TARGETS = ("y", "label", "labels", "target", "targets")
"""Names that are recognized as targets."""


@dataclass(frozen=True)
class Roles:
    """Which parts of a sample, or of a batch, are x and y.

    Several names give a dict of these parts, several indices a tuple. Without keys, a pair is (x,
    y); in a dict, ``TARGETS`` names the targets, and x is ``"x"``, or else all other parts.
    """

    x: Keys | None = None
    y: Keys | None = None

    def split(self, sample: Any) -> tuple[Any, Any]:
        """Return x and y; y is ``None`` if there are no targets.

        Raises ``ValueError`` for keys that a sample does not have, ``TypeError`` for a tuple that
        is not a pair.
        """
        x = self.x
        y = self.y
        if x is None and y is None:
            if isinstance(sample, Mapping):
                x = "x" if "x" in sample else None
                y = next((name for name in TARGETS if name in sample), None)
            elif is_sequence(sample) and (isinstance(sample, tuple) or not _holds_numbers(sample)):
                if len(sample) > 2:
                    raise TypeError(
                        f"a sample is a {type(sample).__name__} of {len(sample)} parts; say "
                        "which are x and y, as in Samples(dataset, "
                        f"x={(*range(len(sample) - 1),)}, y={len(sample) - 1})"
                    )
                x = 0
                y = 1 if len(sample) == 2 else None
            else:
                return sample, None
        return _picked(
            sample, _others(sample, y) if x is None else x
        ), None if y is None else _picked(sample, y)


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


def _picked(sample: Any, keys: Keys) -> Any:
    if isinstance(keys, str | int):
        try:
            return sample[keys]
        except (KeyError, IndexError, TypeError):
            names = range(len(sample)) if isinstance(sample, tuple | list) else sample
            held = (
                ", ".join(map(repr, names))
                if isinstance(sample, Mapping | tuple | list)
                else "none"
            )
            raise ValueError(f"a sample has no part {keys!r}, it has {held}") from None
    picked = {key: _picked(sample, key) for key in keys}
    return tuple(picked.values()) if all(isinstance(key, int) for key in keys) else picked


def _others(sample: Any, targets: Keys | None) -> Keys:
    """Return the keys of all parts but the targets, or the key of the only one."""
    if not isinstance(sample, Mapping | tuple | list):
        raise ValueError(
            f"y={targets!r}: a sample is a {type(sample).__name__}, which has no parts"
        )
    taken = {targets} if isinstance(targets, str | int) else set(targets or ())
    keys = [
        key
        for key in (sample if isinstance(sample, Mapping) else range(len(sample)))
        if key not in taken
    ]
    return keys[0] if len(keys) == 1 else keys


def collate_pairs(collate: Collate, pairs: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return x and y of a batch that the function ``collate`` of ``build`` makes of samples.

    It gets a list of (x, y), or of x without targets, and must return a batch of the same kind.
    Raises ``TypeError`` for other results.
    """
    if pairs[0][1] is None:
        return _in_tensors(collate([x for x, _ in pairs])), None
    if isinstance(collate, PredictionCollate):
        collate = collate.collate
    made = collate(pairs)
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise TypeError(
            f"collate returned a {type(made).__name__} for a list of (x, y); return two parts, "
            "as (x, y)"
        )
    return _in_tensors(made[0]), _in_tensors(made[1])


def _in_tensors(made: Any) -> Any:
    """Return what ``collate`` made; raise ``TypeError`` for arrays in it, of which no network takes
    any.
    """
    if any(isinstance(part, np.ndarray) for part in leaves(made)):
        raise TypeError(
            "collate returned a numpy array: return tensors, as torch.from_numpy(array)"
        )
    return made


@dataclass(frozen=True)
class PredictionCollate:
    """``build``'s ``collate`` in prediction: called with samples without y, it returns x of the
    batch.

    ``collate`` gets (x, y) as in training, with a tensor of zero in place of y, a number or a
    sequence of one; a function that takes neither gets x alone.
    """

    collate: Collate

    def __call__(self, samples: list[Any]) -> Any:
        """Return x of the batch; raise the error for (x, y), with a note on the others, if all
        fail.
        """
        failures: list[Exception] = []
        for shape in ((), (1,)):
            pairs = [(x, torch.zeros(shape, dtype=torch.int64)) for x in samples]
            try:
                return collate_pairs(self.collate, pairs)[0]
            except Exception as error:
                failures.append(error)
        try:
            return self.collate(samples)
        except Exception as error:
            failures[0].add_note(
                "predict has no y: collate was called with a list of (x, y), with zeros in place "
                f"of y, and then with a list of x, which also failed ({type(error).__name__}: "
                f"{error}); let it take one of these"
            )
            raise failures[0] from None
        finally:
            failures.clear()  # the frames of its errors would keep the batch


def collate_batch(collate: Collate, x: Any, y: Any, samples: int) -> tuple[Any, Any]:
    """Return x and y of a batch that ``build``'s ``collate`` makes from the rows of x and y,
    ``samples`` in all.
    """

    def sample(part: Any, number: int) -> Any:
        return None if part is None else map_leaves(lambda leaf: leaf[number], part)

    return collate_pairs(
        collate, [(sample(x, number), sample(y, number)) for number in range(samples)]
    )


def stacked(values: Sequence[Any]) -> Any:
    """Return samples as one tensor with a row for each, or tuples, lists and dicts of such tensors.

    Python floats, also in lists, become torch's default dtype. Sequences that differ in length are
    returned as ``Ragged``.

    Raises ``TypeError`` for values that are not numbers, ``ValueError`` for shapes that differ
    otherwise.
    """
    first = values[0]
    if isinstance(first, Mapping):
        for value in values:
            if value.keys() != first.keys():
                raise ValueError(
                    f"samples of a batch have different parts, {quote_names(first)} and "
                    f"{quote_names(value)}: give each the same, or name those to use with "
                    "Samples(dataset, x=..., y=...)"
                )
        return {name: stacked([value[name] for value in values]) for name in first}
    if isinstance(first, tuple | list) and not _holds_numbers(first):
        columns = [stacked(column) for column in zip(*values, strict=True)]
        return tuple(columns) if isinstance(first, tuple) else columns
    if isinstance(first, Number) and not isinstance(first, np.generic):
        return tensor_of(values)
    tensors = [_as_tensor(value) for value in values]
    if len({each.shape for each in tensors}) == 1:
        return torch.stack(tensors)
    if len({each.shape[1:] for each in tensors}) == 1:
        return Ragged(tensors)
    shapes = ", ".join(map(str, list(dict.fromkeys(tuple(each.shape) for each in tensors))[:3]))
    raise ValueError(
        f"the samples of a batch have shapes that differ, such as {shapes}: resize or pad them "
        "in the data set, or give Samples(dataset, collate=...), a function that makes a batch "
        "of a list of samples"
    )


def _holds_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(v, Number) or (isinstance(v, list) and _holds_numbers(v)) for v in values)


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor | np.ma.MaskedArray) or hasattr(value, "nnz"):
        check_values("a part of a sample", value)
    if isinstance(value, torch.Tensor):
        return signed(value.detach().cpu())
    if isinstance(value, list) and _holds_numbers(value):
        return tensor_of(value)
    array = np.asarray(value)  # of an image, too
    if array.dtype.kind not in "biufc":
        kind = type(value).__name__
        described = (
            f"the {kind} {value!r}"[:80]
            if isinstance(value, str)
            else (f"a {kind} of dtype {array.dtype}")
        )
        raise TypeError(
            f"a sample holds {described}, which is not a number; convert it in the data set, "
            "leave it out with Samples(dataset, x=..., y=...), or give collate="
        )
    check_dtype(array.dtype)
    return as_tensor(signed(array))
