"""Compressed changes: what workers return with ``Merge(dtype=...)``, in 2 or 1 bytes an element.

What is rounded away is not lost: it stays with the worker, which adds it to its next change. This
error feedback (Seide et al. 2014, "1-bit stochastic gradient descent"; Karimireddy et al. 2019,
arXiv 1901.09847) makes the sum of what a worker sent, and of its last error, the sum of its changes
up to float arithmetic.

``"bf16"`` is the upper half of a single-precision number. It is cut towards zero: no number becomes
infinite, and what was positive before and after a change is not negative after the compressed one,
as the square roots of Adam's second moments need. ``"int8"`` are multiples of a scale, the array's
largest magnitude / 127, rounded to nearest.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

MergeDtype = Literal["bf16", "int8"]

CHUNK = 32768
"""Elements processed at a time: they and their intermediate results fit into a core's cache."""

_BF16_BITS = np.uint64(2**64 - 2**45)
"""Of a double-precision number, the bits of bfloat16: sign, exponent, and 7 of the significand."""


@dataclass(frozen=True, eq=False, slots=True)
class CompressedChange:
    """The change of an array in fewer bits.

    ``change[part]`` returns decoded elements of the flattened change.
    """

    codes: NDArray[Any]
    """Upper halves of single-precision numbers, or multiples of ``scale``, as the array's shape."""
    scale: Any
    """``None`` for bf16."""
    dtype: np.dtype[Any]
    """The dtype of the array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.codes.shape

    def __getitem__(self, part: slice) -> NDArray[Any]:
        return _decoded(self.codes.reshape(-1)[part], self.scale)


Key = TypeVar("Key", bound=Hashable)
"""The name of an array, of any kind."""

Parts = Iterator[tuple[slice, NDArray[Any]]]
"""Parts of a flattened array in turn, each with its elements."""

Contribution = Mapping[str, NDArray[Any] | CompressedChange]
"""What a worker returns to a merge: its parameters, or changes of some of them."""


def compress_arrays(
    before: Mapping[Key, NDArray[Any]],
    after: Mapping[Key, NDArray[Any]],
    names: Collection[Key],
    dtype: MergeDtype,
    errors: Mapping[Key, NDArray[Any]] | None = None,
) -> tuple[dict[Key, CompressedChange], dict[Key, NDArray[Any]]]:
    """Return the compressed changes of the named arrays, and the errors from ``errors`` on.

    Arrays missing from ``before`` count as zeros. Arrays that are not real floats are left out, as
    are scalars such as step counts, which bf16 cannot represent.
    """
    changes: dict[Key, CompressedChange] = {}
    new_errors: dict[Key, NDArray[Any]] = {}
    for name in names:
        array = after[name]
        if array.dtype.kind == "f" and array.ndim > 0:
            start = before[name] if name in before else np.zeros_like(array)
            error = None if errors is None else errors.get(name)
            changes[name], new_errors[name] = compress(start, array, dtype, error=error)
    return changes, new_errors


def compress(
    before: NDArray[Any],
    after: NDArray[Any],
    dtype: MergeDtype,
    *,
    error: NDArray[Any] | None = None,
) -> tuple[CompressedChange, NDArray[Any]]:
    """Return after - before + error as a compressed change, and the next error.

    That is what compression has dropped. Both are computed in single precision, or in the array's
    precision if that is higher. If a sum is NaN, infinite or too large for bf16, so is the error.
    """
    remainder = np.empty(after.shape, np.result_type(after.dtype, np.float32))
    sums = _add_up(before, after, error, result=remainder)
    encode = _to_bf16 if dtype == "bf16" else _to_int8
    with np.errstate(all="ignore"):
        codes, scale = encode(sums, remainder)
    return CompressedChange(codes, scale, after.dtype), remainder


def _add_up(
    before: NDArray[Any], after: NDArray[Any], error: NDArray[Any] | None, *, result: NDArray[Any]
) -> Parts:
    """Compute after - before + error, and yield each part while it is in the cache."""
    before = np.ravel(before)
    after = np.ravel(after)
    result = result.reshape(-1)
    flat_error = None if error is None else np.ravel(error)
    for start in range(0, result.size, CHUNK):
        part = slice(start, start + CHUNK)
        values = np.subtract(after[part], before[part], out=result[part], dtype=result.dtype)
        if flat_error is not None:
            values += flat_error[part]
        yield part, values


def _to_bf16(sums: Parts, remainder: NDArray[Any]) -> tuple[NDArray[Any], None]:
    """Return codes of the sums, which are parts of ``remainder``, and reduce them to the latter."""
    codes = np.empty(remainder.shape, np.uint16)
    flat_codes = codes.reshape(-1)
    for part, values in sums:
        flat_codes[part] = np.right_shift(_cut(values).view(np.uint32), 16)
        values -= _decoded(flat_codes[part], None)
    return codes, None


def _cut(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return the values in single precision; those in double precision are cut, not rounded."""
    if values.dtype == np.float32:
        return values
    bits = np.asarray(np.bitwise_and(values.view(np.uint64), _BF16_BITS))
    return bits.view(np.float64).astype(np.float32)


def _to_int8(sums: Parts, remainder: NDArray[Any]) -> tuple[NDArray[Any], Any]:
    """Return codes of the sums and their scale, and reduce ``remainder`` as ``_to_bf16`` does."""
    dtype = remainder.dtype
    largest = np.max([np.abs(values).max() for _, values in sums], initial=0)
    scale = dtype.type(largest / 127 if np.isfinite(largest) else np.nan)
    # Below that the inverse may be infinite: nothing is sent, and such changes gather in the error.
    inverse = dtype.type(1 / scale if scale >= np.finfo(dtype).tiny else 0)
    codes = np.empty(remainder.shape, np.int8)
    flat_codes = codes.reshape(-1)
    flat_remainder = remainder.reshape(-1)
    for start in range(0, remainder.size, CHUNK):
        part = slice(start, start + CHUNK)
        flat_codes[part] = np.rint(flat_remainder[part] * inverse)
        flat_remainder[part] -= _decoded(flat_codes[part], scale)
    return codes, scale


def _decoded(codes: NDArray[Any], scale: Any) -> NDArray[Any]:
    """Return the numbers of codes; ``scale`` is ``None`` for bf16."""
    if scale is None:
        return np.asarray(np.left_shift(codes, 16, dtype=np.uint32)).view(np.float32)
    return np.asarray(np.multiply(codes, scale, dtype=scale.dtype))
