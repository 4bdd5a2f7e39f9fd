"""Updates of the parameters by one worker after the other, in any order.

Workers may return compressed changes in place of some arrays (``compression``).
"""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.model.compression import CompressedChange, Contribution
from compss_train.model.parameters import Parameters


class MergedParameters(Parameters):
    """Parameters under commutative merging."""

    samples: float = 0
    """Number of samples that have been merged into them."""


def apply_delta(
    current: Parameters,
    base: Parameters,
    trained: Contribution,
    *,
    count: float,
    total: int,
    buffers: Collection[str] = (),
    kept: Collection[str] = (),
) -> MergedParameters:
    """Return the parameters after merging a worker with ``count`` of a round's ``total`` samples.

    Weights become current + count/total · (trained - base): additions of the workers' changes
    commute, so that their order changes rounding only. The names in ``buffers`` are statistics,
    which may shrink faster than a stale base allows (a variance would become negative), so they are
    interpolated towards the worker's instead: with one update from each worker to the weighted mean
    in any order, later by count/total. Integers take the maximum. The names in ``kept``, and those
    that the worker does not bring, stay as they are.
    """
    samples = getattr(current, "samples", 0) + count
    merged = MergedParameters()
    merged.samples = samples
    for name, array in current.items():
        trained_array: Any = trained.get(name)
        if trained_array is None or name in kept:
            merged[name] = array
        elif array.dtype.kind not in "fc":
            merged[name] = np.maximum(array, trained_array)
        elif name in buffers:
            fraction = count / max(1, min(samples, total))
            merged[name] = _interpolate(array, trained_array, fraction)
        else:
            updated = change(base[name], trained_array)
            updated *= count / total
            updated += array
            merged[name] = np.asarray(updated).astype(array.dtype, copy=False)
    return merged


def change(before: NDArray[Any], after: NDArray[Any] | CompressedChange) -> NDArray[Any]:
    """Return after - before, or ``after`` if it is a change, in at least double precision."""
    wide = np.result_type(before.dtype, np.float64)
    if isinstance(after, CompressedChange):
        return after[:].astype(wide).reshape(after.shape)
    try:
        with np.errstate(invalid="raise"):
            return np.asarray(np.subtract(after, before, dtype=wide))
    except FloatingPointError:  # infinities, which differ by nothing from themselves
        difference = np.zeros(before.shape, wide)
        np.subtract(after, before, out=difference, where=np.asarray(after != before))
        return difference


def _interpolate(array: NDArray[Any], trained: NDArray[Any], fraction: float) -> NDArray[Any]:
    """Return (1 - fraction) · array + fraction · trained."""
    if fraction == 1 and not np.isfinite(array).all():  # infinities that count nothing
        return np.array(trained, array.dtype)
    mean = np.multiply(array, 1 - fraction, dtype=np.result_type(array.dtype, np.float64))
    mean += np.multiply(trained, fraction, dtype=mean.dtype)
    return np.asarray(mean).astype(array.dtype, copy=False)


def halve(current: Parameters, trained: Parameters) -> Parameters:
    """Return (current + trained) / 2, dislib's commutative rule.

    It gives half of the weight to the last worker. Integers take the maximum. What the worker does
    not bring stays as it is.
    """
    merged = {}
    for name, array in current.items():
        if name not in trained:
            merged[name] = array
        elif array.dtype.kind in "fc":
            merged[name] = _interpolate(array, trained[name], 0.5)
        else:
            merged[name] = np.maximum(array, trained[name])
    return merged
