"""Mean and spread of the inputs whose simulations have samples in the workers' buffers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, rebuilt, template_of
from compss_train.reports.records import Record

MOST_NUMBERS = 100
"""Inputs of more numbers have no statistics: every record would have twice as many."""
_LEAST_ROWS = 64
"""Rows for which there is memory from the start."""


class InputStatistics:
    """The numbers in the input of each simulation that has begun, for statistics of buffers.

    There are none if an input is not of numbers, or not like the first one.
    """

    def __init__(self) -> None:
        self._template: Any = None
        """The tuples, lists and dicts of an input."""
        self._shapes: list[tuple[int, ...]] = []
        """Those of its leaves."""
        self._rows: NDArray[np.float64] | None = np.empty((0, 0))
        """A row for each simulation; ``None`` if there are no statistics."""
        self._number = 0
        """How many rows are in use."""

    def add(self, value: Any) -> None:
        """Add the input of the next simulation."""
        if self._rows is None:
            return
        arrays = _arrays_of(value)
        shapes = [array.shape for array in arrays]
        template = template_of(value)
        if not self._number:
            self._template = template
            self._shapes = shapes
            self._rows = np.empty((_LEAST_ROWS, sum(array.size for array in arrays)))
        if not arrays or (template, shapes) != (self._template, self._shapes):
            self._rows = None
            return
        if self._number == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._number] = np.concatenate([array.reshape(-1) for array in arrays])
        self._number += 1

    def of_buffers(self, counts: Sequence[NDArray[np.int64]]) -> Record | None:
        """Return the mean and the standard deviation over the samples in all buffers.

        ``counts`` are for each buffer the numbers of simulations and of their samples in it, shape
        (n, 2). Samples of other programs, whose inputs are not known, do not count; ``None`` if
        there are no others.
        """
        if self._rows is None:
            return None
        simulations, samples = np.concatenate([*counts]).reshape(-1, 2).T
        is_known = simulations < self._number
        weights = samples[is_known].astype(np.float64)
        total = weights.sum()
        if not total:
            return None
        values = self._rows[simulations[is_known]]
        with np.errstate(invalid="ignore", over="ignore"):  # infinite inputs have no spread
            mean = weights @ values / total
            variance = weights @ np.square(values - mean) / total
        return {"mean": self._as_input(mean), "std": self._as_input(np.sqrt(variance))}

    def _as_input(self, numbers: NDArray[np.float64]) -> Any:
        """Return numbers in the form of an input, as JSON can hold it."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])
        parts = np.split(numbers, ends[:-1])
        arrays = [part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)]
        return rebuilt(self._template, [array.tolist() for array in arrays])


def _arrays_of(value: Any) -> list[NDArray[np.float64]]:
    """Return the leaves of an input as arrays; none if they are not numbers, or too many."""
    arrays: list[NDArray[np.float64]] = []
    for leaf in leaves(value)[: MOST_NUMBERS + 1]:
        try:
            array = np.asarray(leaf)
        except Exception:  # of a tensor on a GPU, or whatever an object of the program raises
            return []
        if array.dtype.kind not in "biuf":
            return []
        arrays.append(array.astype(np.float64))
    return arrays if 0 < sum(array.size for array in arrays) <= MOST_NUMBERS else []


def simulation_counts(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the simulations of samples and how many each has, shape (n, 2).

    ``keys`` are the simulation and the step of each sample, shape (n, 2).
    """
    simulations, counts = np.unique(keys[:, 0], return_counts=True)
    return np.stack([simulations, counts], 1)
