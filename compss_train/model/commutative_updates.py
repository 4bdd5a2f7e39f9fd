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
    """Parameters under commutative merging, with the number of samples that have been merged into
    them.
    """

    samples: float = 0


def apply_delta(
    current: Parameters,
    base: Parameters,
    trained: Contribution,
    count: float,
    total: int,
    buffers: Collection[str] = (),
) -> MergedParameters:
    """Return the global parameters after merging a worker that trained ``count`` of a round's
    ``total`` samples.

    Weights become current + count/total · (trained - base): additions of the workers' changes
    commute, so that their order changes rounding only. The names in ``buffers`` are statistics,
    which may shrink faster than a stale base allows (a variance would become negative), so they are
    interpolated towards the worker's instead: with one update from each worker to the weighted mean
    in any order, later by count/total. Integers take the maximum.
    """
    samples = getattr(current, "samples", 0) + count
    merged = MergedParameters()
    merged.samples = samples
    for name, array in current.items():
        new: Any = trained[name]
        if array.dtype.kind not in "fc":
            merged[name] = np.maximum(array, new)
        elif name in buffers:
            merged[name] = _interpolate(array, new, count / max(1, min(samples, total)))
        else:
            shift = change(base[name], new)
            shift *= count / total
            shift += array
            merged[name] = np.asarray(shift).astype(array.dtype, copy=False)
    return merged


def change(before: NDArray[Any], after: NDArray[Any] | CompressedChange) -> NDArray[Any]:
    """Return after - before, or ``after`` if it is already a change, in at least double
    precision.
    """
    wide = np.result_type(before.dtype, np.float64)
    if isinstance(after, CompressedChange):
        return after[:].astype(wide).reshape(after.shape)
    return np.asarray(np.subtract(after, before, dtype=wide))


def _interpolate(array: NDArray[Any], trained: NDArray[Any], fraction: float) -> NDArray[Any]:
    mean = np.multiply(array, 1 - fraction, dtype=np.result_type(array.dtype, np.float64))
    mean += np.multiply(trained, fraction, dtype=mean.dtype)
    return np.asarray(mean).astype(array.dtype, copy=False)


def halve(current: Parameters, trained: Parameters) -> Parameters:
    """Return (current + trained) / 2, dislib's commutative rule, which gives the last worker half
    the weight.
    """
    return {
        name: _interpolate(array, trained[name], 0.5)
        if array.dtype.kind in "fc"
        else np.maximum(array, trained[name])
        for name, array in current.items()
    }
