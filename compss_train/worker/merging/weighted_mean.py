"""Weighted means of what workers trained, as trees of partial sums.

Their bits do not depend on which task adds what. Workers are the leaves of a binary tree: 0 and 1
are added up first, 2 and 3, then these two sums, and so on; a worker that has nothing to merge is
left out. The sum over an aligned range of workers, such as 4 to 7, is a node of this tree. The mean
therefore has the same bits on every engine, whether each worker has its own task or several share
one, and however many sums a merge task computes.

Floats are added up in double precision, and rounded to their own type once; integers and booleans
(counters, masks) take the maximum. Workers may return compressed changes in place of some arrays
(module ``compression``).
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train.model.compression import CHUNK, CompressedChange
from compss_train.worker.merging.buffers import combined_buffer
from compss_train.worker.merging.trained import (
    FIRSTS,
    MAXIMA,
    Arrays,
    ArraySums,
    Item,
    Trained,
    WeightedSum,
    unchanged_by_all,
    voting_items,
)

Tree: TypeAlias = int | tuple["Tree", "Tree"]
"""The order in which items are added up: the index of an item, or the trees of two summands."""

Elements: TypeAlias = tuple[NDArray[Any], bool]
"""Some elements of an array, and whether they are a new array, which may be changed."""


@dataclass(frozen=True, eq=False, slots=True)
class _Term:
    """The arrays of one kind of an item."""

    first: int
    """The number of the first worker."""
    factor: float | None
    """What the arrays are still to be multiplied by; ``None`` for sums."""
    values: Arrays
    dtypes: Mapping[Any, np.dtype[Any]] | None
    """The dtypes of the mean, for sums."""
    changes: frozenset[Any]
    """The names of changes."""

    @classmethod
    def of(cls, item: Item, name: str) -> "_Term | None":
        """Return the arrays of this name of an item, or ``None`` if it has none."""
        arrays = item.fields.get(name)
        if arrays is None:
            return None
        if isinstance(arrays, ArraySums):
            return cls(item.first, None, arrays.values, arrays.dtypes, arrays.changes)
        changes = (key for key, array in arrays.items() if isinstance(array, CompressedChange))
        return cls(item.first, item.total, arrays, None, frozenset(changes))

    def dtype(self, name: Any) -> np.dtype[Any]:
        """Return the dtype of the mean of an array."""
        return self.values[name].dtype if self.dtypes is None else self.dtypes[name]


def partial_sum(items: Sequence[Item]) -> Item:
    """Return the sum of the items, which are nodes of the tree in ascending order.

    Items of weight 0 do not count, not even in the maximum of integers; without any weight the sum
    is the first item. An array missing from an item counts as zeros (the momentum of a parameter
    without gradients).
    """
    voting = voting_items(items)
    if len(voting) == 1:
        return voting[0]
    sums = {}
    for field, terms in _terms(voting).items():
        having = _by_name(terms)
        sums[field] = ArraySums(
            values={name: _combined(of_name, name, field) for name, of_name in having.items()},
            dtypes={name: of_name[0].dtype(name) for name, of_name in having.items()},
            changes=frozenset[Any]().union(*(term.changes for term in terms)),
        )
    weights = chain.from_iterable(item.weights for item in voting)
    return WeightedSum(voting[0].first, tuple(weights), sums, unchanged_by_all(voting))


def mean(
    items: Sequence[Item], bases: Mapping[str, Mapping[Any, NDArray[Any]]]
) -> dict[str, Mapping[Any, NDArray[Any]]]:
    """Return Σ nᵢ·wᵢ / Σ nᵢ of each kind of arrays, in their dtypes.

    A single worker's arrays are returned unchanged. Means of changes are added to the arrays before
    training, ``bases`` by kind; arrays missing there count as zeros.
    """
    voting = [item for item in items if item.total]
    if not voting:
        only = items[0]
        voting = [replace(only, weight=1) if isinstance(only, Trained) else only]
    total = math.fsum(chain.from_iterable(item.weights for item in voting))
    means: dict[str, Mapping[Any, NDArray[Any]]] = {}
    for field, terms in _terms(voting).items():
        changes = frozenset[Any]().union(*(term.changes for term in terms))
        if len(voting) == 1 and voting[0] is not None and not changes and terms[0].dtypes is None:
            means[field] = terms[0].values  # type: ignore[assignment]
            continue
        base = bases.get(field, {})
        means[field] = {
            name: _combined(
                of_name,
                name,
                field,
                divisor=total,
                base=base.get(name) if name in changes else None,
            )
            for name, of_name in _by_name(terms).items()
        }
    return means


def _terms(items: Sequence[Item]) -> dict[str, list[_Term]]:
    """Return the arrays of the items, by what they are."""
    fields = dict.fromkeys(chain.from_iterable(item.fields for item in items))
    terms = {field: [_Term.of(item, field) for item in items] for field in fields}
    return {
        field: [term for term in of_field if term is not None] for field, of_field in terms.items()
    }


def _by_name(terms: Sequence[_Term]) -> dict[Any, list[_Term]]:
    """Return the terms that have an array of each name."""
    names = dict.fromkeys(chain.from_iterable(term.values for term in terms))
    return {name: [term for term in terms if name in term.values] for name in names}


def _combined(
    terms: Sequence[_Term],
    name: Any,
    field: str,
    *,
    divisor: float | None = None,
    base: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return the sum of the arrays of one name in double precision; the maximum for integers.

    With a divisor it is divided, and added to ``base`` if that is given, in the dtype of the mean.
    ``field`` is what the arrays are: of buffers with other rules there is no sum.
    """
    dtype = terms[0].dtype(name)
    arrays = [term.values[name] for term in terms]
    if field in (MAXIMA, FIRSTS):
        return combined_buffer(field, arrays)  # type: ignore[arg-type]
    if dtype.kind not in "fc":
        integers: list[Any] = arrays
        return np.asarray(np.maximum.reduce(integers) if len(integers) > 1 else integers[0])
    wide = np.result_type(dtype, np.float64)
    tree = tree_of(tuple(term.first for term in terms))
    flat = [array if isinstance(array, CompressedChange) else np.ravel(array) for array in arrays]
    factors = [term.factor for term in terms]

    def add_up(node: Tree, part: slice) -> Elements:
        """Return the sum of some elements."""
        if not isinstance(node, int):
            left, left_is_new = add_up(node[0], part)
            right, right_is_new = add_up(node[1], part)
            target = None
            if left_is_new:
                target = left
            elif right_is_new:
                target = right
            return np.add(left, right, out=target), True
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
        values, is_new = add_up(tree, part)
        # Exact for float32 and one version: below 2**29 samples, n * w has 53 bits.
        if divisor is not None:
            values = np.divide(values, divisor, out=values if is_new else None)
        flat_result[part] = values if flat_base is None else values + flat_base[part]
    return result


@lru_cache(maxsize=64)
def tree_of(firsts: tuple[int, ...]) -> Tree:
    """Return the tree of items that begin at these workers, in ascending order."""

    def node(low: int, high: int, start: int, size: int) -> Tree:
        """Return the tree of items ``low`` to ``high``, of the ``size`` workers from ``start``."""
        if high - low == 1:
            return low
        half = size // 2
        middle = bisect_left(firsts, start + half, low, high)
        if middle in (low, high):
            return node(low, high, start + half if middle == low else start, half)
        return node(low, middle, start, half), node(middle, high, start + half, half)

    return node(0, len(firsts), 0, 1 << firsts[-1].bit_length())


def add_completed(items: list[Item], item: Item) -> list[Item]:
    """Return the items with another worker's, added up where it completes nodes of the tree.

    So few versions of the parameters are in memory while workers of one task train in turn.
    """
    items = [*items, item]
    stop = item.first + 1
    size = 2
    while stop % size == 0 and len(items) > 1:
        start = stop - size
        before = [node for node in items if node.first < start]
        inside = [node for node in items if node.first >= start]
        items = [*before, partial_sum(inside)]
        size *= 2
    return items
