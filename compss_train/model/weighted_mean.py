"""Weighted means of parameters, as trees of partial sums; their bits do not depend on which task
adds what.

Workers are the leaves of a binary tree: 0 and 1 are added up first, 2 and 3, then these two sums,
and so on; a worker that has nothing to merge is left out. The sum over an aligned range of workers,
such as 4 to 7, is a node of this tree. The mean therefore has the same bits on every engine,
whether each worker has its own task or several share one, and however many sums a merge task
computes.

Floats are added up in double precision, and rounded to their own type once; integers and booleans
(counters, masks) take the maximum. Workers may return compressed changes in place of some arrays
(module ``compression``).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train.model.compression import CHUNK, CompressedChange, Contribution
from compss_train.model.metrics import Measured

Tree: TypeAlias = int | tuple["Tree", "Tree"]
"""The order in which items are added up: the index of one, or what is added up for the left and for
the right.
"""

Elements: TypeAlias = tuple[NDArray[Any], bool]
"""Some elements of an array, and whether they are a new array, which may be changed."""


@dataclass(frozen=True, eq=False)
class PartialSum:
    """The weighted sum of what some workers trained, or what one of them trained with its
    weight.
    """

    values: Contribution
    """Double-precision sums of floats and maxima of integers; for one worker, its parameters or
    changes.
    """
    count: int
    """Number of samples of the sum."""
    first: int
    """Number of the first worker."""
    dtypes: Mapping[str, np.dtype[Any]] | None = None
    """The dtypes of the mean; ``None`` for one worker, whose values are not yet multiplied by
    ``count``.
    """
    changes: frozenset[str] = field(default=frozenset())
    """The names of sums of changes."""
    measured: tuple[Measured, ...] = ()
    """The measurements of the workers, in their order: sums only pass them on."""

    @classmethod
    def of_worker(
        cls, trained: Contribution, count: int, worker: int, measured: Measured | None = None
    ) -> Self:
        """Return the parameters or changes of one worker, which trained ``count`` samples."""
        changes = frozenset(
            name for name, array in trained.items() if isinstance(array, CompressedChange)
        )
        return cls(trained, count, worker, None, changes, () if measured is None else (measured,))

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of the mean of this array."""
        return self.values[name].dtype if self.dtypes is None else self.dtypes[name]


def partial_sum(items: Sequence[PartialSum]) -> PartialSum:
    """Return the sum of the items, which are nodes of the tree in ascending order.

    Items without samples do not count, not even in the maximum of integers; without any samples the
    sum is the first item. An array missing from an item counts as zeros (the momentum of a
    parameter without gradients).
    """
    measured = tuple(chain.from_iterable(item.measured for item in items))
    voting = [item for item in items if item.count] or items[:1]
    if len(voting) == 1:
        return replace(voting[0], measured=measured)
    having = _by_name(voting)
    return PartialSum(
        values={name: _combined(items, name) for name, items in having.items()},
        count=sum(item.count for item in voting),
        first=items[0].first,
        dtypes={name: items[0].dtype(name) for name, items in having.items()},
        changes=frozenset[str]().union(*(item.changes for item in voting)),
        measured=measured,
    )


def mean(
    items: Sequence[PartialSum], base: Mapping[str, NDArray[Any]]
) -> Mapping[str, NDArray[Any]]:
    """Return Σ nᵢ·wᵢ / Σ nᵢ in the dtypes of the parameters; a single worker's parameters are
    returned unchanged.

    Means of changes are added to ``base``, the arrays before training; arrays missing there count
    as zeros.
    """
    voting = [item for item in items if item.count] or [replace(items[0], count=1)]
    if len(voting) == 1 and voting[0].dtypes is None and not voting[0].changes:
        return voting[0].values  # type: ignore[return-value]
    total = sum(item.count for item in voting)
    changes = frozenset[str]().union(*(item.changes for item in voting))
    bases = {name: array for name, array in base.items() if name in changes}
    return {
        name: _combined(having, name, total, bases.get(name))
        for name, having in _by_name(voting).items()
    }


def _by_name(items: Sequence[PartialSum]) -> dict[str, list[PartialSum]]:
    """Return the items that have an array of each name."""
    names = dict.fromkeys(chain.from_iterable(item.values for item in items))
    return {name: [item for item in items if name in item.values] for name in names}


def _combined(
    items: Sequence[PartialSum],
    name: str,
    divisor: int | None = None,
    base: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return the sum of the arrays of one name in double precision; the maximum for integers.

    With a divisor it is divided, and added to ``base`` if that is given, in the dtype of the mean.
    """
    dtype = items[0].dtype(name)
    arrays = [item.values[name] for item in items]
    if dtype.kind not in "fc":
        integers: list[Any] = arrays
        return np.asarray(np.maximum.reduce(integers) if len(integers) > 1 else integers[0])
    wide = np.result_type(dtype, np.float64)
    tree = tree_of(tuple(item.first for item in items))
    flat = [array if isinstance(array, CompressedChange) else np.ravel(array) for array in arrays]
    # Sums are multiplied already.
    factors = [item.count if item.dtypes is None else None for item in items]

    def add_up(node: Tree, part: slice) -> Elements:
        """Return the sum of some elements."""
        if not isinstance(node, int):
            (left, own), (right, others) = (add_up(each, part) for each in node)
            return np.add(left, right, out=left if own else right if others else None), True
        values = flat[node][part]
        factor = factors[node]
        if factor is None:
            return values, False
        weighted = values.astype(wide)  # twice as fast as a product of another type
        weighted *= factor
        return weighted, True

    result = np.empty(arrays[0].shape, wide if divisor is None else dtype)
    flat_result = result.reshape(-1)
    flat_base = None if base is None else np.ravel(base)
    # So that intermediate values stay in the processor's cache.
    for start in range(0, result.size, CHUNK):
        part = slice(start, start + CHUNK)
        values, own = add_up(tree, part)
        # Exact for float32 and one version: below 2**29 samples, n * w has 53 bits.
        if divisor is not None:
            values = np.divide(values, divisor, out=values if own else None)
        flat_result[part] = values if flat_base is None else values + flat_base[part]
    return result


@lru_cache(maxsize=64)
def tree_of(firsts: tuple[int, ...]) -> Tree:
    """Return the tree of items that begin at these workers, in ascending order."""

    def node(low: int, high: int, start: int, size: int) -> Tree:
        """Return the tree of items ``low`` to ``high``, all in the range of ``size`` workers from
        ``start`` on.
        """
        if high - low == 1:
            return low
        half = size // 2
        middle = bisect_left(firsts, start + half, low, high)
        if middle in (low, high):
            return node(low, high, start + half if middle == low else start, half)
        return node(low, middle, start, half), node(middle, high, start + half, half)

    return node(0, len(firsts), 0, 1 << firsts[-1].bit_length())
