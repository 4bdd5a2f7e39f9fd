"""Parameters: the whole state_dict of a model as named numpy arrays, and the arithmetic of merging them.

Floating entries (weights and buffers such as BatchNorm statistics) are averaged; integer and boolean entries
(counters, masks) take the maximum. Sums are computed in double precision and in the given order, so that the same
tree of calls gives the same bits on any machine. Formats that numpy lacks (bfloat16, float8) are stored as float32,
which represents them exactly. Workers may return compressed changes in place of some arrays (``compression``).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.numpy import save as serialize
from torch import nn
from torch.nn.parameter import is_lazy

from compss_train.exceptions import BadFileError, DivergedError
from compss_train.model.compression import CompressedChange, Contribution

Parameters = dict[str, NDArray[Any]]

FORMATS = (".npz", ".safetensors")
"""Suffixes of files of parameters."""

_CHUNK = 8192
"""Elements that are processed at a time: with some intermediate results they fit into a core's cache."""

_WITHOUT_NUMPY_TYPE = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def from_module(module: nn.Module) -> Parameters:
    """Return the module's state_dict as arrays in its order; on the CPU they share the module's memory."""
    return {name: to_array(name, tensor) for name, tensor in module.state_dict().items()}


def to_array(name: str, tensor: object) -> NDArray[Any]:
    """Return a tensor as an array; ``TypeError`` names what is no tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"state_dict entry {name!r} is a {type(tensor).__name__}; only tensors can be exchanged between "
            "workers. Remove get_extra_state from the module or register the value as a buffer."
        )
    if is_lazy(tensor):
        raise ValueError(f"{name!r} is lazy and has no shape yet; run one batch through the network first")
    if tensor.dtype in _WITHOUT_NUMPY_TYPE:
        tensor = tensor.float()
    array: NDArray[Any] = tensor.detach().cpu().contiguous().numpy()
    return array


def load_into(module: nn.Module, parameters: Mapping[str, NDArray[Any]]) -> None:
    """Copy the arrays into the tensors of the module, keeping their device and layout.

    Raises ``ValueError`` if names or shapes differ, naming them.
    """
    tensors = module.state_dict()
    if missing := [name for name in tensors if name not in parameters]:
        raise ValueError(f"{missing} are missing in the parameters; the network has {list(tensors)}")
    if unknown := [name for name in parameters if name not in tensors]:
        raise ValueError(f"parameters {unknown} are not in the network, which has {list(tensors)}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            _copy_array(name, tensor, parameters[name])


def _copy_array(name: str, tensor: torch.Tensor, array: NDArray[Any]) -> None:
    if tuple(tensor.shape) != array.shape:
        raise ValueError(f"{name!r} has shape {array.shape}, but {tuple(tensor.shape)} in the network")
    tensor.copy_(torch.from_numpy(np.require(array, requirements=["C", "W"])))


def copy_of(parameters: Mapping[str, NDArray[Any]]) -> Parameters:
    """Return copies of the arrays."""
    return {name: np.array(array) for name, array in parameters.items()}


def first_not_finite(parameters: Parameters) -> str | None:
    """Return the name of the first array with a NaN or infinite value, or ``None``."""
    return next(
        (name for name, array in parameters.items() if array.dtype.kind in "fc" and not np.isfinite(array).all()),
        None,
    )


def check_finite(parameters: Parameters) -> None:
    """Raise ``ValueError`` naming the first array with a NaN or infinite value."""
    if (name := first_not_finite(parameters)) is not None:
        array = parameters[name]
        bad = int(array.size - np.isfinite(array).sum())
        raise ValueError(
            f"parameter {name!r} has {bad} NaN or infinite values of {array.size} before training; "
            "initialise the network again, or load valid parameters with set_parameters"
        )


def check_outer_step(parameters: Parameters, *inputs: Mapping[str, Any]) -> None:
    """Raise ``DivergedError`` if a step of an outer optimizer led from finite ``inputs`` to NaN or infinity.

    Workers return values that are not finite only where ``on_nan="ignore"`` lets training continue with them.
    """
    if (name := first_not_finite(parameters)) is None:
        return
    arrays = ({key: value for key, value in each.items() if isinstance(value, np.ndarray)} for each in inputs)
    if all(first_not_finite(each) is None for each in arrays):
        raise DivergedError(f"the step of outer_optimizer= made {name!r} NaN or infinite; lower its lr or momentum")


@dataclass(frozen=True)
class PartialSum:
    """The sum of the parameters of several workers: the intermediate value of a tree of averages."""

    values: Parameters
    """Sum of count times array or change in double precision for floats, the maximum for integers."""
    count: int
    """Number of samples of the sum."""
    dtypes: dict[str, np.dtype[Any]]
    """The dtypes of the mean."""
    changes: frozenset[str] = frozenset()
    """The names of sums of changes."""


Count = int | Mapping[str, Any]
"""A number of samples, or the sums that a task reports, which have it as ``given``."""


def partial_sum(versions: Sequence[Contribution], counts: Sequence[Count]) -> PartialSum:
    """Return the sum of the versions, weighted by their numbers of samples; without samples, the first version.

    A name that a version lacks counts as zeros there (the momentum of a parameter without gradients).
    """
    numbers = [sample_count(count) for count in counts]
    # Versions without samples do not count, not even in the maximum of integers.
    weighted = [(v, n) for v, n in zip(versions, numbers, strict=True) if n] or [(versions[0], 1)]
    values: Parameters = {}
    dtypes: dict[str, np.dtype[Any]] = {}
    for name in dict.fromkeys(chain.from_iterable(version for version, _ in weighted)):
        arrays = [(version[name], number) for version, number in weighted if name in version]
        values[name], dtypes[name] = _weighted_sum(arrays), arrays[0][0].dtype
    return PartialSum(values, sum(numbers), dtypes, _changes(version for version, _ in weighted))


def _changes(versions: Iterable[Contribution]) -> frozenset[str]:
    items = chain.from_iterable(version.items() for version in versions)
    return frozenset(name for name, array in items if isinstance(array, CompressedChange))


def sample_count(count: Count) -> int:
    """Return the number of samples."""
    return count if isinstance(count, int) else int(count["given"])


def _weighted_sum(
    arrays: Sequence[tuple[NDArray[Any] | CompressedChange, int]],
    divisor: int | None = None,
    base: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return Σ nᵢ·aᵢ in double precision, or Σ nᵢ·aᵢ / divisor in the arrays' own; the maximum for integers.

    The mean of changes is added to ``base``. A few elements are summed at a time, so that intermediate values stay
    in the processor's cache.
    """
    first = arrays[0][0]
    if first.dtype.kind not in "fc":
        integers: list[Any] = [array for array, _ in arrays]
        return np.asarray(np.maximum.reduce(integers) if len(arrays) > 1 else first)
    wide = np.result_type(first.dtype, np.float64)
    result = np.empty(first.shape, wide if divisor is None else first.dtype)
    flat, flat_result = [_flat(array) for array, _ in arrays], result.reshape(-1)
    flat_base = None if base is None else np.ravel(base)
    for start in range(0, first.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        total = np.multiply(flat[0][part], arrays[0][1], dtype=wide)
        for array, (_, number) in zip(flat[1:], arrays[1:], strict=True):
            total += np.multiply(array[part], number, dtype=wide)
        if divisor is not None:
            total /= divisor
        if flat_base is not None:
            total += flat_base[part]
        flat_result[part] = total
    return result


def _flat(array: NDArray[Any] | CompressedChange) -> NDArray[Any] | CompressedChange:
    return array if isinstance(array, CompressedChange) else np.ravel(array)


def add(partials: Sequence[PartialSum]) -> PartialSum:
    """Add partial sums in the given order; those without samples count only if all are without."""
    nonempty = [p for p in partials if p.count] or partials[:1]
    names = dict.fromkeys(chain.from_iterable(p.values for p in nonempty))
    values = {name: _sum([p.values[name] for p in nonempty if name in p.values]) for name in names}
    dtypes = {name: dtype for p in nonempty for name, dtype in p.dtypes.items()}
    changes = frozenset[str]().union(*(p.changes for p in nonempty))
    return PartialSum(values, sum(p.count for p in nonempty), dtypes, changes)


def _sum(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if arrays[0].dtype.kind not in "fc":
        return np.asarray(np.maximum.reduce(arrays)) if len(arrays) > 1 else arrays[0]
    total = np.array(arrays[0])
    for array in arrays[1:]:
        total += array
    return total


def mean(partials: Sequence[PartialSum], base: Parameters | None = None) -> Parameters:
    """Return the weighted mean of the partial sums in the dtypes of the parameters; ``base`` as in ``average``."""
    total = add(partials)
    bases = {name: array for name, array in (base or {}).items() if name in total.changes}
    return {name: _divide(a, total.count, total.dtypes[name], bases.get(name)) for name, a in total.values.items()}


def _divide(
    array: NDArray[Any], count: int, dtype: np.dtype[Any], base: NDArray[Any] | None = None
) -> NDArray[Any]:
    if dtype.kind not in "fc":
        return np.asarray(array).astype(dtype, copy=False)
    # For float32 and one version this is exact: below 2**29 samples, count * w has at most 53 bits.
    quotient = array / max(count, 1)
    return np.asarray(quotient if base is None else quotient + base).astype(dtype, copy=False)


def average(
    versions: Sequence[Contribution], counts: Sequence[Count], base: Parameters | None = None
) -> Parameters:
    """Return Σ nᵢ·wᵢ / Σ nᵢ; a single version is returned unchanged.

    Means of changes are added to ``base``, the arrays before them; those that it lacks were zero.
    """
    numbers = [sample_count(count) for count in counts]
    weighted = [(v, n) for v, n in zip(versions, numbers, strict=True) if n] or [(versions[0], 1)]
    changes = _changes(version for version, _ in weighted)
    if len(versions) == 1:
        if not changes:
            return versions[0]  # type: ignore[return-value]
        weighted = [(versions[0], 1)]
    bases = {name: array for name, array in (base or {}).items() if name in changes}
    total = sum(number for _, number in weighted)
    names = dict.fromkeys(chain.from_iterable(version for version, _ in weighted))
    arrays = {name: [(version[name], n) for version, n in weighted if name in version] for name in names}
    # For float32 and one version the mean is exact: below 2**29 samples, n * w has at most 53 bits.
    return {name: _weighted_sum(pairs, total, bases.get(name)) for name, pairs in arrays.items()}


def squared_distance(before: Parameters, after: Contribution, names: Iterable[str]) -> float:
    """Return the sum of the squared differences of the named arrays."""
    return sum(_squared_difference(np.ravel(before[name]), _flat(after[name])) for name in names)


def _squared_difference(before: NDArray[Any], after: NDArray[Any] | CompressedChange) -> float:
    total = 0.0
    for start in range(0, before.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        if isinstance(after, CompressedChange):
            difference = after[part]
        else:
            difference = np.subtract(after[part], before[part], dtype=np.result_type(before.dtype, np.float32))
        total += float(np.vdot(difference, difference).real)
    return total


class MergedParameters(Parameters):
    """Parameters under commutative merging, with the number of samples that have been merged into them."""

    samples: int = 0
    outer: dict[str, Any] | None = None
    """The state of an outer optimizer, if there is one."""


def apply_delta(
    current: Parameters,
    base: Parameters,
    trained: Contribution,
    count: Count,
    total: int,
    buffers: Collection[str] = (),
    lr: float = 1.0,
) -> MergedParameters:
    """Return the global parameters after merging a worker that trained ``count`` of a round's ``total`` samples.

    Weights become current + lr · count/total · (trained - base): additions of the workers' changes commute, so that
    their order changes rounding only. The names in ``buffers`` are statistics, which may shrink faster than a stale
    base allows (a variance would become negative), so they are interpolated towards the worker's instead: with one
    update from each worker to the weighted mean in any order, later by count/total. Integers take the maximum.
    """
    count = sample_count(count)
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
            merged[name] = _add_change(array, change(base[name], new), lr * (count / total))
    return merged


def change(before: NDArray[Any], after: NDArray[Any] | CompressedChange) -> NDArray[Any]:
    """Return after - before, or the change that ``after`` is, in double precision at least."""
    wide = np.result_type(before.dtype, np.float64)
    if isinstance(after, CompressedChange):
        return after[:].astype(wide).reshape(after.shape)
    return np.asarray(np.subtract(after, before, dtype=wide))


def _add_change(array: NDArray[Any], shift: NDArray[Any], fraction: float) -> NDArray[Any]:
    shift *= fraction
    shift += array
    return np.asarray(shift).astype(array.dtype, copy=False)


def _interpolate(array: NDArray[Any], trained: NDArray[Any], fraction: float) -> NDArray[Any]:
    mean = np.multiply(array, 1 - fraction, dtype=np.result_type(array.dtype, np.float64))
    mean += np.multiply(trained, fraction, dtype=mean.dtype)
    return np.asarray(mean).astype(array.dtype, copy=False)


def halve(current: Parameters, trained: Parameters) -> Parameters:
    """Return (current + trained) / 2, the commutative rule of dislib, in which the last worker counts half."""
    return {
        name: _interpolate(array, trained[name], 0.5)
        if array.dtype.kind in "fc"
        else np.maximum(array, trained[name])
        for name, array in current.items()
    }


def save(path: str | Path, parameters: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays to a ``.safetensors`` or ``.npz`` file, chosen by the suffix."""
    path = Path(path)
    if path.suffix == ".safetensors":
        arrays = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in parameters.items()}
        path.write_bytes(serialize(arrays))  # save_file's files are readable by their owner only
    elif path.suffix == ".npz":
        np.savez(path, **{name: np.asarray(array) for name, array in parameters.items()})  # type: ignore[arg-type]
    else:
        raise ValueError(f"cannot save parameters to {path.name!r}; use the suffix .safetensors or .npz")


def load(path: str | Path) -> Parameters:
    """Return the arrays of a file that ``save`` wrote, for ``.npz`` in the same order.

    Raises ``BadFileError`` for a damaged file, and ``ValueError`` for another suffix.
    """
    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        if path.suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
    except (SafetensorError, BadZipFile, ValueError, EOFError) as error:
        raise BadFileError(str(path), f"is damaged, or not a file of parameters: {error}") from error
    raise ValueError(f"cannot load parameters from {path.name!r}; use the suffix .safetensors or .npz")
