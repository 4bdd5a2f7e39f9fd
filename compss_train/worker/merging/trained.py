"""``Trained``: what one worker brings to a merge; ``WeightedSum``: what several add up to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train.model.compression import CompressedChange, Contribution
from compss_train.model.parts import Cut

MAXIMA = "maxima"
"""The field of ``Trained`` with the buffers of which a merge takes the maximum."""

FIRSTS = "firsts"
"""The field of ``Trained`` with the buffers of which a merge takes the first worker's."""

Arrays: TypeAlias = Mapping[Any, NDArray[Any] | CompressedChange]
"""Arrays, or compressed changes of them, by names of any kind."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Trained:
    """What one worker trained in a round, in the parts of a merge or whole."""

    worker: int
    weight: float
    """How much it counts, by default its samples."""
    parameters: Contribution
    """Its parameters, or compressed changes of some of them."""
    moments: Mapping[tuple[str, str], NDArray[Any] | CompressedChange] | None = None
    """The state of its optimizer, if workers merge that, too."""
    average: Mapping[str, NDArray[Any]] | None = None
    """The average of its parameters over its steps, if it keeps one."""
    maxima: Mapping[str, NDArray[Any]] | None = None
    """Buffers of which a merge takes the maximum; they are not in ``parameters``."""
    firsts: Mapping[str, NDArray[Any]] | None = None
    """Buffers of which a merge takes the first worker's; they are not in ``parameters``."""
    unchanged: frozenset[str] = frozenset()
    """The names of floating-point buffers that the worker has not changed."""

    @property
    def first(self) -> int:
        """The number of the first worker: its own."""
        return self.worker

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of the workers: its own."""
        return (self.weight,)

    @property
    def total(self) -> float:
        """The sum of the weights: its own."""
        return self.weight

    @property
    def fields(self) -> dict[str, Arrays]:
        """The arrays that workers merge, by what they are."""
        arrays: dict[str, Arrays | None] = {
            "parameters": self.parameters,
            "moments": self.moments,
            "average": self.average,
            MAXIMA: self.maxima,
            FIRSTS: self.firsts,
        }
        return {name: values for name, values in arrays.items() if values is not None}

    def split(self, cut: Cut) -> list[Trained]:
        """Return what it brings to each part of a merge."""
        if len(cut.parts) == 1:
            return [self]
        split: dict[str, list[Any]] = {
            name: cut.split(arrays) for name, arrays in self.fields.items() if name != "moments"
        }
        if self.moments is not None:
            split["moments"] = cut.split_moments(self.moments)
        return [
            replace(self, **{name: parts[number] for name, parts in split.items()})
            for number in range(len(cut.parts))
        ]


@dataclass(frozen=True, eq=False, slots=True)
class ArraySums:
    """Weighted sums of arrays, in double precision; maxima of integers."""

    values: Mapping[Any, NDArray[Any]]
    dtypes: Mapping[Any, np.dtype[Any]]
    """The dtypes of the mean."""
    changes: frozenset[Any] = field(default=frozenset())
    """The names of sums of changes."""


@dataclass(frozen=True, eq=False, slots=True)
class WeightedSum:
    """The weighted sum of what some workers trained."""

    first: int
    """The number of the first worker."""
    weights: tuple[float, ...]
    """The weight of each worker, in their order: they are added up once, where the mean is made."""
    fields: Mapping[str, ArraySums]
    """The sums, by what they are: fields of ``Trained``."""
    unchanged: frozenset[str] = frozenset()
    """The names of floating-point buffers that none of the workers has changed."""

    @property
    def total(self) -> float:
        """The sum of the weights."""
        return math.fsum(self.weights)


Item: TypeAlias = Trained | WeightedSum


def voting_items(items: Sequence[Item]) -> Sequence[Item]:
    """Return the items that count: all that have weight, or without any weight the first."""
    return [item for item in items if item.total] or items[:1]


def unchanged_by_all(items: Sequence[Item]) -> frozenset[str]:
    """Return the names of buffers that no worker that counts has changed."""
    first, *others = voting_items(items)
    return first.unchanged.intersection(*(item.unchanged for item in others))
