"""Rules of merges: how what the workers trained becomes one set of parameters.

A rule with partial sums lets tasks add up what they have before it travels; others get what each
worker trained. A rule that works element by element merges each part on a node of its own.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from compss_train.model.compression import CHUNK, CompressedChange
from compss_train.model.parts import Cut
from compss_train.worker.merging.buffers import combined_buffer
from compss_train.worker.merging.trained import (
    FIRSTS,
    MAXIMA,
    Arrays,
    Item,
    Trained,
    unchanged_by_all,
)
from compss_train.worker.merging.weighted_mean import add_completed, mean, partial_sum

Bases = Mapping[str, Mapping[Any, NDArray[Any]]]
"""The arrays before training, by what they are: fields of ``Trained``."""


class MergeRule(ABC):
    """How what the workers of a merge trained becomes one; a subclass can be ``Merge(rule=...)``.

    A rule is pickled with the tasks of a merge, which call it; it keeps nothing between merges.
    """

    name: ClassVar[str]
    """What records and messages call it."""
    by_element: ClassVar[bool] = False
    """Whether each element is merged by itself, so that parts of arrays can be merged apart."""
    partial_sums: ClassVar[bool] = False
    """Whether ``gather`` makes less of what workers trained, so that workers may share tasks."""
    least_workers: ClassVar[int] = 1
    """How many workers a merge needs at least."""

    @abstractmethod
    def merge(
        self, arrays: Sequence[Mapping[Any, NDArray[Any]]], weights: Sequence[float]
    ) -> dict[Any, NDArray[Any]]:
        """Return the merged arrays, in the shapes and dtypes of the workers'.

        ``arrays`` are those of each worker with samples, in the order of their numbers; all have
        the same names. ``weights`` say how much each counts by default: its samples. A task, which
        runs again after a fault, must return the same.
        """

    def gather(self, items: Sequence[Item], trained: Trained) -> list[Item]:
        """Return the items of a task with those of another worker, fewer if they can be added up.

        By default they are all kept.
        """
        return [*items, trained]

    def gathered(self, items: Sequence[Item]) -> list[Item]:
        """Return the items of tasks, fewer if they can be added up."""
        return [*items]

    def merged(self, items: Sequence[Item], bases: Bases) -> dict[str, Mapping[Any, NDArray[Any]]]:
        """Return the merged arrays by what they are: fields of ``Trained``.

        Compressed changes are added to the arrays before training, ``bases`` by the same keys.
        Workers without weight have no vote, unless all are so.
        """
        voting = [item for item in items if item.total] or list(items)
        weights = [item.total for item in voting]
        merged: dict[str, Mapping[Any, NDArray[Any]]] = {}
        for field in dict.fromkeys(field for item in voting for field in item.fields):
            of_field = [
                uncompressed(item.fields[field], bases.get(field, {}))  # type: ignore[arg-type]
                for item in voting
                if field in item.fields
            ]
            if field in (MAXIMA, FIRSTS):
                names = dict.fromkeys(name for of_worker in of_field for name in of_worker)
                merged[field] = {
                    name: combined_buffer(
                        field, [of_worker[name] for of_worker in of_field if name in of_worker]
                    )
                    for name in names
                }
                continue
            arrays = _with_all_names(of_field)
            merged[field] = self._checked(self.merge(arrays, weights), arrays[0], field)
        return merged

    def _checked(
        self, merged: object, like: Mapping[Any, NDArray[Any]], field: str
    ) -> dict[Any, NDArray[Any]]:
        """Return what ``merge`` returned; raise unless it has the names, shapes and dtypes."""
        rule = f"{type(self).__name__}.merge"
        if not isinstance(merged, Mapping):
            raise TypeError(
                f"{rule} returned {type(merged).__name__}, not a dict of the merged arrays"
            )
        arrays = {name: np.asarray(merged[name]) for name in merged}
        if arrays.keys() != like.keys():
            raise ValueError(
                f"{rule} must return the names that each worker has in {field}; it left out "
                f"{sorted(like.keys() - arrays.keys())} and added "
                f"{sorted(arrays.keys() - like.keys())}"
            )
        for name, array in arrays.items():
            example = like[name]
            if (array.shape, array.dtype) != (example.shape, example.dtype):
                raise ValueError(
                    f"{rule} returned {array.dtype} of shape {array.shape} for {name!r} in "
                    f"{field}; workers have {example.dtype} of shape {example.shape}: return "
                    "that, such as by array.astype(dtype)"
                )
        return {name: arrays[name] for name in like}


class Mean(MergeRule):
    """The mean of the workers, weighted by their samples: Σ nᵢ·wᵢ / Σ nᵢ."""

    name = "weighted"
    by_element = True
    partial_sums = True

    def merge(
        self, arrays: Sequence[Mapping[Any, NDArray[Any]]], weights: Sequence[float]
    ) -> dict[Any, NDArray[Any]]:
        """Return the weighted mean; the maximum of integers."""
        items = [
            Trained(worker=number, weight=weight, parameters=of_worker)
            for number, (of_worker, weight) in enumerate(zip(arrays, weights, strict=True))
        ]
        return dict(mean(items, {})["parameters"])

    def gather(self, items: Sequence[Item], trained: Trained) -> list[Item]:
        """Add up the nodes that this worker completes."""
        return add_completed([*items], trained)

    def gathered(self, items: Sequence[Item]) -> list[Item]:
        """Return the sum of the items."""
        return [partial_sum(items)]

    def merged(self, items: Sequence[Item], bases: Bases) -> dict[str, Mapping[Any, NDArray[Any]]]:
        """Return the means."""
        return mean(items, bases)


@dataclass(frozen=True)
class Trimmed(MergeRule):
    """The mean of the workers without the smallest and the largest values of each element.

    ceil(trim · n) of the n values are dropped at both ends, and the workers count equally, so that
    a few workers with bad data cannot move the result far (Yin et al. 2018, "Byzantine-robust
    distributed learning", arXiv 1803.01498). Integers take the median.
    """

    trim: float
    """The share of the workers to drop at each end, above 0 and below 0.5."""

    name = "trimmed"
    by_element = True
    least_workers = 3

    def merge(
        self, arrays: Sequence[Mapping[Any, NDArray[Any]]], weights: Sequence[float]
    ) -> dict[Any, NDArray[Any]]:
        """Return the trimmed means; with fewer than three workers their mean."""
        workers = len(arrays)
        dropped = min(math.ceil(self.trim * workers), (workers - 1) // 2)
        return {
            name: _trimmed_mean([of_worker[name] for of_worker in arrays], dropped)
            for name in arrays[0]
        }


def _trimmed_mean(arrays: Sequence[NDArray[Any]], dropped: int) -> NDArray[Any]:
    """Return the mean of the arrays without ``dropped`` values of each element at both ends."""
    dtype = arrays[0].dtype
    if dtype.kind == "c":
        real = _trimmed_mean([array.real for array in arrays], dropped)
        return np.asarray(real + 1j * _trimmed_mean([array.imag for array in arrays], dropped))
    result = np.empty(arrays[0].shape, dtype)
    flat_result = result.reshape(-1)
    flat = [np.ravel(array) for array in arrays]
    kept = slice(dropped, len(arrays) - dropped)
    for start in range(0, result.size, CHUNK):
        part = slice(start, start + CHUNK)
        values = np.sort(np.stack([array[part] for array in flat]), axis=0)
        if dtype.kind == "f":
            flat_result[part] = values[kept].mean(axis=0, dtype=np.float64)
        else:
            flat_result[part] = values[len(arrays) // 2]
    return result


def uncompressed(arrays: Arrays, base: Mapping[Any, NDArray[Any]]) -> dict[Any, NDArray[Any]]:
    """Return the arrays with compressed changes added to those before training."""
    whole: dict[Any, NDArray[Any]] = {}
    for name, array in arrays.items():
        if not isinstance(array, CompressedChange):
            whole[name] = array
            continue
        before = base[name] if name in base else np.zeros(array.shape, array.dtype)
        change = array[:].reshape(array.shape)
        whole[name] = np.asarray(np.add(before, change, dtype=np.float64)).astype(array.dtype)
    return whole


def _with_all_names(
    arrays: Sequence[Mapping[Any, NDArray[Any]]],
) -> Sequence[Mapping[Any, NDArray[Any]]]:
    """Return the arrays of each worker with zeros for those that only others have."""
    examples = {name: array for of_worker in arrays for name, array in of_worker.items()}
    if all(len(of_worker) == len(examples) for of_worker in arrays):
        return arrays
    return [
        {name: of_worker.get(name, np.zeros_like(array)) for name, array in examples.items()}
        for of_worker in arrays
    ]


@dataclass(frozen=True, eq=False)
class Gathering:
    """Combines what the workers of a task trained into the parts of a merge."""

    rule: MergeRule
    cut: Cut

    def __call__(self, workers: Iterable[Trained]) -> list[list[Item]]:
        """Return the items of each part."""
        parts: list[list[Item]] = [[] for _ in range(len(self.cut.parts))]
        for trained in workers:
            split = trained.split(self.cut)
            parts = [
                self.rule.gather(items, of_part)
                for items, of_part in zip(parts, split, strict=True)
            ]
        return [self.rule.gathered(items) for items in parts]


@dataclass(frozen=True, eq=False)
class Reducing:
    """Merges all workers in the one task that trains them, where no step follows."""

    rule: MergeRule

    def __call__(self, workers: Iterable[Trained]) -> list[Any]:
        """Return the merged parameters."""
        items: list[Item] = []
        unchanged: dict[str, Any] = {}
        for trained in workers:
            items = self.rule.gather(items, trained)
            for name in trained.unchanged:
                unchanged.setdefault(name, trained.parameters[name])
        parameters = dict(self.rule.merged(items, {})["parameters"])
        for name in unchanged_by_all(items):
            parameters[name] = unchanged[name]
        return [parameters]
